"""Tools to test a job against faults; no product code imports this package.

| module | content |
|---|---|
| `faults` | `inject`, which breaks this process by a fault of a kind in `fault_kinds`; `injectors` do it |
| `schedule` | the faults to inject, by rank, iteration, and step or failpoint |
| `failpoints` | the faults of a schedule at failpoints, in the rank or in its monitor process |
| `injection` | `inject_fault`: one fault, immediately or after a delay |
| `fakes` | a clock, a store and a `CallWrapper` for tests without processes |
| `ranks` | the result of a rank assignment for each rank |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nvrx_core.testing import failpoints
    from nvrx_core.testing.fakes import FakeCallWrapper, ManualClock, MemoryStore
    from nvrx_core.testing.faults import Delay, FaultKind, InjectedFault, inject
    from nvrx_core.testing.injection import inject_fault
    from nvrx_core.testing.ranks import FakeRanks
    from nvrx_core.testing.schedule import FailpointTrigger, Point, Schedule

__all__ = [
    "Delay",
    "FailpointTrigger",
    "FakeCallWrapper",
    "FakeRanks",
    "FaultKind",
    "InjectedFault",
    "ManualClock",
    "MemoryStore",
    "Point",
    "Schedule",
    "failpoints",
    "inject",
    "inject_fault",
]  # fmt: skip

_HOMES: Final = {
    "fakes": ("FakeCallWrapper", "ManualClock", "MemoryStore"),
    "faults": ("Delay", "FaultKind", "InjectedFault", "inject"),
    "injection": ("inject_fault",),
    "ranks": ("FakeRanks",),
    "schedule": ("FailpointTrigger", "Point", "Schedule"),
}


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        """Import a module on first access to it or to one of its names."""
        home = next((module for module, names in _HOMES.items() if name in names), name)
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{__name__}.{home}")
        return module if home == name else getattr(module, name)
