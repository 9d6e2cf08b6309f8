"""When a monitor process uses the store: the lease at its interval, a probe between two leases that are far apart."""

from nvrx_core.inprocess.monitor.watch import StoreSchedule, StoreTask

MOVE, PROBE, WATCH = StoreTask.MOVE_LEASE, StoreTask.PROBE, StoreTask.WATCH_SIBLINGS


def tasks(schedule: StoreSchedule, until: float) -> list[tuple[float, tuple[StoreTask, ...]]]:
    """What a process does that begins at 0 and wakes at each deadline."""
    now, done = 0.0, []
    while now <= until:
        done.append((now, schedule.due(now=now)))
        now = schedule.deadline
    return done


def test_the_first_turn_does_everything():
    assert StoreSchedule(heartbeat=1.0, probe=2.5, siblings=3.0).due(now=100.0) == (MOVE, WATCH)


def test_nothing_is_due_before_the_deadline():
    schedule = StoreSchedule(heartbeat=1.0, probe=2.5, siblings=3.0)
    schedule.due(now=0.0)
    assert schedule.deadline == 1.0
    assert schedule.due(now=0.9) == ()


def test_siblings_are_watched_with_a_use_of_the_store():
    schedule = StoreSchedule(heartbeat=1.0, probe=2.5, siblings=2.5)
    assert tasks(schedule, 4.0) == [(0, (MOVE, WATCH)), (1, (MOVE,)), (2, (MOVE,)), (3, (MOVE, WATCH)), (4, (MOVE,))]


def test_between_leases_that_are_far_apart_the_store_is_probed():
    schedule = StoreSchedule(heartbeat=6.0, probe=2.5, siblings=100.0)
    found = [(now, names[0]) for now, names in tasks(schedule, 12.0)]
    assert found == [(0, MOVE), (2.5, PROBE), (5.0, PROBE), (6.0, MOVE), (8.5, PROBE), (11.0, PROBE), (12.0, MOVE)]


def test_after_a_pause_one_turn_makes_up_for_all():
    schedule = StoreSchedule(heartbeat=1.0, probe=2.5, siblings=3.0)
    schedule.due(now=0.0)
    assert schedule.due(now=600.0) == (MOVE, WATCH)
    assert schedule.deadline == 601.0
