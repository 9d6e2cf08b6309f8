"""Containers that steps fill: a restart that leaves something in one is warned of, once, by name."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import torch
from nvrx_lightning.restart.containers import Containers


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = Head()
        self.outputs: list[int] = []
        self.recent = deque[int](maxlen=2)
        self.number = 0


class Journal:
    def __init__(self) -> None:
        self.rows: list[int] = []


OWN = frozenset(vars(torch.nn.Module()))


def begin() -> tuple[Module, Journal, Containers]:
    module, journal = Module(), Journal()
    containers = Containers(SimpleNamespace(callbacks=[journal]), module, OWN)
    module.made: list[int] = [1]  # type: ignore[misc]  # in `setup`
    containers.begin()
    return module, journal, containers


def test_what_has_the_length_that_it_had_at_the_checkpoint_is_not_warned_of():
    module, _, containers = begin()
    module.outputs.append(1)
    containers.keep("token")
    module.number = 3
    assert containers.compare("token") == {}
    assert containers.compare("of a job before") == {}


def test_leftovers_are_named_once():
    module, journal, containers = begin()
    containers.keep("token")
    module.outputs += [1, 2]
    module.head.seen["a"] = 1
    journal.rows.append(1)
    assert containers.compare("token") == {
        "module.outputs": "module.outputs has 2 items and had 0",
        "module.head.seen": "module.head.seen has 1 items and had 0",
        "Journal.rows": "Journal.rows has 1 items and had 0",
    }
    assert containers.compare("token") == {}


def test_without_a_checkpoint_the_lengths_are_those_of_the_first_training():
    module, _, containers = begin()
    containers.begin()
    assert containers.compare(None) == {}
    module.recent.append(1)
    containers.begin()
    assert containers.compare(None) == {"module.recent": "module.recent has 1 items and had 0"}


def test_what_is_in_containers_of_a_container_counts():
    module, _, containers = begin()
    module.outputs = [[], []]  # type: ignore[list-item]
    module.head.seen = {"a": [1]}  # type: ignore[dict-item]
    module.recent = deque([[1] * 9] * 2000)
    containers.keep("token")
    module.outputs[1].append(1)  # type: ignore[attr-defined]
    module.head.seen["a"].append(1)  # type: ignore[attr-defined]
    assert containers.compare("token") == {
        "module.outputs": "module.outputs has 1 items and had 0",
        "module.head.seen": "module.head.seen has 2 items and had 1",
    }


def test_the_lengths_of_the_last_checkpoints_are_kept():
    module, _, containers = begin()
    for number in range(20):
        containers.keep(str(number))
    module.outputs.append(1)
    assert containers.compare("0") == {}
    assert "module.outputs" in containers.compare("19")
