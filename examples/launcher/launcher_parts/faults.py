"""The faults of the schedule, in a rank: each is injected once, at the start of its step."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Protocol

from demo_parts.journal import Journal

from launcher_parts.plan import FAULTS

__all__ = ["NODE", "Faults", "release_file"]

NODE = "NVRX_DEMO_NODE"
"""The variable with the number of the launcher; 0 hosts the rendezvous."""


class Call(Protocol):
    """What is needed of the training's call."""

    @property
    def iteration(self) -> int:
        """How often the training was restarted."""

    def begin_step(self) -> None:
        """A step begins."""

    def rest(self) -> None:
        """Wait for a moment, outside of a step."""


class Faults:
    """Breaks this process, or its node, where the schedule says so.

    Args:
        schedule: which fault is injected at which step.
        folder: where it is noted which faults were injected.
        journal: gets a line `fault_injected` with the moment of the fault.
    """

    def __init__(self, schedule: dict[int, str], folder: Path, journal: Journal) -> None:
        self._schedule, self._folder, self._journal = schedule, folder, journal

    def inject(self, step: int, rank: int, call: Call) -> None:
        """Begin a step, and break what is to be broken in it."""
        kind = self._schedule.get(step)
        self._await_release(step, call)
        is_due = kind is not None and self._is_target(kind, rank) and self._is_first(step)
        if is_due and kind == "hang_heartbeat":
            self._say(kind, step, rank, call)
            time.sleep(1e6)
        call.begin_step()
        if is_due and kind is not None:
            self._say(kind, step, rank, call)
            _inject(kind)

    def _say(self, kind: str, step: int, rank: int, call: Call) -> None:
        fields = {"kind": kind, "rank": rank, "step": step, "iteration": call.iteration, "pid": os.getpid()}
        self._journal.write("fault_injected", **fields)

    def _await_release(self, step: int, call: Call) -> None:
        """Hold all ranks before a step with a fault until the demo lets it happen: its standby workers are ready."""
        injected = self._folder / f"injected-at-step-{step}"
        while step in self._schedule and not injected.exists() and not release_file(self._folder, step).exists():
            call.rest()

    @staticmethod
    def _is_target(kind: str, rank: int) -> bool:
        if kind == "node":
            return os.environ[NODE] != "0" and os.environ["LOCAL_RANK"] == "0"
        return rank == FAULTS[kind].rank

    def _is_first(self, step: int) -> bool:
        try:
            (self._folder / f"injected-at-step-{step}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def release_file(folder: Path, step: int) -> Path:
    """Return the file that is there when the fault of a step may happen."""
    return folder / f"released-at-step-{step}"


def _inject(kind: str) -> None:
    if kind == "exception":
        raise RuntimeError("a fault of the schedule")
    if kind == "hang_section":
        time.sleep(1e6)
    if kind == "node":
        _kill_node(os.getppid())
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_node(launcher: int) -> None:
    """Kill a launcher and its children, this process last: all of a node is lost at once."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for pid in (launcher, *map(int, children)):
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
