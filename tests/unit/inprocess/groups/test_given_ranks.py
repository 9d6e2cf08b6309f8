"""The rank and the world size that a function passes to `init_process_group`, against those of the iteration."""

import pytest

from nvrx_core.errors import RestartAbort
from nvrx_core.inprocess.groups.given_ranks import GivenRanks


def in_iteration(monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


@pytest.mark.parametrize("url", ["env://", "env://?rank=1&world_size=2", "tcp://127.0.0.1:1?rank=0&world_size=1"])
def test_those_of_the_iteration_and_those_of_a_part_of_it_are_accepted(monkeypatch, url):
    in_iteration(monkeypatch, 1, 2)
    GivenRanks(1, 2).check(url)


@pytest.mark.parametrize("now", [(1, 2), (0, 3)])
def test_those_of_the_start_are_refused_after_they_have_changed(monkeypatch, now):
    in_iteration(monkeypatch, 2, 3)
    ranks = GivenRanks(2, 3)
    in_iteration(monkeypatch, *now)
    with pytest.raises(RestartAbort, match=f"after the restart this is rank {now[0]} of {now[1]}"):
        ranks.check("env://?rank=2&world_size=3")


def test_several_ranks_without_variables_are_refused_and_the_missing_ones_named(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    ranks = GivenRanks(0, 1)
    in_iteration(monkeypatch, 0, 1)  # the wrapper sets them for the iteration
    ranks.check("env://?rank=0&world_size=1")
    with pytest.raises(RestartAbort, match="RANK, WORLD_SIZE, MASTER_PORT are not set") as refused:
        ranks.check("env://?rank=1&world_size=4")
    assert "os.environ['RANK'] = '1', os.environ['WORLD_SIZE'] = '4'" in str(refused.value)
