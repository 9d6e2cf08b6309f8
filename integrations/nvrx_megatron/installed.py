"""What is installed in this version of Megatron, and the line at the start that says so and what a missing piece means.

nvrx depends on undocumented names of Megatron. Where one has moved, the piece that needs it is left out.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from nvrx_megatron.environment import rank

__all__ = ["Piece", "announce", "mentions", "replace_once"]

log = logging.getLogger("nvrx_megatron")

_announced: Final[list[str]] = []


@dataclass(frozen=True)
class Piece:
    """A piece that nvrx installs in Megatron.

    Attributes:
        effect: what it does.
        without: what happens where it is not installed.
        missing: the names of Megatron that it needs and that are not there; empty if it is installed.
    """

    effect: str
    without: str
    missing: str = ""


def announce(pieces: list[Piece]) -> None:
    """Log one line on rank 0, once in a process: a warning if a piece is not installed.

    It is visible where the program has not configured logging as well: the default would hide all but warnings.
    """
    if _announced or rank() != 0:
        return
    _announced.append(_line(pieces))
    level = logging.WARNING if any(piece.missing for piece in pieces) else logging.INFO
    if log.getEffectiveLevel() > logging.WARNING:
        return
    if log.hasHandlers():
        log.handle(log.makeRecord(log.name, level, __file__, 0, "%s", (_announced[-1],), None))
    else:
        print(f"{logging.getLevelName(level)}:{log.name}:{_announced[-1]}", file=sys.stderr)


def _line(pieces: list[Piece]) -> str:
    version = getattr(sys.modules.get("megatron.core"), "__version__", "of an unknown version")
    parts = [f"installed in megatron-core {version}: " + "; ".join(p.effect for p in pieces if not p.missing)]
    if without := [f"{piece.without} (not found: {piece.missing})" for piece in pieces if piece.missing]:
        parts.append("NOT installed: " + "; ".join(without))
    return ". ".join(parts)


def replace_once(
    home: Any, name: str, wired: Callable[[Any], Callable[..., Any]], *, default: Any = None, mark: str = "__nvrx__"
) -> None:
    """Replace a function of a module, or a method of a class; a second call, or one for a missing name, does nothing.

    Args:
        home: the module, the class, or another object; None: it is missing.
        name: the name of the function.
        wired: returns the replacement of the function that it is given.
        default: the function, where `home` has none of this name.
        mark: the attribute of a replaced function, which later replacements of it inherit.
    """
    original = None if home is None else getattr(home, name, default)
    if original is None or hasattr(original, mark):
        return
    replacement: Any = functools.wraps(original)(wired(original))
    setattr(replacement, mark, True)
    is_static = isinstance(inspect.getattr_static(home, name, None), staticmethod)
    setattr(home, name, staticmethod(replacement) if is_static else replacement)


def mentions(module: Any, *names: str) -> bool:
    """Return whether a function of a module uses all of these names; what is only imported may be unused."""
    functions = (value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__)
    return any(set(names) <= set(_names(_code(function))) for function in functions)


def _code(function: Any) -> types.CodeType | None:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _names(code: types.CodeType | None) -> Iterator[str]:
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from _names(constant)
