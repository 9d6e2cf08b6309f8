"""Megatron's global state: captured, put back, and reported."""

from __future__ import annotations

import socket
import sys
import types
from collections import deque
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from nvrx_megatron import internals
from nvrx_megatron.state import GlobalState, attempt, close_client, drop_state, forget_straggler_detector, state_report


@pytest.fixture
def module(monkeypatch):
    module = types.ModuleType("megatron.stand_in")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def capture():
    return GlobalState.capture(["megatron.stand_in", "megatron.not_there"])


def test_plain_values_and_containers_are_put_back(module):
    module.count, module.group, module.ranks, module.names = 0, None, [1], {"a": 1}
    module.calls, module.kinds = deque([1]), {1}
    ranks, before = module.ranks, capture()
    module.count, module.group, module.names = 7, object(), None
    module.ranks.append(2)
    module.calls.clear()
    module.kinds.add(2)
    assert sorted(name.rpartition(".")[2] for name in before.restore()) == [
        "calls", "count", "group", "kinds", "names", "ranks",
    ]  # fmt: skip
    assert (module.count, module.group, module.ranks, module.names) == (0, None, [1], {"a": 1})
    assert (module.calls, module.kinds) == (deque([1]), {1})
    assert module.ranks is ranks, "other modules may have imported it"


def test_what_is_no_value_is_left_alone(module):
    module.function, module.instance, module.__doc__ = len, object(), "text"
    before, instance = capture(), object()
    module.function, module.instance, module.__doc__, module.later = max, instance, "another", 1
    before.restore()
    assert (module.function, module.instance, module.__doc__, module.later) == (max, instance, "another", 1)


def test_it_is_put_back_each_time(module):
    module.ranks = []
    before = capture()
    for _ in range(2):
        module.ranks.append(1)
        before.restore()
        assert module.ranks == []
    assert before.restore() == []


def test_globals_with_process_groups_are_reported(module, monkeypatch):
    class Group:
        pass

    monkeypatch.setattr(dist, "ProcessGroup", Group)
    module.one, module.nested, module.none = Group(), {"a": [Group(), (Group(),)]}, [1]
    module.__builtins__ = {"no global of the module": Group()}
    mine = [line for line in state_report() if line.startswith("megatron.stand_in")]
    assert mine == ["megatron.stand_in.one: 1 process group(s)", "megatron.stand_in.nested: 2 process group(s)"]


def test_what_classes_and_objects_of_megatron_hold_is_reported(module):
    class Helper:
        tracker: ClassVar = {"loss": torch.zeros(2)}

        def __init__(self):
            self.values = [torch.zeros(1)]

    Helper.__module__ = module.__name__
    module.Helper, module.one, module.other = Helper, Helper(), types.SimpleNamespace(values=torch.zeros(1))
    mine = [line for line in state_report() if line.startswith("megatron.stand_in")]
    assert mine == ["megatron.stand_in.one: 1 tensor(s)", "megatron.stand_in.Helper.tracker: 1 tensor(s)"]


def test_what_a_run_adds_up_is_emptied(module, monkeypatch):
    class Helper:
        tracker: ClassVar = {"loss": 1.0}

    tracker = Helper.tracker
    module.Helper, module.metrics, module.active = Helper, object(), True
    names = (("Helper.tracker", None), ("metrics", None), ("active", False), ("Gone.tracker", None))
    listed = [(module.__name__, name, empty) for name, empty in names]
    monkeypatch.setattr(internals, "ACCUMULATED", (*listed, ("megatron.not_there", "tracker", None)))
    drop_state(GlobalState({}))
    assert (Helper.tracker, module.metrics, module.active) == ({}, None, False)
    assert Helper.tracker is tracker


def test_a_step_that_fails_is_logged_and_the_next_one_follows(caplog):
    done = []
    assert not attempt("first", lambda: 1 / 0)
    assert attempt("second", done.append, 1)
    assert done == [1]
    assert caplog.messages == ["first failed; the restart goes on"]


def test_megatrons_own_functions_run_before_values_are_put_back(module, monkeypatch):
    module.count = 0
    before, seen = capture(), []
    module.count = 3
    monkeypatch.setattr(internals, "destroyers", lambda: [("destroy", lambda: seen.append(module.count))])
    drop_state(before)
    assert (seen, module.count) == ([3], 0)


def test_the_client_of_the_rank_monitor_is_closed(monkeypatch):
    closed = []
    client = types.SimpleNamespace(shutdown_workload_monitoring=lambda: closed.append(True))
    monkeypatch.setattr(internals, "ft_client", lambda: client)
    close_client()
    assert closed == [True]


class Detector:
    _configured = True
    sock = None

    @property
    def configured(self):
        return type(self)._configured


def test_the_detector_of_stragglers_is_configured_anew(monkeypatch):
    """With the rank of the next iteration; its controller listens on the port again."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    kind = type("StragglerDetector", (Detector,), {})
    detector = kind()
    detector.sock = listener
    monkeypatch.setitem(sys.modules, "megatron.core.utils", types.SimpleNamespace(__straggler__=detector))
    for _ in range(2):
        forget_straggler_detector()
    assert (kind._configured, detector.sock, listener.fileno()) == (False, None, -1)
    kind._configured, detector.sock = True, socket.socket()
    forget_straggler_detector()
    assert detector.sock is None


def test_without_a_detector_of_stragglers_nothing_is_done(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron.core.utils", types.SimpleNamespace())
    forget_straggler_detector()
