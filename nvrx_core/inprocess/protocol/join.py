"""How the ranks that enter a call agree on a generation. Pure.

All keys of a call lie under a generation, so that a new start of a job does not read the keys of an earlier one. The
number is not passed to the ranks, because the launchers of two nodes may count differently: a rank claims its place in
the first open generation. A place that another incarnation of the rank has claimed belongs to an earlier start, so the
generation is closed as moved, and all ranks that wait in it continue with the next one. The rank that completes the
number of claims closes it as met. The first verdict on a generation is final, and all ranks follow it.

Before a rank counts its claim, it compares its terms (world size, version, parameters that must agree) with those that
the first rank in the generation has written. Terms that differ may be those of an earlier start, so the generation is
closed as moved; terms that differ repeatedly are those of a living rank, which is a conflict. It is also a conflict if
no launcher restarts ranks and a living rank finds its place claimed by another process. A rank that has waited too long
closes its generation as expired: all ranks that wait in it give up together, and know the missing ranks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final, Protocol

from nvrx_core.parsing import parse_object
from nvrx_core.values import value

__all__ = [
    "BY", "CONFLICT", "EXPIRED", "MET", "MOVED", "Conflicting", "Expired", "Join", "JoinResult", "JoinStore", "Joined",
    "Superseded", "VerdictPort", "process_of", "shared_with",
]  # fmt: skip

MET: Final = "met"
MOVED: Final = "moved"
CONFLICT: Final = "conflict: "
"""Begins the verdict that ends the job; what differs follows."""
EXPIRED: Final = "expired: "
"""Begins the verdict that not all have come in time; who is missing follows."""
MAX_CONFLICTS: Final = 3
"""Generations in a row with other terms, after which they are not those of an earlier start."""
BY: Final = "by"
"""The field of the terms that says whose they are, and need not agree."""


@value
class Joined:
    """All ranks have joined."""

    generation: int


@value
class Superseded:
    """A later incarnation of this rank has joined."""

    generation: int
    by: str


@value
class Conflicting:
    """The ranks of the job contradict each other."""

    generation: int
    text: str


@value
class Expired:
    """Not all ranks of the job have joined in time."""

    generation: int
    text: str


JoinResult = Joined | Superseded | Conflicting | Expired


class JoinStore(Protocol):
    """The keys of the generations; each operation may raise `StoreFailure`."""

    def read_verdict(self, generation: int) -> Awaitable[str | None]:
        """Return the generation's verdict, None while it has none."""

    def claim(self, generation: int, incarnation: str) -> Awaitable[str]:
        """Claim this rank's place, unless it is taken; return the present claim."""

    def agree(self, generation: int, terms: str) -> Awaitable[str]:
        """Write this rank's terms, unless there are some; return the present ones, a JSON object."""

    def count_claim(self, generation: int) -> Awaitable[int]:
        """Count the claim; return how many were counted, this one included."""

    def all_claimed(self, generation: int) -> Awaitable[bool]:
        """Return whether every place is taken: a claim may be counted twice, by a rank and on its behalf."""

    def close(self, generation: int, verdict: str) -> Awaitable[str]:
        """Write the verdict on the generation, unless it has one; return the present one."""


class VerdictPort(Protocol):
    """How a living rank waits."""

    def await_verdict(self, generation: int) -> Awaitable[str]:
        """Wait for the generation's verdict; return it."""


