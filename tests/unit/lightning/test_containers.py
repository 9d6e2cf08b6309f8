"""Containers that steps fill: a restart that leaves something in one is warned of, once, by name."""

from __future__ import annotations

import logging
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
    return module, journal, Containers(SimpleNamespace(callbacks=[journal]), module, OWN)


def test_what_has_the_length_that_it_had_at_the_checkpoint_is_not_warned_of(caplog):
    module, _, containers = begin()
    module.outputs.append(1)
    containers.keep("token")
    module.number = 3
    containers.compare("token")
    containers.compare("of a job before")
    assert caplog.records == []


def test_leftovers_are_named_once_with_what_to_write(caplog):
    module, journal, containers = begin()
    containers.keep("token")
    module.outputs += [1, 2]
    module.head.seen["a"] = 1
    journal.rows.append(1)
    containers.compare("token")
    (record,) = caplog.records
    text = record.getMessage()
    assert record.levelno == logging.WARNING
    assert "module.outputs has 2 items and had 0, module.head.seen has 1 items and had 0, Journal.rows has 1" in text
    assert "Use self.log(..., on_epoch=True)" in text
    containers.compare("token")
    assert len(caplog.records) == 1


def test_without_a_checkpoint_the_lengths_are_those_of_the_begin(caplog):
    module, _, containers = begin()
    module.recent.append(1)
    containers.compare(None)
    assert "module.recent has 1 items and had 0" in caplog.text


def test_the_lengths_of_the_last_checkpoints_are_kept(caplog):
    module, _, containers = begin()
    for number in range(20):
        containers.keep(str(number))
    module.outputs.append(1)
    containers.compare("0")
    assert caplog.records == []
    containers.compare("19")
    assert len(caplog.records) == 1
