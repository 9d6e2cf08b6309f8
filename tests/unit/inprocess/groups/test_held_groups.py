"""The groups of a function are kept: those of torch at no cost, destroyed ones within a budget of bytes."""

import threading
import weakref

import pytest

from nvrx_core.inprocess.groups import observer as held_groups
from nvrx_core.inprocess.groups.observer import BUDGET, FEW, FIRST_SWEEP, HeldGroups, bytes_of


class Group:
    """A group of torch's."""

    def __init__(self):
        MADE.add(self)


MADE = weakref.WeakSet[Group]()


@pytest.fixture
def registered():
    return set()


@pytest.fixture
def held(registered):
    held = HeldGroups(lambda group: id(group) in registered)
    yield held
    held.clear()
    held.wait()


def make(held, ranks=2):
    group = Group()
    held.add((group, None), ranks)
    return id(group)


def test_groups_that_torch_keeps_are_all_held(held, registered):
    for _ in range(5_000):
        registered.add(make(held))
    assert len(held) == len(MADE) == 5_000


@pytest.mark.parametrize("ranks", [2, 64, 1024])
def test_destroyed_groups_are_held_within_the_budget(held, ranks):
    for _ in range(1_000):
        make(held, ranks)
    within = BUDGET // bytes_of(ranks)
    assert within <= len(held) <= max(FIRST_SWEEP, 2 * within + 1)
    assert len(MADE) == len(held)


def test_the_last_of_the_destroyed_groups_are_held_beside_those_of_torch(held, registered, monkeypatch):
    monkeypatch.setattr(held_groups, "BUDGET", 3 * bytes_of(2))
    made = [make(held) for _ in range(FIRST_SWEEP - 1)]
    registered.add(made[0])
    made.append(make(held))
    assert [id(created[0]) for created, _ in held._held] == [made[0], *made[-3:]]


def test_a_group_is_looked_at_a_bounded_number_of_times(registered):
    looked = []
    held = HeldGroups(lambda group: not looked.append(group))
    for _ in range(4_096):
        make(held)
    assert len(looked) < 2 * 4_096
    held.clear()
    held.wait()


@pytest.mark.parametrize("groups", [1, FEW, 200])
def test_all_are_released_by_other_threads(held, registered, groups):
    released_by = []
    for _ in range(groups):
        registered.add(make(held))
    for group in MADE:
        weakref.finalize(group, lambda: released_by.append(threading.get_ident()))
    del group
    held.clear()
    held.wait()
    assert (len(held), len(MADE), len(released_by)) == (0, 0, groups)
    assert threading.get_ident() not in released_by


def test_all_are_released_where_no_thread_can_be_started(held, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    for _ in range(50):
        make(held)
    monkeypatch.setattr(threading.Thread, "start", start)
    held.clear()
    held.wait()
    assert len(MADE) == 0
