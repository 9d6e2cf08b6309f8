"""The faults of a run: which kind strikes which rank at which step.

Written `KIND[:RANK][@STEP]`, separated by commas. What is left open is filled in here, before a run starts: steps are
spread evenly, victims are drawn by the seed from the ranks still there, and the first to be lost is rank 0.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["KINDS", "Kind", "PlannedFault", "plan_faults"]

_ENTRY = re.compile(r"(?P<kind>\w+)(?::(?P<rank>\d+))?(?:@(?P<step>\d+))?")


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        text: what happens, for people.
        lethal: the rank's process is lost with it.
    """

    text: str
    lethal: bool


KINDS = {
    "exception": Kind("an exception in the training loop", lethal=False),
    "hang_recv": Kind("a hang: recv() on a silent socket", lethal=False),
    "hang_lock": Kind("a hang: waits for a lock that nobody releases", lethal=False),
    "hang_sleep": Kind("a hang: sleeps and does not come back", lethal=False),
    "swallow": Kind("a hang that swallows every exception, three times", lethal=False),
    "gil_locked": Kind("a hang in C code that never gives up the GIL", lethal=True),
    "kill": Kind("SIGKILL", lethal=True),
    "segv": Kind("a segmentation fault", lethal=True),
    "stop": Kind("SIGSTOP: alive, and does nothing", lethal=True),
}
"""The kinds of `nvrx_core.testing.faults` that the demo offers."""


@dataclass(frozen=True)
class PlannedFault:
    """`kind` strikes the rank that began as `initial_rank` when it comes to `step` for the first time."""

    kind: str
    initial_rank: int
    step: int


@dataclass(frozen=True)
class _Asked:
    kind: str
    rank: int | None
    step: int


def plan_faults(text: str, *, ranks: int, steps: int, seed: int) -> tuple[PlannedFault, ...]:
    """The faults that `text` asks for, in the order of their steps; none for `none`.

    Raises:
        ValueError: an entry is malformed, or the faults cannot all happen; the message says why.
    """
    entries = [] if text == "none" else [_entry(part.strip()) for part in text.split(",")]
    spread = [round(steps * place / (len(entries) + 1)) for place in range(1, len(entries) + 1)]
    asked = [
        _Asked(kind, rank, at if step is None else step) for (kind, rank, step), at in zip(entries, spread, strict=True)
    ]
    asked.sort(key=lambda fault: fault.step)
    _check(asked, ranks, steps)
    return _with_victims(asked, ranks, random.Random(seed))


def _entry(part: str) -> tuple[str, int | None, int | None]:
    match = _ENTRY.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is not KIND[:RANK][@STEP]")
    if match["kind"] not in KINDS:
        raise ValueError(f"{match['kind']!r} is no kind of fault; there are {', '.join(KINDS)}")
    return match["kind"], _number(match["rank"]), _number(match["step"])


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _check(asked: Sequence[_Asked], ranks: int, steps: int) -> None:
    for fault in asked:
        if not 0 < fault.step < steps:
            raise ValueError(f"{fault.kind} at step {fault.step}: it can strike steps 1 to {steps - 1}")
    if len({fault.step for fault in asked}) < len(asked):
        raise ValueError("two faults at one step: each needs a step of its own")
    losses = [fault.kind for fault in asked if KINDS[fault.kind].lethal]
    if len(losses) >= ranks:
        raise ValueError(f"{', '.join(losses)} end {ranks} ranks or more, and there are {ranks}: one has to be left")


def _with_victims(asked: Sequence[_Asked], ranks: int, draw: random.Random) -> tuple[PlannedFault, ...]:
    living = list(range(ranks))
    planned: list[PlannedFault] = []
    for place, fault in enumerate(asked):
        wanted = {later.rank for later in asked[place + 1 :]}
        free = [rank for rank in living if rank not in wanted] or living
        victim = _victim(fault, free, draw, nobody_lost=len(living) == ranks)
        if victim not in living:
            raise ValueError(
                f"{fault.kind} at step {fault.step}: rank {victim} is none of those there by then, {living}"
            )
        if KINDS[fault.kind].lethal:
            living.remove(victim)
        planned.append(PlannedFault(fault.kind, victim, fault.step))
    return tuple(planned)


def _victim(fault: _Asked, free: Sequence[int], draw: random.Random, *, nobody_lost: bool) -> int:
    if fault.rank is not None:
        return fault.rank
    return free[0] if KINDS[fault.kind].lethal and nobody_lost else draw.choice(free)
