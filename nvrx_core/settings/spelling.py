"""Spellings of a setting: its YAML key, its flags and its environment variable follow from the name of its field. Pure.

rank_heartbeat_timeout    --ft-rank-heartbeat-timeout    NVRX_FT_RANK_HEARTBEAT_TIMEOUT
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["Spelling", "nearest", "no_such_name"]

ALMOST: Final = 0.85
"""The likeness of a name and its slip of the pen."""


@dataclass(frozen=True)
class Spelling:
    """How the settings of one class are spelled outside Python.

    Attributes:
        section: the YAML key of the mapping that holds them.
        prefix: what their flags and variables begin with, in lower case.
    """

    section: str
    prefix: str

    @property
    def variables(self) -> str:
        """What every variable begins with."""
        return f"NVRX_{self.prefix.upper()}_"

    def variable(self, name: str) -> str:
        """Return the environment variable of a setting."""
        return self.variables + name.upper()

    def attribute(self, name: str) -> str:
        """Return the attribute of an `argparse.Namespace` that holds the flag's value."""
        return f"{self.prefix}_{name}"

    def flag(self, name: str) -> str:
        """Return the flag of a setting as it is documented."""
        return f"--{self.prefix}-{_dashed(name)}"

    def flags(self, name: str) -> tuple[str, ...]:
        """Return all spellings of a setting's flag, the documented one first."""
        long = f"{self.prefix}_param_{name}"
        return tuple(
            dict.fromkeys((*spellings(f"{self.prefix}_{name}"), *spellings(long), f"--{self.prefix}-param-{name}"))
        )


def spellings(name: str) -> tuple[str, ...]:
    """Return a flag with dashes, with underscores, and with underscores behind the first word."""
    first, _, rest = name.partition("_")
    return tuple(dict.fromkeys((f"--{_dashed(name)}", f"--{name}", f"--{first}-{rest}")))


def nearest(name: str, names: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the one of `names` that is most like `name`, None where none is; case and dashes do not count."""
    import difflib

    plain: dict[str, str] = {}
    for each in names:
        plain.setdefault(_plain(each), each)
    found = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=likeness)
    return plain[found[0]] if found else None


def no_such_name(module: str, name: str, names: Iterable[str], *, told: str = "") -> Exception:
    """Return the error of a module's `__getattr__`; for a slip of the pen, its text has the cure.

    By an AttributeError alone know `hasattr` and `getattr` that there is no such attribute. Python replaces its text
    where `from module import name` asks, which therefore gets an ImportError.

    Args:
        module: the name of the module.
        name: the name that it lacks.
        names: those that it has.
        told: the text, where the cure is known.
    """
    meant = None if name.startswith("_") else nearest(name, names, likeness=ALMOST)
    text = told or (f"{module} has no {name}; write {meant}" if meant else "")
    if text and _imports(sys._getframe(2)):
        return ImportError(text)
    return AttributeError(text or f"module {module!r} has no attribute {name!r}")


def _imports(frame: types.FrameType) -> bool:
    """Whether a frame is at the second half of `from module import name`, which gets the name of the module."""
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]


def _plain(name: str) -> str:
    return name.strip("-").replace("-", "_").lower()


def _dashed(name: str) -> str:
    return name.replace("_", "-")
