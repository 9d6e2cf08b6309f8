"""What is derived from the timeouts of progress."""

import pytest

from nvrx_core.inprocess.protocol.timeouts import HangTimeouts


@pytest.mark.parametrize(
    ("soft", "hard", "unwind", "hold"),
    [(60.0, 90.0, 10.0, 70.0), (1.0, 3.0, 1.0, 1.0), (1.0, 1.5, 0.25, 1.0)],
)
def test_an_interruption_ends_within_the_hard_timeout(soft, hard, unwind, hold):
    timeouts = HangTimeouts(soft, hard, watchdog=1.0, heartbeat=1.0, heartbeat_timeout=30.0)
    assert (timeouts.unwind, timeouts.hold) == (unwind, hold)
    assert timeouts.hold + 2 * timeouts.unwind == hard


def test_the_intervals_are_shorter_where_the_soft_timeout_is_short():
    rare, often = (
        HangTimeouts(soft, 90.0, watchdog=1.0, heartbeat=1.0, heartbeat_timeout=30.0) for soft in (60.0, 2.0)
    )
    assert (rare.watchdog_interval, rare.lease_interval) == (1.0, 1.0)
    assert (often.watchdog_interval, often.lease_interval) == (0.1, 0.5)
    assert (rare.sibling_interval, often.sibling_interval) == (3.0, 3.0)
    assert (rare.stalled_after, rare.gil_silence, rare.after_soft) == (30.0, 1.75, 30.0)
