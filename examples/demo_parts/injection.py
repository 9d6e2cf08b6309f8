"""The faults of the schedule, in a rank: each is injected once, at the start of its step.

A step is begun again after a restart, by another process where the rank was lost. Whoever creates the fault's file
first has the fault injected; all others pass.
"""

from __future__ import annotations

import os
from typing import Protocol

from demo_parts.journal import Journal
from demo_parts.settings import Settings
from nvrx_core.testing import faults

__all__ = ["Injection"]


class Call(Protocol):
    """What is needed of the call."""

    @property
    def iteration(self) -> int:
        """How often the function was restarted."""


class Injection:
    """Breaks this process where the schedule says so.

    Args:
        settings: of the run.
        journal: gets a line `fault_injected` with the moment of the fault.
    """

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._faults = {fault.step: fault for fault in settings.faults}
        self._folder = settings.records
        self._journal = journal

    def inject(self, step: int, rank: int, call: Call) -> None:
        """Breaks this process if a fault is due on `rank` at `step`."""
        fault = self._faults.get(step)
        if fault is None or fault.rank != rank or not self._is_first(step):
            return
        told = {"kind": fault.kind, "rank": rank, "step": step, "iteration": call.iteration, "pid": os.getpid()}
        faults.inject(fault.kind, stamp=lambda moment: self._journal.write("fault_injected", monotonic=moment, **told))

    def _is_first(self, step: int) -> bool:
        try:
            (self._folder / f"injected-at-step-{step}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
