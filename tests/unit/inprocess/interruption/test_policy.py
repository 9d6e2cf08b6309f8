"""When the main thread is interrupted: until it is out, and never while an interruption still unwinds."""

import itertools
import math

import pytest

from nvrx_core.inprocess.interruption.landing import Landing
from nvrx_core.inprocess.interruption.policy import (
    BLOCKED,
    FRAGILE,
    IMPATIENT,
    MAX_AWAITED,
    MAX_REPEAT,
    MAX_STEP,
    OBSERVE_EVERY,
    REPEAT,
    RUNS,
    STORED,
    Fire,
    FireReason,
    InterruptPolicy,
    ThreadSample,
    Unblock,
)

UNWIND = 10.0
HOLD = 60.0


def seen(
    raised=0, *, alive=False, out=False, masked=False, stored=False, deferred=0, awaited=False, landing=Landing.SAFE,
    waited=0, ran=0.0,
):  # fmt: skip
    return ThreadSample(
        out=out, masked=masked, raised=raised, alive=alive, stored=stored, deferred=deferred, awaited=awaited,
        landing=landing, waited=waited, ran=ran,
    )  # fmt: skip


def run(machine, until, see=lambda now: seen()):
    """Tick at each deadline; what was done when."""
    now, done = 0.0, []
    while now <= until:
        done += [(round(now, 4), action) for action in machine.tick(see(now), now=now)]
        assert machine.deadline > now
        now = machine.deadline
    return done


def new():
    return InterruptPolicy(unwind=UNWIND, hold=HOLD)


def test_it_fires_at_once():
    machine = new()
    assert machine.tick(seen(), now=5.0) == (Fire(FireReason.FIRST),)
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
    assert math.isclose(gaps[-1], MAX_REPEAT, abs_tol=1e-3)
    assert all(gap <= MAX_REPEAT + 1e-3 for gap in gaps)


def test_a_thread_that_does_not_react_is_unblocked():
    times = [at for at, action in run(new(), 0.5) if isinstance(action, Unblock)]
    assert times[0] == BLOCKED
    assert len(times) >= 2
    assert Unblock().reason == "the main thread does not react to signals"


def test_no_interrupt_is_fired_while_the_exception_unwinds():
    machine = new()
    machine.tick(seen(), now=0.0)
    assert machine.tick(seen(1, alive=True), now=0.01) == ()
    assert machine.deadline == 0.01 + OBSERVE_EVERY  # it may be swallowed at any time
    assert machine.tick(seen(1, alive=True), now=5.0) == ()
    assert machine.deadline == 5.0 + MAX_REPEAT
    assert machine.tick(seen(1, alive=True), now=UNWIND) == ()
    assert machine.deadline == 0.01 + UNWIND
    assert machine.swallowed == 0


def test_cleanup_that_takes_too_long_is_interrupted_once_more():
    machine = new()
    machine.tick(seen(), now=0.0)
    machine.tick(seen(1, alive=True), now=1.0)
    assert machine.tick(seen(1, alive=True), now=1.0 + UNWIND) == (Fire(FireReason.STUCK),)
    assert machine.tick(seen(1, alive=True), now=2.0 + UNWIND) == ()


def test_a_swallowed_exception_is_raised_again():
    machine = new()
    machine.tick(seen(), now=0.0)
    assert machine.tick(seen(1), now=0.01) == (Fire(FireReason.SWALLOWED),)
    assert machine.tick(seen(2, alive=True), now=0.02) == ()
    assert machine.tick(seen(2), now=0.03) == (Fire(FireReason.SWALLOWED),)
    assert machine.swallowed == 2
    assert Fire(FireReason.SWALLOWED).reason == "the exception was swallowed"


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


def test_a_stored_exception_is_raised_again_after_several_looks():
    machine = new()
    machine.tick(seen(), now=0.0)
    now, looks = 0.001, 0
    while not (actions := machine.tick(seen(1, stored=True), now=now)):
        now, looks = machine.deadline, looks + 1
    assert actions == (Fire(FireReason.STORED),)
    assert looks >= 3
    assert math.isclose(now, 0.001 + STORED)
    assert machine.swallowed == 1
    assert machine.tick(seen(2, alive=True), now=now + 0.001) == ()


def test_an_exception_that_is_handled_again_was_not_stored():
    machine = new()
    machine.tick(seen(), now=0.0)
    machine.tick(seen(1, stored=True), now=0.001)
    machine.tick(seen(1, alive=True), now=0.002)
    assert machine.tick(seen(1, stored=True), now=0.002 + STORED) == ()


def test_a_deferred_stored_exception_keeps_its_bound():
    machine, now, deferred = new(), 0.0, 0
    machine.tick(seen(), now=now)
    while now < 2 * FRAGILE:
        actions = machine.tick(seen(1, stored=True, deferred=deferred, landing=Landing.FRAGILE, ran=now), now=now)
        deferred += len(actions)
        if actions == (Fire(FireReason.OVERDUE),):
            break
        now = machine.deadline
    assert FRAGILE <= now <= FRAGILE + 4 * STORED


def deferred(landing, *, until=100.0, runs=1.0, waits=False, awaited=False):
    """Reached again and again where it must not land, by a thread that runs for a share of the time, or waits."""
    machine, now, deferred, fired = new(), 0.0, 0, []
    while now <= until:
        here = seen(deferred=deferred, landing=landing, waited=waits * deferred, ran=runs * now, awaited=awaited)
        for action in machine.tick(here, now=now):
            assert isinstance(action, Fire)
            fired.append((now, action.why))
            deferred += 1
            if action.why is FireReason.OVERDUE:
                return machine, fired
        now = machine.deadline
    raise AssertionError(f"never fired all the same: {fired[-1]}")


