"""Wall clocks that are wrong, or jump, change nothing: neither in a rank nor in its monitor process."""

from __future__ import annotations

import signal

from tests.harness.process.oracle import assert_nothing_lost, restart

from .conftest import Launch

HOUR = 3600.0
QUICK = {"heartbeat_interval": 0.1, "heartbeat_timeout": 1.2, "soft_timeout": 1.5}


def test_clocks_that_jump_by_an_hour_change_nothing(launch: Launch) -> None:
    jumps = {"0": HOUR, "1": -HOUR}
    job = launch({(2, 0, 250): "kill", (1, 1, 3): "exception"}, wrapper=QUICK, clock_jump=jumps).finish()
    first, second = restart("TERMINATED", by=[2], lost=[2]), restart("EXCEPTION", by=[1])
    assert_nothing_lost(job, first, second, codes={2: -signal.SIGKILL})
    walls = {rank: [line["wall"] for line in job.events(initial_rank=rank)] for rank in (0, 1)}
    assert walls[0][-1] - walls[0][0] > HOUR / 2, "the clock did not jump"
    assert walls[1][-1] - walls[1][0] < -HOUR / 2, "the clock did not jump"
    assert job.events("fault", initial_rank=2)


def test_a_hang_is_found_whatever_the_clocks_say(launch: Launch) -> None:
    job = launch({(1, 0, 5): "hang_sleep"}, world=2, wrapper=QUICK, clock_jump={"1": -HOUR}).finish()
    assert_nothing_lost(job, restart("SOFT_TIMEOUT", by=[1]))
