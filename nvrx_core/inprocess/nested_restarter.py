"""Log lines for an outer restarter: the state of the in-process restart, on the stdout of one rank.

A launcher that restarts whole processes can read from them whether the ranks are restarting in process. The line is
`[NestedRestarter] name=[InProcess] state=<state>`, followed by ` stage=<stage>` if the state has stages.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

from nvrx_core.inprocess.abort import Abort
from nvrx_core.inprocess.completion import Completion
from nvrx_core.inprocess.initialize import Initialize
from nvrx_core.inprocess.terminate import Terminate
from nvrx_core.rank_assignment.base import FrozenState

__all__ = [
    "NestedRestarterAborted", "NestedRestarterCallback", "NestedRestarterFinalized",
    "NestedRestarterHandlingCompleted", "NestedRestarterHandlingStarting", "NestedRestarterLogger",
]  # fmt: skip

LOGGER: Final = "InprocessRestarter.Restarter"


class NestedRestarterLogger:
    """The logger of these lines, to give them another handler.

    Attributes:
        restarter_logger: the logger `InprocessRestarter.Restarter`; it writes to stdout unless it has handlers.
    """

    def __init__(self) -> None:
        self.restarter_logger = _to_stdout()


class NestedRestarterCallback:
    """A plug-in that logs one state, on the rank whose initial rank is `special_rank`.

    Args:
        restarter_state: the state.
        restarter_stage: the stage in that state.
        logger: the logger to use; default that of `NestedRestarterLogger`.
        special_rank: the initial rank that logs.
    """

    def __init__(
        self,
        restarter_state: str,
        restarter_stage: str | None = None,
        logger: logging.Logger | NestedRestarterLogger | None = None,
        special_rank: int = 0,
    ) -> None:
        self.restarter_state, self.restarter_stage = restarter_state, restarter_stage
        self.logger, self.special_rank = logger, special_rank

    def __call__(self, state: FrozenState) -> FrozenState:
        """Log the state."""
        if state.initial_rank == self.special_rank:
            stage = f" stage={self.restarter_stage}" if self.restarter_stage is not None else ""
            logger = self.logger or NestedRestarterLogger()
            if isinstance(logger, NestedRestarterLogger):
                logger = logger.restarter_logger
            logger.info("[NestedRestarter] name=[InProcess] state=%s%s", self.restarter_state, stage)
        return state


class NestedRestarterHandlingCompleted(NestedRestarterCallback, Initialize):
    """An initializer that logs `initialize` on its first call, and later that the restart is completed.

    List it first in the composition of `initialize`: it then runs last, as the last step of the restart.
    """

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("initialize", special_rank=special_rank)

    def __call__(self, state: FrozenState) -> FrozenState:
        """Log the state."""
        super().__call__(state)
        self.restarter_state, self.restarter_stage = "handling", "completed"
        return state


class NestedRestarterHandlingStarting(NestedRestarterCallback, Abort):
    """An abort that logs the start of a restart; list it last in the composition of `abort`, so that it runs first."""

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("handling", "starting", special_rank=special_rank)


class NestedRestarterFinalized(NestedRestarterCallback, Completion):
    """A completion that logs the end of the job."""

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("finalized", special_rank=special_rank)


class NestedRestarterAborted(NestedRestarterCallback, Terminate):
    """A termination that logs that this rank exits and does not restart."""

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("aborted", special_rank=special_rank)


class _Stdout(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler that writes the bare message to the present `sys.stdout`."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)


def _to_stdout() -> logging.Logger:
    logger = logging.getLogger(LOGGER)
    if not logger.handlers:
        logger.addHandler(_Stdout(sys.stdout))
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger
