"""Every action that changes what runs says why.

Actions are found where the machines return them: a machine takes the time as the keyword `now`, and answers with a
tuple. A union named `...Action` has those of a machine without a clock. One that is new
has a reason, or it is listed here as one that needs none.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Iterator

import nvrx_launcher
import pytest

import nvrx_core

PROGRAMS = ("__main__", "_program")
REASON = {"reason", "why", "fault", "error", "decision"}
"""Fields that say why; the last three have a reason of their own."""
WITHOUT = frozenset({
    # ask, wait, or count
    "AskGuardian", "AskRanks", "AwaitOthers", "AwaitRound", "AskHolders", "CountArrival", "CountCompletion",
    "GatherEvidence", "QueryPeers", "QueryRoundEvent", "ReadArrivals", "ReadEvent", "ReadMemory", "RunChecks",
    # write down what is so
    "Chunk", "CloseCompleted", "MarkRoundOver", "PutArrival", "ShareEvidence",
    # whose name is the reason: nothing is wrong, a check is overdue
    "KillProbe", "LeaveProbe", "MayJoin",
})  # fmt: skip


def modules() -> Iterator[types.ModuleType]:
    for package in (nvrx_core, nvrx_launcher):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(PROGRAMS) and ".testing" not in found.name:
                yield importlib.import_module(found.name)


def answers(kind: type) -> Iterator[object]:
    """What the methods of a machine return tuples of."""
    for method in vars(kind).values():
        if inspect.isfunction(method) and "now" in (method.__kwdefaults__ or method.__annotations__):
            returned = typing.get_type_hints(method).get("return")
            if typing.get_origin(returned) is tuple:
                yield from typing.get_args(returned)


def kinds_of(answer: object) -> Iterator[type]:
    """The types that an annotation stands for, those below a base class included."""
    if isinstance(answer, types.UnionType):
        for each in typing.get_args(answer):
            yield from kinds_of(each)
    elif isinstance(answer, type):
        yield answer
        for below in answer.__subclasses__():
            yield from kinds_of(below)


def actions() -> dict[str, type]:
    held = [each for module in modules() for each in vars(module).items()]
    unions = [value for name, value in held if name.endswith("Action") and isinstance(value, types.UnionType)]
    machines = {kind for _, kind in held if inspect.isclass(kind) and kind.__module__.startswith("nvrx_")}
    found = {kind for machine in machines for answer in answers(machine) for kind in kinds_of(answer)}
    found |= {kind for union in unions for kind in kinds_of(union)}
    return {
        f"{kind.__module__}.{kind.__name__}": kind
        for kind in sorted(found, key=lambda kind: (kind.__module__, kind.__name__))
        if kind.__module__.startswith("nvrx_") and dataclasses.is_dataclass(kind)
    }


def names(name: str) -> set[str]:
    """The name, and that with its module, as two kinds may have the same."""
    return {name.rpartition(".")[2], ".".join(name.split(".")[-2:])}


ACTIONS = actions()


@pytest.mark.parametrize("name", [name for name in ACTIONS if not names(name) & WITHOUT])
def test_what_changes_what_runs_carries_its_reason(name):
    kind = ACTIONS[name]
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields & REASON or isinstance(vars(kind).get("reason"), property)


def test_what_needs_no_reason_is_an_action():
    assert set().union(*map(names, ACTIONS)) >= WITHOUT


def test_the_actions_of_every_machine_are_found():
    homes = {kind.__module__ for kind in ACTIONS.values()}
    assert homes >= {
        "nvrx_core.inprocess.interruption.policy",
        "nvrx_core.inprocess.monitor.policies", "nvrx_core.inprocess.protocol.round",
        "nvrx_core.liveness.hang_detector", "nvrx_launcher.node_actions",
        "nvrx_launcher.workers.standby_policy",
    }  # fmt: skip
