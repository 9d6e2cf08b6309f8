"""The outcome of an iteration on one rank, derived from the exception of its function.

Pure. An interruption can leave the function in another form: in a group, as the cause of another exception, or as the
`SystemExit` of a catch-all handler. A healthy rank is not lost by that, and a failure does not count as a wish to
leave, as a library's `BaseException` would.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvrx_core.errors import PeerExited, RestartAbort, StoreLost
from nvrx_core.fault.exceptions import related
from nvrx_core.fault.record import FaultRecord

__all__ = [
    "IterationResult", "LoopShouldEnd", "Outcome", "RankShouldRestart", "given_up", "outcome_of", "pending_exit",
]  # fmt: skip

_EXITS = (KeyboardInterrupt, SystemExit, RestartAbort)


class RankShouldRestart(BaseException):
    """Raised inside the wrapped function when the round ends; it must reach the wrapper."""


class LoopShouldEnd(RankShouldRestart, KeyboardInterrupt):
    """The same inside an event loop: asyncio stores every other exception in the task that it interrupts."""


_OURS = (RankShouldRestart, StoreLost)
"""What the wrapper raises in the function; a catch-all handler may exit by it."""


class Outcome(enum.Enum):
    """The outcome of an iteration on this rank."""

    RETURNED = enum.auto()
    RESERVE = enum.auto()
    EXITED = enum.auto()  # SystemExit(0): this rank is done
    INTERRUPTED = enum.auto()
    FAILED = enum.auto()
    LEFT = enum.auto()  # by an exception that no restart mends


@dataclass
class IterationResult:
    """The result of an iteration.

    Attributes:
        outcome: how it ended.
        result: the value of the function.
        error: the exception.
        occurred: when the main thread left the function, monotonic seconds.
        behind_step: it has failed behind a step that a restart does not do again.
    """

    outcome: Outcome
    result: Any = None
    error: BaseException | None = None
    occurred: float = 0.0
    behind_step: bool = False


def given_up(error: RestartAbort, exited: FaultRecord | None) -> RestartAbort:
    """Return the exception of a rank that gives up after a restart: it ends with the code of a rank that has exited.

    Args:
        error: the exception of what cannot go on with the remaining ranks.
        exited: the exit that the round's decision names, if there is one.
    """
    if exited is None or type(error) is not RestartAbort:  # a subclass is the user's own, who may expect it
        return error
    whose = f"initial rank {exited.initial_rank} has exited with code {exited.exit_code}: {exited.message}"
    ended = PeerExited(
        "; ".join((*map(str, error.args), whose)),
        exit_code=exited.exit_code,
        culprit=exited.initial_rank,
        advice=vars(error).get("advice"),
    )
    ended.__cause__ = error
    return ended


def pending_exit(error: BaseException, outside: BaseException | None) -> BaseException | None:
    """Return the exception with which the user leaves, if it was propagating when an interruption was raised.

    A signal for all ranks, such as Ctrl-C or a scheduler's SIGTERM, reaches most of them together with the
    interruption: the first rank that leaves by it ends the round. The loss of the store reaches a rank that exits, too.

    Args:
        error: the exception that left the function.
        outside: the exception that its caller handles; the call may be what the user does instead of leaving.
    """
    found: BaseException | None = error
    while isinstance(found, _OURS) and found is not outside:
        found = found.__context__
    if found is None or found is error or found is outside:
        return None
    return found if _wishes_to_leave(found, outside) else None


def outcome_of(
    error: BaseException,
    *,
    requested: bool,
    landed: bool,
    by_signal: bool = False,
    outside: BaseException | None = None,
) -> Outcome:
    """Return the outcome of a function that raised `error`.

    Args:
        error: the exception that left it.
        requested: the round has ended, and this rank was asked to leave its function.
        landed: an interruption was raised in it, or the abort has started: later failures are consequences.
        by_signal: it is a `SystemExit` that a user's signal handler raised.
        outside: the exception that the function's caller handles; it is no evidence of a failure.
    """
    ours = any(isinstance(each, _OURS) for each in related(error, outside))
    leaves = by_signal or _wishes_to_leave(error, outside)
    if ours and not leaves:
        return Outcome.INTERRUPTED if requested else Outcome.FAILED
    if isinstance(error, SystemExit) and (error.code is None or (isinstance(error.code, int) and error.code == 0)):
        return Outcome.EXITED
    if leaves:
        return Outcome.LEFT
    if isinstance(error, Exception):
        return Outcome.INTERRUPTED if landed else Outcome.FAILED
    if requested:
        return Outcome.INTERRUPTED
    # `torch.distributed.checkpoint` reports every failure as a `BaseException`
    is_torch_error = str(type(error).__module__).startswith("torch.distributed.")
    failed = is_torch_error or any(isinstance(each, Exception) for each in related(error, outside))
    return Outcome.FAILED if failed else Outcome.LEFT


def _wishes_to_leave(error: BaseException, outside: BaseException | None) -> bool:
    """Whether the exception is a wish to leave, and does not hide an interruption."""
    return any(isinstance(each, _EXITS) and not _hides_interruption(each, outside) for each in _leaves(error))


def _hides_interruption(error: BaseException, outside: BaseException | None) -> bool:
    """Whether it hides an interruption, as the exit of a catch-all handler may; Ctrl-C and `RestartAbort` do not."""
    if isinstance(error, KeyboardInterrupt | RestartAbort):
        return isinstance(error, RankShouldRestart)
    return any(isinstance(each, _OURS) for each in related(error, outside))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    pending = [error]
    while pending:
        found = pending.pop()
        if isinstance(found, BaseExceptionGroup):
            pending += found.exceptions
        else:
            yield found
