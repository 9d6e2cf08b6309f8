"""The first difference between two fits. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

__all__ = ["Difference", "Event", "Observation", "differences", "unstable"]


@dataclass(frozen=True)
class Event:
    """What a rank has seen at a place: texts of values, by what they are."""

    where: str
    fields: Mapping[str, str]


@dataclass(frozen=True)
class Observation:
    """What a rank has seen in a fit.

    Attributes:
        events: in their order.
        final: what the fit has left, by kind and name.
        resumed: the step from which each restart went on.
        injected: the fault was injected.
        warnings: texts of nvrx.
        error: the exception that ended the fit; "" for none.
    """

    events: Sequence[Event]
    final: Mapping[str, Mapping[str, str]]
    resumed: Sequence[int]
    injected: bool
    warnings: Sequence[str]
    error: str

    def written(self) -> dict[str, Any]:
        """Return the form of a JSON file."""
        return asdict(self)

    @classmethod
    def read(cls, written: dict[str, Any]) -> Self:
        """Return the observation in a JSON file."""
        return cls(**{**written, "events": [Event(**each) for each in written["events"]]})


@dataclass(frozen=True)
class Difference:
    """Something that differs.

    Attributes:
        what: its name, such as `sample order`, `lr` or `module.outputs`.
        where: the place in the fit.
        expected: its text without a fault; "" for none.
        found: its text with the fault; "" for none.
    """

    what: str
    where: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.what} at {self.where}: {self.expected or 'nothing'} became {self.found or 'nothing'}"


def differences(expected: Observation, found: Observation, ignored: Collection[str] = ()) -> Iterator[Difference]:
    """Yield what differs, in the order in which a fit comes to it.

    Args:
        expected: the fit without a fault.
        found: the fit with one.
        ignored: the names of what is not compared.
    """
    for before, after in zip(expected.events, found.events, strict=False):
        if before.where != after.where:
            yield Difference("order of events", before.where, before.where, after.where)
            break
        common = [name for name in before.fields if name in after.fields and name not in ignored]
        for name in common:
            if before.fields[name] != after.fields[name]:
                yield Difference(name, before.where, before.fields[name], after.fields[name])
    if len(expected.events) != len(found.events):
        at = min(len(expected.events), len(found.events))
        rest = [each.events[at].where if at < len(each.events) else "" for each in (expected, found)]
        yield Difference("order of events", "the end", *rest)
    for kind in expected.final:
        yield from _final(kind, expected.final[kind], found.final.get(kind, {}), ignored)


def _final(
    kind: str, expected: Mapping[str, str], found: Mapping[str, str], ignored: Collection[str]
) -> Iterator[Difference]:
    names = expected if kind == "checkpoint file" else dict.fromkeys((*expected, *found))
    for name in names:  # a fault before the removal of an older checkpoint leaves its file
        what = name if kind == "attribute" else f"{kind} {name}"
        before, after = expected.get(name, ""), found.get(name, "")
        if before != after and what not in ignored:
            yield Difference(what, "the end of the fit", before, after)


_DECISIVE = ("sample order", "random numbers", "weights ", "lr", "output of training_step", "order of events")


def unstable(first: Observation, second: Observation) -> tuple[frozenset[str], Difference | None]:
    """Compare two fits without a fault.

    Returns:
        The names of what differs between them, such as a measured time; and the first difference in the training
        itself, None for none: then there is nothing to compare a fit with.
    """
    found = list(differences(first, second))
    decisive = [each for each in found if each.what.startswith(_DECISIVE)]
    return frozenset(each.what for each in found), decisive[0] if decisive else None
