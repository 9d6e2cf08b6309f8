"""The faults of a run: which kind is injected into which rank at which step.

Written `KIND[:RANK][@STEP]`, separated by commas. What is left open is filled in here, before a run starts: steps are
spread evenly, targets are drawn by the seed, and the first to be lost is rank 0. A rank is a place in the process
group; after a restart another process may hold it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["CUT_OFF", "HARD_TIMEOUT", "KINDS", "SOFT_TIMEOUT", "Kind", "PlannedFault", "plan_faults"]

SOFT_TIMEOUT, HARD_TIMEOUT = 2.0, 4.0
"""The wrapper's timeouts for a rank without progress, in seconds: the rank is interrupted, or ended."""
CUT_OFF = 5.0
"""Seconds that a rank may hang where nothing watches it, before the demo ends it."""

_ENTRY = re.compile(r"(?P<kind>\w+)(?::(?P<rank>\d+))?(?:@(?P<step>\d+))?")


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: what a table calls it.
        text: what happens, for people.
        lethal: the rank's process is lost with it.
    """

    name: str
    text: str
    lethal: bool


KINDS = {
    "exception": Kind("exception", "an exception in the training loop", lethal=False),
    "hang_recv": Kind("hang in recv()", "a hang: recv() on a silent socket", lethal=False),
    "hang_lock": Kind("hang on a lock", "a hang: waits for a lock that nobody releases", lethal=False),
    "hang_sleep": Kind("hang in sleep()", "a hang: sleeps and does not come back", lethal=False),
    "swallow": Kind("hang, swallows", "a hang that swallows every exception, three times", lethal=False),
    "gil_locked": Kind("hang, GIL held", "a hang in C code that never gives up the GIL", lethal=True),
    "kill": Kind("SIGKILL", "SIGKILL", lethal=True),
    "segv": Kind("SIGSEGV", "a segmentation fault", lethal=True),
    "stop": Kind("SIGSTOP", "SIGSTOP: alive, and does nothing", lethal=True),
}
"""The kinds of `nvrx_core.testing.faults` that the demo offers."""


@dataclass(frozen=True)
class PlannedFault:
    """`kind` is injected into the process that is `rank` when it comes to `step` for the first time."""

    kind: str
    rank: int
    step: int


@dataclass(frozen=True)
class _Asked:
    kind: str
    rank: int | None
    step: int


def plan_faults(text: str, *, ranks: int, spares: int, steps: int, seed: int) -> tuple[PlannedFault, ...]:
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
    _check(asked, ranks + spares, steps)
    return tuple(_with_targets(asked, ranks, spares, random.Random(seed)))


def _entry(part: str) -> tuple[str, int | None, int | None]:
    match = _ENTRY.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is not KIND[:RANK][@STEP]")
    if match["kind"] not in KINDS:
        raise ValueError(f"{match['kind']!r} is no kind of fault; there are {', '.join(KINDS)}")
    return match["kind"], _number(match["rank"]), _number(match["step"])


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _check(asked: Sequence[_Asked], processes: int, steps: int) -> None:
    for fault in asked:
        if not 0 < fault.step < steps:
            raise ValueError(f"{fault.kind} at step {fault.step}: choose one of steps 1 to {steps - 1}")
    if len({fault.step for fault in asked}) < len(asked):
        raise ValueError("two faults at one step: each needs a step of its own")
    losses = [fault.kind for fault in asked if KINDS[fault.kind].lethal]
    if len(losses) >= processes:
        raise ValueError(
            f"{', '.join(losses)} end {len(losses)} processes, and there are {processes}: one has to be left"
        )


def _with_targets(asked: Sequence[_Asked], ranks: int, spares: int, draw: random.Random) -> Iterator[PlannedFault]:
    lost = 0
    for fault in asked:
        world_size = min(ranks, ranks + spares - lost)
        lethal = KINDS[fault.kind].lethal
        first_loss = lethal and not lost
        rank = (0 if first_loss else draw.randrange(world_size)) if fault.rank is None else fault.rank
        if rank >= world_size:
            raise ValueError(f"{fault.kind} at step {fault.step}: there are ranks 0 to {world_size - 1} by then")
        lost += lethal
        yield PlannedFault(fault.kind, rank, fault.step)
