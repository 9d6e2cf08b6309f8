"""Random faults of all kinds, drawn from a seed: target, iteration, time, and location."""

from __future__ import annotations

import random
import signal
from typing import Final, NamedTuple

__all__ = ["CHAOS", "LETHAL", "WORLD", "Planned", "held_by_group", "plan_of"]

CHAOS = "NVRX_TEST_CHAOS"
WORLD = 4
ITERATIONS = 5
MOST_LETHAL = 2

_ENDED: Final = (-signal.SIGTERM, -signal.SIGKILL)
LETHAL: Final = {
    "kill": (-signal.SIGKILL,), "term": (-signal.SIGTERM,), "segv": (-signal.SIGSEGV,), "abort": (-signal.SIGABRT,),
    "os_exit_0": (0,), "exit_3": (3,), "keyboard_interrupt": (-signal.SIGINT,), "int": (-signal.SIGINT,),
    "stop": _ENDED, "gil_locked": _ENDED, "swallow_all": _ENDED,
}  # fmt: skip
"""The kinds that end their rank, and the exit codes that it may have; `_ENDED`: the hard timeout ends it."""
_ASIDE: Final = ("kill", "term", "segv", "abort", "os_exit_0", "stop", "gil_locked", "int")
_MAIN: Final = ("exit_3", "keyboard_interrupt", "swallow_all")
_SURVIVED: Final = ("exception", "memory_error", "signal_exception", "async_exception", "hang_sleep", "swallow")
_HARMLESS: Final = ("monitor_kill", "monitor_stop", "thread_exception")


class Planned(NamedTuple):
    """One fault.

    Attributes:
        iteration: the iteration in which it is injected.
        initial_rank: its target.
        after: seconds from the entry of that rank.
        place: "entry", "optimizer" or "step" for the main thread there, or "aside" for another thread.
        kind: the value of a `Fault`.
    """

    iteration: int
    initial_rank: int
    after: float
    place: str
    kind: str


def plan_of(seed: int) -> list[Planned]:
    """The faults of one job. Each iteration has one that ends it; a rank that was killed is not a target again."""
    rng, mortal, planned = random.Random(seed), set[int](), list[Planned]()
    for iteration in range(ITERATIONS):
        targets = rng.sample([rank for rank in range(WORLD) if rank not in mortal], 2)
        lethal = len(mortal) < MOST_LETHAL and rng.random() < 0.5
        planned.append(_ending(rng, iteration, targets[0], lethal))
        if lethal:
            mortal.add(targets[0])
        if rng.random() < 0.4:
            kind = rng.choice(_HARMLESS)
            planned.append(Planned(iteration, targets[1], _instant(rng, iteration), "aside", kind))
    return planned


def _ending(rng: random.Random, iteration: int, target: int, lethal: bool) -> Planned:
    kind = rng.choice(_ASIDE + _MAIN if lethal else _SURVIVED)
    place = "aside" if kind in _ASIDE else rng.choice(("entry", "optimizer", "step"))
    return Planned(iteration, target, _instant(rng, iteration), place, kind)


def _instant(rng: random.Random, iteration: int) -> float:
    return rng.uniform(0, 1.5 if iteration == 0 else 0.3)


def held_by_group(ranks: int) -> dict[str, int]:
    """What a group holds that nothing has ended, in the rank that hosts its store."""
    server, own_client, gloo = 7, 1, 4
    return {"threads": 4, "files": server + own_client + ranks + gloo + (ranks - 1)}
