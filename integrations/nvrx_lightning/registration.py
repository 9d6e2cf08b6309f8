"""Registration of the strategies' names, for `Trainer(strategy="ddp_inprocess")`.

Importing `nvrx_lightning` must register the names without importing Lightning, which takes seconds. In a family that is
already imported, the names are registered at once; in one that is imported later, when its strategies have been
imported, by a meta path finder for these two modules that precedes Python's own finders.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from nvrx_lightning.families import FAMILIES

__all__ = ["NAMES", "register"]

NAMES: Final = {
    "ddp_inprocess": "InProcessDDPStrategy",
    "fsdp_inprocess": "InProcessFSDPStrategy",
    "model_parallel_inprocess": "InProcessModelParallelStrategy",
}
"""The registered names and their classes."""


def register() -> None:
    """Register the names in each family, at once or when it is imported."""
    for family in FAMILIES:
        module = sys.modules.get(f"{family}.strategies")
        if module is not None and hasattr(module, "StrategyRegistry"):
            _register_in(family, module)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def _make(name: str, family: str, **arguments: Any) -> Any:
    from nvrx_lightning.strategy import strategy_class

    return strategy_class(NAMES[name], family)(**arguments)


def _register_in(family: str, module: ModuleType) -> None:
    for name, kind in NAMES.items():
        make = functools.partial(_make, name, family)
        module.StrategyRegistry.register(name, make, description=f"nvrx_lightning.{kind}", override=True)


class _AfterImport(importlib.abc.MetaPathFinder):
    """A meta path finder that registers the names when one of the two modules has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a family's strategies, with a loader that registers; None for all other modules."""
        family = name.removesuffix(".strategies")
        if family not in FAMILIES or family == name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(family, spec.loader)
        return spec


class _Registering(importlib.abc.Loader):
    def __init__(self, family: str, loader: importlib.abc.Loader) -> None:
        self._family, self._loader = family, loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register_in(self._family, module)
