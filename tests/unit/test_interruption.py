"""When the main thread is interrupted: until it is out, and never while an interruption still unwinds."""

import itertools
import math

from nvrx_core.inprocess.interruption import (
    BLOCKED,
    REPEAT,
    REPEAT_MOST,
    Fire,
    InterruptionMachine,
    Seen,
    Unblock,
    Why,
)

UNWIND = 10.0


def seen(raised=0, *, alive=False, out=False, masked=False):
    return Seen(out=out, masked=masked, raised=raised, alive=alive)


def run(machine, until, see=lambda now: seen()):
    """Tick at each deadline; what was done when."""
    now, done = 0.0, []
    while now <= until:
        done += [(round(now, 4), action) for action in machine.tick(see(now), now=now)]
        assert machine.deadline > now
        now = machine.deadline
    return done


def new():
    return InterruptionMachine(unwind=UNWIND)


def test_it_fires_at_once():
    machine = new()
    assert machine.tick(seen(), now=5.0) == (Fire(Why.FIRST),)
    assert machine.deadline == 5.0 + REPEAT


def test_nothing_is_done_out_of_the_function_or_in_an_atomic_section():
    for what in (seen(out=True), seen(masked=True), seen(1, alive=True, masked=True)):
        machine = new()
        assert machine.tick(what, now=1.0) == ()
        assert machine.deadline == math.inf


def test_an_interrupt_without_effect_is_fired_again_ever_more_rarely():
    times = [at for at, action in run(new(), 1.0) if isinstance(action, Fire)]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert math.isclose(gaps[0], REPEAT, abs_tol=1e-3)
    assert math.isclose(gaps[-1], REPEAT_MOST, abs_tol=1e-3)
    assert all(gap <= REPEAT_MOST + 1e-3 for gap in gaps)


def test_a_thread_that_does_not_react_is_unblocked():
    times = [at for at, action in run(new(), 0.5) if isinstance(action, Unblock)]
    assert times[0] == BLOCKED
    assert len(times) >= 2
    assert Unblock().reason == "the main thread does not react to signals"


def test_while_the_exception_lives_it_is_left_alone():
    machine = new()
    machine.tick(seen(), now=0.0)
    assert machine.tick(seen(1, alive=True), now=0.01) == ()
    assert machine.deadline == 0.01 + UNWIND
    assert machine.tick(seen(1, alive=True), now=5.0) == ()
    assert machine.swallowed == 0


def test_cleanup_that_takes_too_long_is_interrupted_once_more():
    machine = new()
    machine.tick(seen(), now=0.0)
    machine.tick(seen(1, alive=True), now=1.0)
    assert machine.tick(seen(1, alive=True), now=1.0 + UNWIND) == (Fire(Why.STUCK),)
    assert machine.tick(seen(1, alive=True), now=2.0 + UNWIND) == ()


def test_a_swallowed_exception_is_raised_again():
    machine = new()
    machine.tick(seen(), now=0.0)
    assert machine.tick(seen(1), now=0.01) == (Fire(Why.SWALLOWED),)
    assert machine.tick(seen(2, alive=True), now=0.02) == ()
    assert machine.tick(seen(2), now=0.03) == (Fire(Why.SWALLOWED),)
    assert machine.swallowed == 2
    assert Fire(Why.SWALLOWED).reason == "the exception was swallowed"


def test_the_pause_is_short_again_after_a_swallowed_one():
    machine = new()
    run(machine, 0.5)
    machine.tick(seen(1), now=1.0)
    assert machine.deadline == 1.0 + REPEAT


def test_a_fresh_signal_is_given_its_time_before_the_next():
    machine = new()
    machine.tick(seen(), now=0.0)
    assert machine.tick(seen(), now=REPEAT / 2) == ()
    assert machine.deadline == REPEAT
