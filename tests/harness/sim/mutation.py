"""The tools of this folder on top of a mutant.

`mutated` compiles the changed text, puts it in the place of the shipped module, and loads the checker, the simulation
and the machines anew on top of it, for as long as its context lasts.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from .mutants import MUTANTS

__all__ = ["Tools", "mutated"]

MACHINES: Final = (
    "nvrx_core.inprocess.protocol.decision",
    "nvrx_core.inprocess.protocol.round",
    "nvrx_core.inprocess.interruption.policy",
    "nvrx_core.liveness.lease",
    "nvrx_core.liveness.hang_detector",
    "nvrx_core.fault.retry_limit",
    "nvrx_core.inprocess.protocol.ports",
    "nvrx_core.inprocess.protocol.flows",
    "nvrx_core.inprocess.protocol.death_report",
    "nvrx_core.liveness.awake_clock",
    "nvrx_core.inprocess.monitor.policies",
    "nvrx_core.inprocess.monitor.sibling_ring",
    "nvrx_core.inprocess.monitor.watch",
    "nvrx_core.inprocess.monitor.ports",
    "nvrx_core.inprocess.monitor.judging",
    "nvrx_core.store.keys",
    "nvrx_core.inprocess.coordination.guarded_store",
    "nvrx_core.inprocess.coordination.arrivals",
    "nvrx_core.inprocess.coordination.membership",
    "nvrx_core.inprocess.coordination.housekeeping",
    "nvrx_core.inprocess.coordination.control_store",
    "nvrx_core.inprocess.protocol.join",
    "nvrx_core.inprocess.coordination.joining",
)
"""The modules that are loaded anew: those with mistakes, and what is built on them, in the order of their imports."""


class Tools:
    """The checker, the simulation and the machines, on top of a mutated mistake."""

    def __init__(self) -> None:
        self.checker: Any = importlib.import_module(f"{__package__}.checker")
        self.job: Any = importlib.import_module(f"{__package__}.job")
        self.simulate: Any = importlib.import_module(f"{__package__}.simulate")
        self.machines: Any = importlib.import_module(f"{__package__}.machines")


@contextmanager
def mutated(name: str) -> Iterator[Tools]:
    """The tools on top of the mistake, while the context lasts.

    Raises:
        AssertionError: when the shipped text is no longer there.
    """
    texts = _texts(MUTANTS[name].changes)
    mine = [known for known in sys.modules if known.startswith(f"{__package__}.") and ".test_" not in known]
    before = {known: _take(known) for known in (*MACHINES, *mine) if known in sys.modules}
    try:
        for module in MACHINES:
            if module in texts:
                _load(module, texts[module])
        yield Tools()
    finally:
        for known in [known for known in sys.modules if known in MACHINES or known.startswith(f"{__package__}.")]:
            if ".test_" not in known:
                _take(known)
        sys.modules.update(before)
        for known in MACHINES:
            if known in before:
                _put(known, before[known])


def _texts(changes: tuple[tuple[str, str, str], ...]) -> dict[str, str]:
    texts = dict[str, str]()
    for name, shipped, mistake in changes:
        module = next(each for each in MACHINES if each.endswith(f".{name}"))
        text = texts.get(module) or inspect.getsource(importlib.import_module(module))
        times = text.count(shipped)
        assert times == 1, f"the mutated mistake applies {times} times to {module}: adapt it to\n{shipped}"
        texts[module] = text.replace(shipped, mistake)
    return texts


def _load(name: str, text: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(text, f"<mutated in {name}>", "exec"), module.__dict__)
    _put(name, module)
    return module


def _take(name: str) -> ModuleType:
    """Have the module imported anew by whoever asks for it next."""
    package, _, last = name.rpartition(".")
    vars(sys.modules[package]).pop(last, None)
    return sys.modules.pop(name)


def _put(name: str, module: ModuleType) -> None:
    """Let the package above have the module."""
    package, _, last = name.rpartition(".")
    setattr(importlib.import_module(package), last, module)
