"""The two names under which Lightning is installed: `lightning.pytorch` and `pytorch_lightning`.

Both are the same code, with separate classes: a strategy of one is refused by the other's Trainer. A family is the name
of such a package. Its classes are looked up by name when they are needed, so that importing nvrx_lightning imports
neither package.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any, Final

__all__ = ["FAMILIES", "family_of", "imported", "lookup", "preferred"]

FAMILIES: Final = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}
"""Each family, and the Fabric package that it builds on."""


def family_of(kind: type) -> str:
    """Return the family of a class.

    Raises:
        TypeError: when it does not derive from a class of Lightning.
    """
    for each in kind.__mro__:
        for family in FAMILIES:
            if each.__module__.startswith(f"{family}."):
                return family
    for each in kind.__mro__:
        if each.__module__.startswith(tuple(f"{fabric}." for fabric in FAMILIES.values())):
            raise TypeError(
                f"{kind.__qualname__} is a class of Lightning Fabric, whose training loop is yours: wrap the function "
                "that has the loop with nvrx_core.inprocess.Wrapper, and create the Fabric in it"
            )
    raise TypeError(
        f"{kind.__qualname__} is no class of Lightning: derive it from lightning.pytorch or pytorch_lightning"
    )


def imported() -> list[str]:
    """Return the families that this process has imported."""
    return [family for family in FAMILIES if family in sys.modules]


def preferred() -> str:
    """Return the default family: the one that is imported, else the one that is installed.

    Raises:
        ImportError: when none is installed.
    """
    found = imported() or [each for each in FAMILIES if importlib.util.find_spec(each.partition(".")[0]) is not None]
    if not found:
        raise ImportError("Lightning is not installed: pip install 'lightning>=2.5,<3'")
    return found[0]


def lookup(family: str, path: str) -> Any:
    """Return `module.name` of a family, such as `callbacks.Checkpoint`; a `fabric.` prefix selects its Fabric.

    Raises:
        ImportError: when the module or the name does not exist; the message names it.
    """
    package = FAMILIES[family] if path.startswith("fabric.") else family
    module, _, name = f"{package}.{path.removeprefix('fabric.')}".rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    if found is None:
        raise ImportError(f"{module} has no {name}: this version of Lightning is not supported (lightning>=2.5,<3)")
    return found
