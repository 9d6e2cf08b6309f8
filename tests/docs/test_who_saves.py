"""The function of the guide by which each machine has one writer, on the ranks of two machines."""

import pathlib
import re
import socket

import pytest
import torch.distributed as dist

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "how-to" / "plain-pytorch.md"
(CODE,) = re.findall(
    r"^```python\n((?:(?!```).)*?def saves_on_this_machine.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize(
    ("hosts", "writers"),
    [("aabb", [0, 2]), ("abb", [0, 1]), ("baab", [0, 1]), ("a", [0])],
    ids=["at the start", "after the loss of rank 0", "mixed", "one rank"],
)
def test_the_lowest_rank_of_each_machine_saves(monkeypatch, hosts, writers):
    exec(CODE, space := {})
    monkeypatch.setattr(dist, "get_world_size", lambda: len(hosts))
    monkeypatch.setattr(dist, "all_gather_object", lambda found, own: found.__setitem__(slice(None), hosts))
    saving = []
    for rank, host in enumerate(hosts):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        saving += [rank] * space["saves_on_this_machine"]()
    assert saving == writers
