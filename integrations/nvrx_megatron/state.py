"""Megatron's global state: what it was before the first iteration, and how to return to it.

Megatron's own functions do not reset all of it: they leave process groups, lists of global ranks, counters and the
client of the rank monitor. So the plain values of the modules concerned are captured before the first iteration, and
put back after each.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import socket
import sys
import types
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from nvrx_megatron import internals
from nvrx_megatron.installed import Piece

__all__ = ["GlobalState", "attempt", "drop_state", "state_report", "teardown_pieces"]

log = logging.getLogger("nvrx_megatron")

_PLAIN: Final = (type(None), bool, int, float, str, bytes, tuple, frozenset, enum.Enum)
_CONTAINERS: Final = (list, dict, set, deque)
_DEPTH: Final = 3


class GlobalState:
    """A snapshot of the plain values and containers among the globals of some modules.

    Instances, functions, classes and modules among the globals are left as they are.

    Args:
        values: module name: global name: the value; a container is a copy.
    """

    def __init__(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        self._values = values

    @classmethod
    def capture(cls, modules: Iterable[str] = (*internals.CORE_STATE, *internals.TRAINING_STATE)) -> Self:
        """Capture those of the modules that are imported."""
        found = {name: module for name in modules if (module := internals.loaded(name)) is not None}
        return cls({name: _captured(vars(module)) for name, module in found.items()})

    def restore(self) -> list[str]:
        """Restore the values; return the names of those that had changed."""
        changed = []
        for name, values in self._values.items():
            space = vars(sys.modules[name])
            for key, before in values.items():
                now = space.get(key)
                if now is not before and (type(now) is not type(before) or now != before):
                    changed.append(f"{name}.{key}")
                    _put_back(space, key, before)
        return changed


def _captured(space: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: type(value)(value) if isinstance(value, _CONTAINERS) else value
        for key, value in space.items()
        if not key.startswith("__") and type(value) in (*_PLAIN, *_CONTAINERS)
    }


def _put_back(space: dict[str, Any], key: str, before: Any) -> None:
    """Restore a value; a container keeps its identity, because other modules may have imported it."""
    now: Any = space.get(key)
    if not isinstance(before, _CONTAINERS) or type(now) is not type(before):
        space[key] = type(before)(before) if isinstance(before, _CONTAINERS) else before
        return
    now.clear()
    (now.update if isinstance(now, dict | set) else now.extend)(before)


def teardown_pieces() -> list[Piece]:
    """Return what of the state of a run a restart drops, and what it does not."""
    functions, modules, experts = (
        ", ".join(names) for names in (internals.destroyers_gone(), internals.state_gone(), internals.trackers_gone())
    )
    stragglers = "" if hasattr(internals.straggler_detector(), "configured") else "megatron.core.utils.__straggler__"
    return [
        Piece("a restart drops the global state", "a restart keeps what a function of Megatron frees", functions),
        Piece("restores that of its modules", "a restart keeps values that the interrupted run has set", modules),
        Piece("drops the losses of its step", "losses of experts are logged doubled after a restart", experts),
        Piece("frees the detector of stragglers", "the detector of stragglers keeps its rank and its port", stragglers),
    ]


def drop_state(before: GlobalState) -> None:
    """Drop the state of a run: first by Megatron's own functions, then the state that they leave."""
    close_client()
    for name, destroy in internals.destroyers():
        attempt(name, destroy)
    for _, owner, attribute, empty in internals.accumulated():
        _empty(owner, attribute, empty)
    attempt("the detector of stragglers", forget_straggler_detector)
    before.restore()


def forget_straggler_detector() -> None:
    """Let the next iteration configure the detector, with the rank it has then; the port of its controller is freed."""
    detector = internals.straggler_detector()
    if detector is None or not detector.configured:
        return
    type(detector)._configured = False
    listener, detector.sock = getattr(detector, "sock", None), None
    if listener is not None:
        with contextlib.suppress(OSError):  # it may not listen
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _empty(owner: Any, attribute: str, empty: Any) -> None:
    """Empty a container in place, because other modules may have imported it; replace any other value."""
    value = getattr(owner, attribute)
    if isinstance(value, _CONTAINERS):
        value.clear()
    else:
        setattr(owner, attribute, empty)


def close_client() -> None:
    """Close Megatron-LM's client of the rank monitor; the next iteration creates its own."""
    client = internals.ft_client()
    if client is not None:
        attempt("the client of the rank monitor", client.shutdown_workload_monitoring)


def attempt(name: str, step: Any, *arguments: Any) -> bool:
    """Run a step of a teardown; a failure is logged and does not keep the following steps from running."""
    try:
        step(*arguments)
    except Exception:  # boundary: Megatron's own teardown, of a state that was interrupted anywhere
        log.exception("%s failed; the restart goes on", name)
        return False
    return True


def state_report() -> list[str]:
    """Return the globals of Megatron's modules, and attributes of their classes, that hold process groups or tensors.

    Each is a line, `module.name: 2 process group(s), 1 tensor(s)`. After a restart's `finalize` the list should be
    empty; any entry is left over from the interrupted iteration.
    """
    import torch
    import torch.distributed as dist

    kinds = {"process group(s)": dist.ProcessGroup, "tensor(s)": torch.Tensor}
    lines = []
    for name, module in sorted(sys.modules.items()):
        if name.startswith("megatron.") and isinstance(module, types.ModuleType):
            for key, value in _globals(module):
                held = {what: _count(value, kind, _DEPTH) for what, kind in kinds.items()}
                if any(held.values()):
                    lines.append(f"{name}.{key}: " + ", ".join(f"{held[what]} {what}" for what in held if held[what]))
    return lines


def _globals(module: types.ModuleType) -> list[tuple[str, Any]]:
    """Return what the module has defined, and the containers and objects of its classes.

    `__builtins__` alone has a hundred times as many values; a tensor of a class is its constant.
    """
    import torch

    found = [(key, value) for key, value in list(vars(module).items()) if not key.startswith("__")]
    classes = [value for _, value in found if isinstance(value, type) and value.__module__ == module.__name__]
    return found + [
        (f"{each.__name__}.{key}", value)
        for each in dict.fromkeys(classes)
        for key, value in list(vars(each).items())
        if not key.startswith("__") and not isinstance(value, torch.Tensor)
    ]


def _count(value: Any, kind: type, depth: int) -> int:
    """Count the objects of a kind in containers and in instances of Megatron's classes."""
    if isinstance(value, kind):
        return 1
    if depth == 0:
        return 0
    if isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, list | tuple | set):
        parts = list(value)
    elif type(value).__module__.startswith("megatron."):
        parts = list(getattr(value, "__dict__", {}).values())
    else:
        return 0
    return sum(_count(part, kind, depth - 1) for part in parts)
