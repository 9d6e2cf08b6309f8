"""The report of a verification: a line for each fault, and the exit code for a user's CI. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from nvrx_lightning.verification.comparison import Difference

__all__ = ["FaultReport", "VerificationReport"]

_MAX_TEXT = 60


@dataclass(frozen=True)
class FaultReport:
    """What a fault has come to.

    Attributes:
        hook: the object and its hook, such as `EMA.on_train_batch_end`.
        rank, step, epoch: where it was injected.
        resumed: the step from which the fit went on; None if it did not.
        difference: the first difference from the fit without a fault; None for none.
        problem: what went wrong in the fit itself, "" for nothing.
    """

    hook: str
    rank: int
    step: int
    epoch: int
    resumed: int | None
    difference: Difference | None
    problem: str

    @property
    def ok(self) -> bool:
        """Whether the fit has survived the fault with equal results."""
        return self.difference is None and not self.problem


@dataclass(frozen=True)
class VerificationReport:
    """What a verification has found.

    Attributes:
        faults: one for each fault.
        warnings: what nvrx has warned of in the fits.
        notes: what was made smaller, and what was not compared.
        refused: why nothing was verified; "" if it was.
        seconds: the time of all fits.
    """

    faults: tuple[FaultReport, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refused: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def ok(self) -> bool:
        """Whether each fault was survived with equal results."""
        return not self.refused and bool(self.faults) and all(each.ok for each in self.faults)

    @property
    def exit_code(self) -> int:
        """0 if so, 1 if not, 2 if nothing could be verified."""
        return 2 if self.refused or not self.faults else 0 if self.ok else 1

    def written(self) -> dict[str, Any]:
        """Return the form of a JSON file."""
        return asdict(self)

    @classmethod
    def read(cls, written: dict[str, Any]) -> Self:
        """Return the report in a JSON file."""
        faults = (
            {**each, "difference": each["difference"] and Difference(**each["difference"])}
            for each in written["faults"]
        )
        texts = {name: tuple(written[name]) for name in ("warnings", "notes")}
        return cls(**{**written, **texts, "faults": tuple(FaultReport(**each) for each in faults)})

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.refused:
            yield f"not verified: {self.refused}"
            return
        width = max((len(each.hook) for each in self.faults), default=0)
        yield f"{'fault at':<{width}}  rank  step  resumed  result"
        for each in self.faults:
            resumed = "-" if each.resumed is None else each.resumed
            yield f"{each.hook:<{width}}  {each.rank:>4}  {each.step:>4}  {resumed:>7}  {_result(each)}"
        for kind, texts in (("warning", self.warnings), ("note", self.notes)):
            yield from (f"{kind}: {text}" for text in _by_wording(texts))
        bad = sum(not each.ok for each in self.faults)
        found = f"{bad} of {len(self.faults)} faults change the training" if bad else "the same bits after each fault"
        yield f"{found} ({len(self.faults)} faults in {self.seconds:.0f} s)"


def _by_wording(texts: Iterable[str]) -> Iterable[str]:
    """Return the first of the texts that differ in their numbers only."""
    first = dict[str, str]()
    for text in texts:
        first.setdefault(re.sub(r"\d+", "", text), text)
    return first.values()


def _result(fault: FaultReport) -> str:
    if fault.problem:
        return fault.problem
    if fault.difference is None:
        return "the same"
    each = fault.difference
    return f"{each.what} differs at {each.where}: {_short(each.expected)} became {_short(each.found)}"


def _short(text: str) -> str:
    text = text or "nothing"
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
