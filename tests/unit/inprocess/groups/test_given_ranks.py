"""The rank and the world size that a function passes to `init_process_group`, against those of the iteration."""

import pytest

from nvrx_core.errors import RestartAbort
from nvrx_core.inprocess.groups.rendezvous import GivenRanks, ranks_in


def in_iteration(monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


@pytest.mark.parametrize("given", [(None, None), (1, 2), (0, 1), (1, None), (None, 2)])
def test_those_of_the_iteration_and_those_of_a_part_of_it_are_accepted(monkeypatch, given):
    in_iteration(monkeypatch, 1, 2)
    GivenRanks(1, 2).check(*given, 0)


@pytest.mark.parametrize(
    ("now", "given", "told"),
    [
        ((1, 2), (2, 3), "rank=2, world_size=3"),
        ((0, 3), (2, 3), "rank=2, world_size=3"),
        ((1, 2), (1, 3), "rank=1, world_size=3"),  # rank 0 is lost, the rank is read anew: each rank waits for rank 2
        ((1, 2), (None, 3), "world_size=3"),
        ((1, 2), (2, None), "rank=2"),
    ],
)
def test_those_of_the_start_are_refused_after_they_have_changed(monkeypatch, now, given, told):
    in_iteration(monkeypatch, 2, 3)
    ranks = GivenRanks(2, 3)
    in_iteration(monkeypatch, *now)
    with pytest.raises(RestartAbort, match=rf"\({told}\): in iteration 4 this is rank {now[0]} of {now[1]}"):
        ranks.check(*given, 4)


@pytest.mark.parametrize("given", [(1, 2), (2, 4), (0, 1), (None, 2), (1, None), (None, None)])
def test_others_are_accepted_after_they_have_changed(monkeypatch, given):
    in_iteration(monkeypatch, 2, 3)
    ranks = GivenRanks(2, 3)
    in_iteration(monkeypatch, 1, 2)
    ranks.check(*given, 1)


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("env://", (None, None)),
        ("env://?rank=1", (1, None)),
        ("env://?world_size=2", (None, 2)),
        ("tcp://127.0.0.1:1?rank=0&world_size=1", (0, 1)),
    ],
)
def test_what_a_rendezvous_is_given_is_in_its_url(url, given):
    assert ranks_in(url) == given


def test_several_ranks_without_variables_are_refused_and_the_missing_ones_named(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    ranks = GivenRanks(0, 1)
    in_iteration(monkeypatch, 0, 1)  # the wrapper sets them for the iteration
    ranks.check(0, 1, 0)
    with pytest.raises(RestartAbort, match="RANK, WORLD_SIZE, MASTER_PORT are not set") as refused:
        ranks.check(1, 4, 0)
    assert "os.environ['RANK'] = '1', os.environ['WORLD_SIZE'] = '4'" in str(refused.value)
