"""Faults in ranks that are chosen at random."""

import random

import pytest

from nvrx_core.testing import InjectedFault, random_faults
from nvrx_core.testing.dispatch import Fault, maybe_raise_workload_exception
from nvrx_core.testing.random_faults import NO_DEVICE, choose, inject_fault


def chosen(seed, world=8, counts=(1, 3), keep_alive=1):
    return choose(random.Random(seed), range(world)[keep_alive:], counts, NO_DEVICE)


def test_all_ranks_choose_the_same():
    assert all(chosen(seed) == chosen(seed) for seed in range(50))
    assert len({tuple(chosen(seed)) for seed in range(50)}) > 10


def test_as_many_ranks_as_wanted_get_a_fault_and_the_first_ones_none():
    for seed in range(100):
        targets = chosen(seed, keep_alive=3)
        assert 1 <= len(targets) <= 3
        assert min(targets) >= 3
    assert {len(chosen(seed, keep_alive=3)) for seed in range(100)} == {1, 2, 3}
    assert len(chosen(0, world=2, counts=(5, 5))) == 1, "no more than may get one"
    assert chosen(0, counts=(0, 0)) == {}


def test_a_fault_needs_no_device_unless_it_is_asked_for():
    faults = {fault for seed in range(300) for fault, _ in chosen(seed).values()}
    assert faults == set(Fault) - {Fault.GPU_ERROR, Fault.GPU_SLEEP}


@pytest.fixture
def place(monkeypatch):
    return lambda rank, world: monkeypatch.setattr(random_faults, "_place", lambda: (rank, world))


def test_a_rank_that_is_chosen_gets_its_fault_after_the_delay(place):
    told = []
    place(1, 2)
    timer = inject_fault((Fault.WORKLOAD_EXC,), delay=(0.01, 0.02), seed=7, callback=lambda: told.append("now"))
    assert 0.01 <= timer.interval <= 0.02
    timer.join()
    assert told == ["now"]
    with pytest.raises(InjectedFault):
        maybe_raise_workload_exception()


def test_a_rank_that_is_kept_alive_gets_none(place):
    place(0, 2)
    assert inject_fault((Fault.SIGKILL,), seed=7) is None
    place(1, 4)
    assert inject_fault((Fault.SIGKILL,), keep_alive=2, seed=7) is None


@pytest.mark.parametrize(
    ("name", "value"), [("num_faults", (2, 1)), ("num_faults", -1), ("delay", -1.0), ("keep_alive", -1), ("faults", ())]
)
def test_what_no_rank_can_get_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        inject_fault(**{name: value})


@pytest.fixture
def job(monkeypatch):
    """Sets what a launcher sets for a rank of a job of four."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    return lambda rank: monkeypatch.setenv("RANK", str(rank))


def test_ranks_without_a_process_group_are_those_of_the_environment(job):
    timers = []
    for rank in range(4):
        job(rank)
        timers.append(inject_fault((Fault.WORKLOAD_EXC,), delay=60.0, seed=7))
    (timer,) = filter(None, timers)
    timer.cancel()
    timer.join()
    assert timers[0] is None


def test_several_ranks_without_a_process_group_need_a_seed(job):
    job(1)
    with pytest.raises(ValueError, match="seed"):
        inject_fault((Fault.WORKLOAD_EXC,))