def test_an_interrupt_is_deferred_with_backoff_and_jitter_for_a_bounded_time():
    for landing, most in ((Landing.FRAGILE, FRAGILE), (Landing.ACQUIRES, FRAGILE), (Landing.CLEANUP, UNWIND)):
        machine, fired = deferred(landing)
        last, why = fired[-1]
        assert why is FireReason.OVERDUE
        assert why.insists
        assert most <= last <= most + 10 * MAX_STEP
        assert machine.deferring
        assert machine.deferred_for(now=last) >= most
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(deferred(Landing.CLEANUP)[1])]
    assert sum(gaps[2:12]) < sum(gaps[12:22]) < sum(gaps[22:32])
    assert len({round(gap, 6) for gap in gaps[-10:-1]}) > 3


def test_a_thread_that_awaits_a_line_is_hardly_disturbed_and_has_the_same_bound():
    for waits in (False, True):
        _, fired = deferred(Landing.ACQUIRES, awaited=True, waits=waits, runs=not waits)
        gaps = [b - a for (a, _), (b, _) in itertools.pairwise(fired)]
        assert gaps[0] == pytest.approx(2 * REPEAT)
        assert MAX_AWAITED < max(gaps) < 4 * MAX_AWAITED
        assert fired[-1] == (pytest.approx(FRAGILE, abs=3 * MAX_AWAITED), FireReason.OVERDUE)


def test_a_thread_that_hardly_runs_has_more_time_to_move_on():
    """As on a machine with 20 times as many busy processes as cores."""
    _, fired = deferred(Landing.FRAGILE, runs=0.05)
    patient = max(at for at, why in fired if why is FireReason.UNSEEN)
    assert patient == pytest.approx(RUNS * IMPATIENT / 0.05, abs=10 * MAX_STEP)
    assert fired[-1] == (pytest.approx(RUNS * FRAGILE / 0.05, abs=10 * MAX_STEP), FireReason.OVERDUE)


def test_a_thread_that_waits_has_no_more_than_one_that_runs():
    _, fired = deferred(Landing.ACQUIRES, runs=0.0, waits=True)
    assert fired[-1] == (pytest.approx(FRAGILE, abs=10 * MAX_STEP), FireReason.OVERDUE)


def test_a_thread_that_neither_runs_nor_waits_is_interrupted_in_the_end():
    _, fired = deferred(Landing.FRAGILE, runs=0.0)
    assert fired[-1] == (pytest.approx(HOLD, abs=10 * MAX_STEP), FireReason.OVERDUE)
    assert {why for _, why in fired[1:-1]} == {FireReason.UNSEEN}


def test_an_import_puts_it_off_for_as_long_as_it_takes():
    machine = new()
    machine.tick(seen(), now=0.0)
    assert machine.tick(seen(deferred=1, landing=Landing.IMPORT), now=0.001) == ()
    assert machine.tick(seen(deferred=2, landing=Landing.IMPORT), now=10 * HOLD) == ()
    assert machine.tick(seen(deferred=3, landing=Landing.FRAGILE), now=10 * HOLD + 1) == ()
    late = machine.tick(seen(deferred=4, landing=Landing.FRAGILE, ran=FRAGILE), now=10 * HOLD + 1 + FRAGILE)
    assert late == (Fire(FireReason.OVERDUE),)


def test_alternating_reasons_defer_the_interrupt_for_a_bounded_time():
    machine, turn = new(), itertools.cycle((Landing.FRAGILE, Landing.ACQUIRES))
    machine.tick(seen(), now=0.0)
    looks = range(1, int(HOLD / 0.4) + 1)
    fired = [machine.tick(seen(deferred=n, landing=next(turn)), now=n * 0.4) for n in looks]
    assert not any(fired)
    late = machine.tick(seen(deferred=len(looks) + 1, landing=next(turn)), now=HOLD + 0.5)
    assert late == (Fire(FireReason.OVERDUE),)


def test_another_reason_to_put_it_off_has_its_own_time():
    machine = new()
    machine.tick(seen(), now=0.0)
    machine.tick(seen(deferred=1, landing=Landing.IMPORT), now=0.001)
    assert machine.tick(seen(deferred=2, landing=Landing.FRAGILE), now=30.0) == ()
    late = machine.tick(seen(deferred=3, landing=Landing.FRAGILE, ran=FRAGILE), now=30.0 + FRAGILE)
    assert late == (Fire(FireReason.OVERDUE),)


def test_a_reacting_thread_is_not_unblocked_while_the_interrupt_is_deferred():
    machine = new()
    machine.tick(seen(), now=0.0)
    machine.tick(seen(deferred=1, landing=Landing.FRAGILE), now=BLOCKED)
    assert Unblock() not in machine.tick(seen(deferred=1), now=BLOCKED + MAX_STEP)
    assert Unblock() in machine.tick(seen(deferred=1), now=3 * BLOCKED)


def test_a_machine_is_rebuilt_from_its_state():
    machine, fired = deferred(Landing.FRAGILE)
    now, known = fired[-1][0], seen(deferred=len(fired))
    again = InterruptPolicy.from_state(UNWIND, machine.state(now=now), seen=known, now=now, hold=HOLD)
    assert again.state(now=now) == machine.state(now=now)
    again.check()
