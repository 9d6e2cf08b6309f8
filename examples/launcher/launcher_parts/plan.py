"""Which faults are injected into a run, and when; and the timeouts by which hangs are found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "CUT_OFF", "FAULTS", "HEARTBEAT", "LAYERS", "NODES", "RANKS", "SECTION", "TORCHRUN_WITHIN", "WARM_WITHIN",
    "WORKERS", "Fault", "needs_processes", "planned",
]  # fmt: skip

NODES: Final = 2
WORKERS: Final = 2
RANKS: Final = NODES * WORKERS
SECTION, HEARTBEAT = 3.0, 4.0
"""Seconds that a step may take, and that may lie between two heartbeats."""
WARM_WITHIN: Final = 30.0
"""Seconds that a fault is held back, at most, for standby workers that are not ready."""
TORCHRUN_WITHIN: Final = 35.0
"""Seconds from its first step after which the run under torchrun is ended: after each fault it imports torch again."""
CUT_OFF: Final = 5.0
"""Seconds that a rank may hang where nothing watches it, before the demo ends it."""
LAYERS: Final = ("ft_launcher", "with Wrapper", "torchrun")
"""The runs."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        name: what a table calls it.
        text: what happens, for people.
        rank: the target; for `node` the node that does not host the rendezvous.
    """

    name: str
    text: str
    rank: int


FAULTS: Final = {
    "exception": Fault("exception", "an exception in the training loop", 1),
    "kill": Fault("SIGKILL", "SIGKILL", 3),
    "hang_section": Fault("hang in a step", "hangs in a step, whose section stays open", 0),
    "hang_heartbeat": Fault("hang, no heartbeat", "hangs between two steps, without a heartbeat", 2),
    "node": Fault("node lost", "its launcher is killed with all its workers; another launcher waits", 2),
}


def needs_processes(layer: str, kind: str) -> bool:
    """Return whether a fault is followed by new processes under ft_launcher, and not by a restart in process."""
    return layer == LAYERS[0] or (layer == LAYERS[1] and kind in ("kill", "node"))


def planned(names: list[str], steps: int) -> dict[int, str]:
    """Return which fault is injected at which step, evenly spread.

    Raises:
        ValueError: when there is no such fault, or there are too many.
    """
    if unknown := set(names) - FAULTS.keys():
        raise ValueError(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    if len(set(names)) < len(names) or len(names) >= steps:
        raise ValueError("each fault is injected once, at a step of its own")
    return {round(steps * (place + 1) / (len(names) + 1)): name for place, name in enumerate(names)}
