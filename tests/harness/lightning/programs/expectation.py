"""What a verification is to find in a training, written above the function that makes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nvrx_lightning.verification.report import VerificationReport

__all__ = ["KNOWN", "Expectation", "differs", "fails", "refused", "same", "warned"]

Make = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Regular expressions of what is found; "" for nothing.

    Attributes:
        differs: what differs first after at least one fault, such as `module.losses`, and after no fault anything else.
        fails: how the fit ends after at least one fault, and after no fault otherwise.
        warned: each warning.
        always: there is a warning after at least one fault.
        refused: why nothing is verified.
    """

    differs: str = ""
    fails: str = ""
    warned: str = ""
    always: bool = True
    refused: str = ""

    @property
    def is_same(self) -> bool:
        """Whether the bits are to be the same after each fault."""
        return not (self.differs or self.fails or self.refused)

    def unmet(self, report: VerificationReport) -> list[str]:
        """Return what of a report is not as expected, for people."""
        if self.refused or report.refused:
            return _unlike("refused", self.refused, [report.refused] if report.refused else [])
        return [
            *_unlike("differs", self.differs, [each.difference.what for each in report.faults if each.difference]),
            *_unlike("fails", self.fails, [each.problem for each in report.faults if each.problem]),
            *(_unlike("warned", self.warned, report.warnings) if self.always or report.warnings else ()),
        ]


def _unlike(kind: str, pattern: str, found: list[str] | tuple[str, ...]) -> list[str]:
    if pattern and not found:
        return [f"{kind}: nothing, and not {pattern}"]
    return [f"{kind}: {text}" for text in dict.fromkeys(found) if not pattern or not re.search(pattern, text)]


KNOWN: dict[str, Expectation] = {}
"""By `part:name` of the function."""


def _expect(expectation: Expectation) -> Callable[[Make], Make]:
    def note(make: Make) -> Make:
        KNOWN[f"{make.__module__.rpartition('.')[2]}:{make.__name__}"] = expectation
        return make

    return note


def same(make: Make) -> Make:
    """The same bits after each fault, and nothing is warned of."""
    return _expect(Expectation())(make)


def warned(text: str, *, always: bool = True) -> Callable[[Make], Make]:
    """The same bits after each fault, with a warning."""
    return _expect(Expectation(warned=text, always=always))


def differs(what: str, *, warned: str = "") -> Callable[[Make], Make]:
    """After a fault something differs."""
    return _expect(Expectation(differs=what, warned=warned))


def fails(how: str, *, differs: str = "", warned: str = "") -> Callable[[Make], Make]:
    """After a fault the fit does not come to its end."""
    return _expect(Expectation(fails=how, differs=differs, warned=warned))


def refused(why: str) -> Callable[[Make], Make]:
    """Nothing can be verified; the text is in the message."""
    return _expect(Expectation(refused=why))
