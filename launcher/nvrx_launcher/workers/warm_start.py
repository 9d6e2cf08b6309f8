"""Start of a node's workers: as functions, from standbys, or cold if there are none."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence

from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.binding import Binding
from nvrx_launcher.workers.functions import FunctionStarter
from nvrx_launcher.workers.standbys import Standbys, WarmStarter
from nvrx_launcher.workers.starting import ProgramStarter, Starter
from nvrx_launcher.workers.warmable import why_not_warm

__all__ = ["WarmStart"]

log = logging.getLogger("nvrx_launcher")


class WarmStart:
    """The starter of a node's workers, with its standbys if there are any.

    Args:
        options: the job.
        config: whether to use standbys, and their imports.
        environ: the environment that all workers inherit.
        inherited: by local rank, the environment that a worker inherits.
        loop: the event loop that watches standbys.
        bound: the binding of each local rank.
        functions: starts workers that are functions; None: they are programs.

    Attributes:
        starter: starts a worker.
    """

    def __init__(
        self, options: LaunchOptions, config: FaultToleranceConfig, environ: Mapping[str, str], *,
        inherited: Callable[[int], Mapping[str, str]], loop: EventLoop, bound: Sequence[Binding | None],
        functions: FunctionStarter | None,
    ) -> None:  # fmt: skip
        self._inherited = inherited
        self._standbys: Standbys | None = None
        self.starter: Starter = functions or ProgramStarter(options, sys.executable, bound)
        if functions is None and _is_warm(options, config, environ):
            python, needs_memory = environ.get("PYTHON_EXEC", sys.executable), config.warm_workers == "auto"
            self._standbys = Standbys(
                options, python, config.warm_imports, loop=loop, bound=bound, needs_memory=needs_memory
            )
            self.starter = WarmStarter(self._standbys, self.starter)

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return math.inf if self._standbys is None else self._standbys.deadline

    def tick(self, *, now: float) -> None:
        """Start the next standby if it is due."""
        if self._standbys is not None:
            self._standbys.tick(now=now)

    def settle(self) -> None:
        """Schedule the start of missing standbys."""
        if self._standbys is not None:
            self._standbys.settle(self._inherited)

    def pause(self) -> None:
        """Start no standbys until `settle`."""
        if self._standbys is not None:
            self._standbys.pause()

    def close(self) -> None:
        """Kill the standbys."""
        if self._standbys is not None:
            self._standbys.close()


def _is_warm(options: LaunchOptions, config: FaultToleranceConfig, environ: Mapping[str, str]) -> bool:
    why_not = why_not_warm(options, wanted=config.warm_workers, imports=config.warm_imports, environ=environ)
    if why_not:
        level = logging.WARNING if config.warm_workers == "on" else logging.DEBUG
        log.log(level, "no standby workers: %s", why_not)
    return not why_not
