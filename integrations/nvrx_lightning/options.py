"""The options of the in-process strategies, each declared once, and the wrapper built from them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final

from nvrx_core.errors import ParameterError
from nvrx_core.inprocess import Compose, Wrapper
from nvrx_core.inprocess.abort import Abort
from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.inprocess.health_check import HealthCheck
from nvrx_core.inprocess.initialize import RetryController
from nvrx_core.settings.parameter import POSITIVE, at_least, check, parameter
from nvrx_core.settings.spelling import nearest

__all__ = ["InProcessOptions", "refuse_unknown"]

NO_PROGRESS_LIMIT: Final = 3
AUTO: Final = "auto"
MEMORY: Final = "memory"
_CHOOSING: Final = (AUTO, MEMORY, "checkpoint")
"""The values of `resume` with which a restart chooses what it goes on from."""


@dataclass(frozen=True, kw_only=True)
class InProcessOptions:
    """The options.

    Raises:
        ValueError, TypeError: for a value that violates its rule, or that the wrapper refuses.
    """

    resume: str | os.PathLike[str] | None = parameter(
        AUTO, 'Where a restart goes on from. "memory": the last optimizer step, from the memory of the ranks, and '
        'where they do not have it whole, the checkpoint; "checkpoint": the newest valid one of the fit, else as the '
        'fit began; "auto": "memory" once a checkpoint was saved in the middle of an epoch, else the checkpoint; '
        "a path: always this checkpoint; None: always as the fit began.",
    )  # fmt: skip
    min_ranks: int = parameter(1, "With fewer ranks left, the fit ends.", kind=int, rule=at_least(1))
    max_restarts: int | None = parameter(
        None, "After so many restarts, the fit ends; None for no limit.",
        kind=int, rule=at_least(0, ", or None for no limit"), optional=True,
    )  # fmt: skip
    soft_timeout: timedelta | None = parameter(
        None, "Without a sign of life for so long, all ranks restart; None for the wrapper's default.",
        kind=timedelta, rule=POSITIVE, optional=True,
    )  # fmt: skip
    hard_timeout: timedelta | None = parameter(
        None, "Without a sign of life for so long, the rank's process is ended; None for a time that fits.",
        kind=timedelta, rule=POSITIVE, optional=True,
    )  # fmt: skip
    rank_assignment: Any = parameter(None, "Assigns the ranks after a loss; None for the wrapper's default.")
    abort: Abort | Compose | None = parameter(
        None, "Ends what the fit waits in; None for the wrapper's default.", kind=Abort, optional=True
    )
    health_check: HealthCheck | Compose | None = parameter(
        None, "Runs before each attempt; a rank that fails it leaves.", kind=HealthCheck, optional=True
    )
    keep_initial_weights: bool = parameter(
        True, "Keep a copy of the model in host memory, for a restart before the first checkpoint.", kind=bool
    )
    wrapper: Mapping[str, Any] | None = parameter(
        None, "Further parameters of `nvrx_core.inprocess.Wrapper`.", kind=Mapping, optional=True
    )

    def __post_init__(self) -> None:
        if not isinstance(self.resume, str | os.PathLike | None):
            raise ParameterError("resume", self.resume, '"auto", "memory", "checkpoint", a path or None')
        check(self)
        self.make_wrapper()

    @property
    def keeps_memory(self) -> bool:
        """Whether a fit of a kind that allows it keeps its state in memory."""
        return self.resume in (AUTO, MEMORY)

    @property
    def chooses(self) -> bool:
        """Whether a restart chooses what it goes on from."""
        return self.resume in _CHOOSING

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the options."""
        return tuple(field.name for field in fields(cls))

    def make_wrapper(self, finalize: Finalize | None = None) -> Wrapper:
        """Return the wrapper for a fit.

        Args:
            finalize: cleans up after an attempt; runs before the user's finalizer.
        """
        given = {"no_progress_limit": NO_PROGRESS_LIMIT, **self._times(), **dict(self.wrapper or {})}
        for name in ("rank_assignment", "abort", "health_check"):
            if getattr(self, name) is not None:
                given[name] = getattr(self, name)
        limit = None if self.max_restarts is None else self.max_restarts + 1
        controller = RetryController(max_iterations=limit, min_world_size=self.min_ranks)
        ours = {"initialize": controller, "finalize": finalize}
        for name, own in ours.items():
            theirs = given.get(name)
            given[name] = own if theirs is None else theirs if own is None else Compose(theirs, own)
        return Wrapper(**given)

    def _times(self) -> dict[str, timedelta]:
        """Return the soft timeout, and the timeouts that must exceed it."""
        if self.soft_timeout is None and self.hard_timeout is None:
            return {}
        defaults = Wrapper()
        soft = self.soft_timeout or min(defaults.soft_timeout, (self.hard_timeout or defaults.hard_timeout) / 2)
        hard = self.hard_timeout or max(defaults.hard_timeout, 1.5 * soft)
        barrier = max(defaults.barrier_timeout, hard + timedelta(seconds=30))
        return {"soft_timeout": soft, "hard_timeout": hard, "barrier_timeout": barrier}


def refuse_unknown(where: str, known: Collection[str], given: Iterable[str]) -> None:
    """Refuse an option that `where` does not have.

    Raises:
        TypeError: with the known name that is most like it, or all of them.
    """
    for name in given:
        if name not in known:
            close = nearest(name, known)
            instead = f"write {close}=" if close else f"it has {', '.join(known)}"
            raise TypeError(f"{where} has no option {name}; {instead}")
