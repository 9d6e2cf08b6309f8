"""The keys of the control store: each its own, and none shared between jobs, restarts, calls or rounds."""

import itertools

from nvrx_core.store.keys import LauncherKeys, StoreKeys

OF_ROUND = ("event", "arrived", "completed", "decision", "master", "user")


def all_keys(keys):
    for of_round in map(keys.round, range(-1, 3)):
        yield from (getattr(of_round, name) for name in OF_ROUND)
        yield from (of(member) for of in (of_round.arrival, of_round.arrivals) for member in range(3))
    yield from (of(member) for of in (keys.lease, keys.left) for member in range(-1, 3))


def test_no_two_keys_are_the_same():
    calls = [StoreKeys(*call) for call in itertools.product(("job", "job/1"), (0, 1), (0, 1))]
    found = [key for keys in calls for key in all_keys(keys)]
    assert len(set(found)) == len(found)


def test_a_key_says_whose_it_is():
    keys = StoreKeys("my job", 2, 1)
    assert keys.round(4).arrival(7) == "nvrx/my job/2/1/4/arrival/7"
    assert all(key.startswith("nvrx/my job/2/1/") for key in all_keys(keys))


def test_the_keys_of_an_ended_round_are_all_but_the_user_s_and_the_arrivals():
    keys = StoreKeys("job", 0, 0).round(5)
    assert set(keys.of_all) == {getattr(keys, name) for name in OF_ROUND[:-1]}


def test_what_a_launcher_reads_lies_under_no_generation():
    keys = LauncherKeys("job", 3)
    assert (keys.announce(), keys.entered()) == ("nvrx/job/inprocess/3/announce", "nvrx/job/inprocess/3/round")
