"""The keys of the control store: each its own, and none shared between jobs, restarts, calls or rounds."""

import itertools

from nvrx_core.store.keys import Keys

OF_ROUND = ("event", "arrived", "completed", "decision", "master", "user")


def all_keys(keys):
    yield from (getattr(keys, name)(iteration) for name in OF_ROUND for iteration in range(-1, 3))
    yield from (keys.arrival(iteration, member) for iteration in range(-1, 3) for member in range(3))
    yield from (of(member) for of in (keys.lease, keys.left) for member in range(-1, 3))


def test_no_two_keys_are_the_same():
    calls = [Keys(*call) for call in itertools.product(("job", "job/1"), (0, 1), (0, 1))]
    found = [key for keys in calls for key in all_keys(keys)]
    assert len(set(found)) == len(found)


def test_a_key_says_whose_it_is():
    keys = Keys("my job", 2, 1)
    assert keys.arrival(4, 7) == "nvrx/my job/2/1/4/arrival/7"
    assert all(key.startswith("nvrx/my job/2/1/") for key in all_keys(keys))


def test_the_keys_of_an_ended_round_are_all_but_the_user_s():
    keys = Keys("job", 0, 0)
    ended = set(keys.round(5, 3))
    assert ended == {getattr(keys, name)(5) for name in OF_ROUND[:-1]} | {keys.arrival(5, m) for m in range(3)}


def test_the_keys_that_a_completed_call_leaves_are_of_its_first_and_last_rounds():
    keys = Keys("job", 0, 0)
    rest = keys.rest(7, 2)
    assert len(set(rest)) == len(rest)
    rounds = {key for k in (-1, 5, 6, 7) for key in keys.round(k, 2)}
    assert set(rest) == rounds | {of(member) for of in (keys.lease, keys.left) for member in range(2)} | {keys.gone()}
    assert set(keys.round(0, 2)) < set(keys.rest(0, 2))
