"""How an iteration ended on one rank, told from what its function raised.

Pure. An interruption can come out of the function in another shape: in a group, as the cause of what a library raises
instead of it, as the `SystemExit` of a handler for everything. A healthy rank is not lost by that, and what has failed
is not taken for a wish to leave, as a `BaseException` of a library would be.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvrx_core.errors import RestartAbort
from nvrx_core.fault.exceptions import related

__all__ = ["IterationResult", "LoopShouldEnd", "Outcome", "RankShouldRestart", "how_it_ended", "overtaken_wish"]

_WISHES = (KeyboardInterrupt, SystemExit, RestartAbort)


class RankShouldRestart(BaseException):
    """Raised inside the wrapped function when the round ends; it must reach the wrapper."""


class LoopShouldEnd(RankShouldRestart, KeyboardInterrupt):
    """The same inside an event loop: asyncio stores every other exception in the task that it interrupts."""


class Outcome(enum.Enum):
    """How an iteration ended on this rank."""

    RETURNED = enum.auto()
    RESERVE = enum.auto()
    EXITED = enum.auto()  # SystemExit(0): this rank is done
    INTERRUPTED = enum.auto()
    FAILED = enum.auto()
    LEFT = enum.auto()  # by an exception that no restart mends


@dataclass
class IterationResult:
    """How an iteration ended, and with what."""

    how: Outcome
    result: Any = None
    error: BaseException | None = None


def overtaken_wish(error: BaseException, outside: BaseException | None) -> BaseException | None:
    """Return the exception by which the user leaves, and which was on its way out when an interruption was raised.

    A signal for all ranks, such as Ctrl-C or a scheduler's SIGTERM, reaches most of them together with the
    interruption: the first rank that leaves by it ends the round.

    Args:
        error: what came out of the function.
        outside: what its caller handles; the call may be what the user does instead of leaving.
    """
    found: BaseException | None = error
    while isinstance(found, RankShouldRestart):
        found = found.__context__
    return None if found is None or found is error or found is outside or not _wishes_to_leave(found) else found


def how_it_ended(error: BaseException, *, requested: bool, landed: bool, by_signal: bool = False) -> Outcome:
    """How a function ended that raised `error`.

    Args:
        error: what came out of it.
        requested: the round has ended, and this rank is asked to leave its function.
        landed: an interruption was raised in it, or the abort has begun: what fails now fails because of that.
        by_signal: it is a `SystemExit` that a signal handler of the user's raised.
    """
    ours = any(isinstance(each, RankShouldRestart) for each in related(error))
    if ours and not (by_signal or _wishes_to_leave(error)):
        return Outcome.INTERRUPTED if requested else Outcome.FAILED
    if isinstance(error, SystemExit) and _succeeded(error.code):
        return Outcome.EXITED
    if by_signal or _wishes_to_leave(error):
        return Outcome.LEFT
    if isinstance(error, Exception):
        return Outcome.INTERRUPTED if landed else Outcome.FAILED
    if requested:
        return Outcome.INTERRUPTED
    failed = any(isinstance(each, Exception) for each in related(error)) or _is_torchs(error)
    return Outcome.FAILED if failed else Outcome.LEFT


def _succeeded(code: object) -> bool:
    """Whether an exit with this code is a success to Python: an object that is neither None nor a number is not."""
    return code is None or (isinstance(code, int) and code == 0)


def _wishes_to_leave(error: BaseException) -> bool:
    """Whether the user has said so, by one of the exceptions that say it; not by one that hides an interruption."""
    return any(isinstance(each, _WISHES) and not _hides_interruption(each) for each in _leaves(error))


def _hides_interruption(error: BaseException) -> bool:
    """Ctrl-C and `RestartAbort` are meant, whenever they come; an exit may come from a handler for everything."""
    if isinstance(error, KeyboardInterrupt | RestartAbort):
        return isinstance(error, RankShouldRestart)
    return any(isinstance(each, RankShouldRestart) for each in related(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    pending = [error]
    while pending:
        found = pending.pop()
        if isinstance(found, BaseExceptionGroup):
            pending += found.exceptions
        else:
            yield found


def _is_torchs(error: BaseException) -> bool:
    """`torch.distributed.checkpoint` tells of every failure by a `BaseException`."""
    return str(type(error).__module__).startswith("torch.distributed.")
