"""The silence of others is counted while their observer is awake."""

from __future__ import annotations

from nvrx_launcher.rendezvous.lease import ObservedLeases


def look(leases: ObservedLeases, at: float, took: float = 0.0, **values: str) -> tuple[int, ...]:
    leases.begin(now=at)
    leases.observe({int(name[1:]): value for name, value in values.items()}, now=at + took)
    return leases.stale(now=at + took)


def test_a_holder_that_is_silent_is_lost_and_one_that_is_not_looked_at_is_forgotten() -> None:
    leases = ObservedLeases(1.0, 5.0)
    assert [look(leases, float(at), n1="a", n2=str(at)) for at in range(6)] == [(), (), (), (), (), (1,)]
    assert leases.stale(now=5.0, share=0.2) == (1,)
    assert look(leases, 6.0, n2="5") == ()


def test_a_late_look_and_a_slow_one_count_as_the_observers_own_silence() -> None:
    leases = ObservedLeases(1.0, 5.0)
    look(leases, 0.0, n1="a")
    assert look(leases, 60.0, n1="a") == ()
    assert look(leases, 61.0, took=60.0, n1="a") == ()
    assert [look(leases, 121.0 + at, n1="a") for at in range(1, 5)] == [(), (), (1,), (1,)]


def test_an_observer_that_is_late_each_time_still_finds_who_is_lost() -> None:
    leases = ObservedLeases(1.0, 5.0)
    looks = [look(leases, 3.0 * at, n1="a") for at in range(8)]
    assert looks[-1] == (1,)