class Join:
    """One incarnation of a rank that joins a generation.

    Args:
        store: the keys of the generations.
        waiting: waits for a verdict. None for a dead rank: its claim is counted on its behalf, and no generation is
            closed for it but one that is complete.
        world_size: the number of ranks that must join.
        incarnation: identifies this process; the value of its claim.
        claimed: the generation that it has claimed already, -1 for none.
        terms: the terms that must be equal on all ranks, as JSON; "" for a rank that compares nothing.
        unique: ranks are not restarted: another living process with this one's rank is a conflict.
    """

    def __init__(
        self, store: JoinStore, waiting: VerdictPort | None, world_size: int, incarnation: str, *,
        claimed: int = -1, terms: str = "", unique: bool = False,
    ) -> None:  # fmt: skip
        self.store, self.waiting, self.world_size, self.incarnation = store, waiting, world_size, incarnation
        self.claimed, self.terms, self.unique = claimed, terms, unique
        self._conflicts = 0

    async def run(self) -> JoinResult:
        """Join the others; of a dead rank, `Joined` in the generation in which its claim counts."""
        result = await (self._join(0) if self.claimed < 0 else self._enter(self.claimed))
        while isinstance(result, int):
            result = await self._join(result)
        return result

    async def _join(self, first: int) -> JoinResult | int:
        """Enter the first open generation from `first` on; return the next one if it is closed without this rank."""
        found = await self._find_open(first)
        return await self._enter(found) if isinstance(found, int) else found

    async def _find_open(self, first: int) -> JoinResult | int:
        """Return the first open generation.

        Open generations follow those with a verdict: it is searched for in growing strides, then by bisection.
        """
        ended, opened, stride, looked = first - 1, -1, 1, first
        while opened - ended != 1:
            verdict = await self.store.read_verdict(looked)
            if verdict is None:
                opened = looked
            else:
                ended = looked
                if self.claimed >= 0 and (end := _end(looked, verdict)) is not None:
                    return end  # of ranks that live: this one was on its way before it
            if opened < 0:
                stride *= 2
                looked = ended + stride // 2
            else:
                looked = (opened + ended) // 2
        return opened

    async def _enter(self, generation: int) -> JoinResult | int:
        """Claim the place in an open generation and follow its verdict; return the next one if it has moved."""
        present = await self.store.claim(generation, self.incarnation)
        rival = ""
        if present == self.incarnation:
            self.claimed = generation
            verdict = await self._meet(generation)
        elif self.unique and self.claimed >= 0:
            rival = present
            verdict = await self.store.close(generation, f"{CONFLICT}{shared_with(self.terms, rival)}")
        elif self.claimed >= 0 or self.waiting is None:
            return Superseded(generation, present)
        else:
            verdict = await self.store.close(generation, MOVED)
        if self.claimed == generation or rival:
            if (end := _end(generation, verdict)) is not None:
                return end
            if verdict == MET:
                return Superseded(generation, rival) if rival else Joined(generation)
        return generation + 1

    async def _meet(self, generation: int) -> str:
        """Compare the terms, count the claim and return the verdict."""
        if self.terms:
            theirs = parse_object(await self.store.agree(generation, self.terms))
            differences = _differences(parse_object(self.terms), theirs)
            if differences:
                self._conflicts += 1
                verdict = f"{CONFLICT}{differences}" if self._conflicts >= MAX_CONFLICTS else MOVED
                return await self.store.close(generation, verdict)
        claims = await self.store.count_claim(generation)
        if claims >= self.world_size and await self.store.all_claimed(generation):
            return await self.store.close(generation, MET)
        return MET if self.waiting is None else await self.waiting.await_verdict(generation)


def _end(generation: int, verdict: str) -> Conflicting | Expired | None:
    """Return the end of the job for the ranks that wait in the generation, if the verdict is one."""
    if verdict.startswith(CONFLICT):
        return Conflicting(generation, verdict.removeprefix(CONFLICT))
    return Expired(generation, verdict.removeprefix(EXPIRED)) if verdict.startswith(EXPIRED) else None


def shared_with(terms: str, rival: str) -> str:
    """Return the conflict between the rank of these terms and another living incarnation of it."""
    by = parse_object(terms).get(BY)
    return f"{by} and another process ({process_of(rival)}) were started with the same RANK"


def process_of(incarnation: str) -> str:
    """Return the process of an incarnation, for people."""
    host, pid, *_ = (*incarnation.split("/"), "?")
    return f"{host} pid {pid}"


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    names = [name for name in sorted({*mine, *theirs} - {BY}) if mine.get(name) != theirs.get(name)]

    def told(terms: Mapping[str, Any]) -> str:
        return f"{terms.get(BY)} has {', '.join(f'{name}={terms.get(name)}' for name in names)}"

    return f"{told(mine)}; {told(theirs)}" if names else ""
