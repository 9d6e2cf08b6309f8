"""The wrapper's parameters, each declared once, and checked before anything is started."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from nvrx_core.errors import ParameterError, ParameterTypeError, require, shown
from nvrx_core.inprocess.abort import Abort, AbortTorchDistributed, steps_of
from nvrx_core.inprocess.completion import Completion
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.inprocess.health_check import HealthCheck
from nvrx_core.inprocess.initialize import Initialize, RetryController
from nvrx_core.inprocess.protocol.round import RoundTimeouts
from nvrx_core.inprocess.protocol.timeouts import HangTimeouts
from nvrx_core.inprocess.terminate import Terminate
from nvrx_core.rank_assignment.base import RankAssignment, RankFilter
from nvrx_core.rank_assignment.composition import check as check_assignment, sole_move
from nvrx_core.rank_assignment.filters import ActivateAllRanks
from nvrx_core.rank_assignment.moves import RankMove, ShiftRanks
from nvrx_core.settings.parameter import NOT_NEGATIVE, ValueRule, at_least, check, one_of, parameter, time_parameter
from nvrx_core.store.mixin import StoreMixin
from nvrx_core.store.torch_stores import Factory, TCPStore

__all__ = ["Parameters", "least_world_size"]

_ALIKE: Final = (
    "soft_timeout", "hard_timeout", "heartbeat_timeout", "barrier_timeout", "completion_timeout", "last_call_wait",
)  # fmt: skip
_SECOND: Final = timedelta(seconds=1)


def _names_rank_at_most(path: str) -> bool:
    try:
        return os.path.isabs(path.format(rank=0))
    except (LookupError, ValueError):
        return False


_RANK_PATH: Final = ValueRule("an absolute path, in which {rank} is the only field", _names_rank_at_most)


@dataclass(frozen=True, kw_only=True, eq=False)
class Parameters:
    """All parameters of a `Wrapper`.

    Raises:
        ValueError: when a value breaks a rule.
        TypeError: when a value has the wrong type.
    """

    store_factory: Factory = parameter(TCPStore, "Class of the control store; derives from `StoreMixin`.")
    store_kwargs: dict[str, Any] | None = parameter(None, "Its arguments.", kind=dict)
    initialize: Initialize | Compose | None = parameter(
        None, "Runs at the start of every iteration; `Exception` restarts, any other `BaseException` leaves.",
        kind=Initialize,
    )  # fmt: skip
    abort: Abort | Compose | None = parameter(
        AbortTorchDistributed(), "Ends what the function waits in; runs in a thread. None for nothing.",
        kind=Abort, optional=True,
    )  # fmt: skip
    finalize: Finalize | Compose | None = parameter(
        None, "Runs after an interruption, in the main thread; an exception makes the rank leave.", kind=Finalize
    )
    health_check: HealthCheck | Compose | None = parameter(
        None, "Runs before the function and after `finalize`; an exception makes the rank leave.", kind=HealthCheck
    )
    rank_assignment: RankAssignment | Compose = parameter(
        Compose(ActivateAllRanks(), ShiftRanks()), "Assigns the ranks of the next iteration to the healthy ranks."
    )
    rank_filter: RankFilter | Compose | None = parameter(
        None, "Deprecated; list it in `rank_assignment` instead.", kind=RankAssignment
    )
    monitor_thread_interval: timedelta = time_parameter(
        _SECOND,
        "Upper bound of the monitor thread's reaction; it is woken by events.",
        "soft_timeout",
        upper_bound=True,
    )
    monitor_process_interval: timedelta = time_parameter(
        _SECOND, "Upper bound of the monitor process's reaction; it is woken by events.",
        "barrier_timeout", "heartbeat_timeout", "soft_timeout",
        upper_bound=True,
    )  # fmt: skip
    heartbeat_interval: timedelta = time_parameter(
        _SECOND,
        "Time between two renewals of a rank's lease; shorter where `soft_timeout` is short.",
        "heartbeat_timeout",
    )
    progress_watchdog_interval: timedelta = time_parameter(
        _SECOND,
        "Time between two automatic heartbeats; shorter where `soft_timeout` is short.",
        "soft_timeout",
        upper_bound=True,
    )
    soft_timeout: timedelta = time_parameter(
        timedelta(seconds=60), "Without progress for so long, all ranks restart.", "hard_timeout"
    )
    hard_timeout: timedelta = time_parameter(
        timedelta(seconds=90), "Without progress for so long, the rank's process is ended.", "barrier_timeout"
    )
    heartbeat_timeout: timedelta = time_parameter(
        timedelta(seconds=30), "A rank whose lease is not renewed for so long is lost.", "barrier_timeout"
    )
    barrier_timeout: timedelta = time_parameter(
        timedelta(seconds=120), "Bound of the barriers between iterations; an atomic section is waited for beyond it."
    )
    completion_timeout: timedelta = time_parameter(
        timedelta(seconds=120), "Bound of the time from one rank's completion to that of all."
    )
    last_call_wait: timedelta = time_parameter(
        timedelta(0), "How long late faults of other ranks are waited for; they are merged without it, too.",
        rule=NOT_NEGATIVE,
    )  # fmt: skip
    termination_grace_time: timedelta = time_parameter(
        timedelta(seconds=5), "Time from SIGTERM to SIGKILL, for a process that handles SIGTERM.", rule=NOT_NEGATIVE
    )
    monitor_process_logfile: str | None = parameter(
        None, "The monitor process's log file, an absolute path; may hold `{rank}`.", kind=str, rule=_RANK_PATH
    )
    monitor_process_pidfile: str | None = parameter(
        None, "The monitor process's pid file, an absolute path; may hold `{rank}`.", kind=str, rule=_RANK_PATH
    )
    completion: Completion | Compose | None = parameter(None, "Runs when all ranks have completed.", kind=Completion)
    terminate: Terminate | Compose | None = parameter(
        None, "Runs when this rank leaves by an exception, after the barrier.", kind=Terminate
    )
    events_dir: str | os.PathLike[str] | None = parameter(
        None, "Directory of the event files; without it `NVRX_EVENTS_DIR`, else none are written."
    )
    interrupt_signal: int = parameter(signal.SIGRTMIN + 8, "The signal that interrupts the main thread.", kind=int)
    thread_exceptions: str = parameter(
        "log", "What an exception in another thread of the function is: a log line, or a fault.",
        kind=str, rule=one_of("log", "fault"),
    )  # fmt: skip
    no_progress_limit: int | None = parameter(
        10,
        "Give up after so many equal failures in a row, each within a minute and without a higher step; from the third "
        "one on restarts back off. None for never.",
        kind=int, rule=at_least(1, ", or None for no limit"), optional=True,
    )  # fmt: skip

    @property
    def timeouts(self) -> HangTimeouts:
        """The timeouts of progress, and what is derived from them."""
        return HangTimeouts(
            soft=self.soft_timeout.total_seconds(),
            hard=self.hard_timeout.total_seconds(),
            watchdog=self.progress_watchdog_interval.total_seconds(),
            heartbeat=self.heartbeat_interval.total_seconds(),
            heartbeat_timeout=self.heartbeat_timeout.total_seconds(),
        )

    @property
    def round_timeouts(self) -> RoundTimeouts:
        """The bounds of a round."""
        return RoundTimeouts(
            barrier=self.barrier_timeout.total_seconds(),
            completion=self.completion_timeout.total_seconds(),
            last_call=self.last_call_wait.total_seconds(),
        )

    @property
    def sole_move(self) -> RankMove | None:
        """The move by which alone the ranks are assigned, so that the leader follows from the terminated ranks."""
        return None if self.rank_filter is not None else sole_move(self.rank_assignment)

    def must_agree(self) -> dict[str, str]:
        """The parameters that all ranks of a job must have alike, as text."""
        times = {name: shown(getattr(self, name)) for name in _ALIKE}
        stages = getattr(self.rank_assignment, "instances", (self.rank_assignment,))
        return {
            **times,
            "rank_assignment": " > ".join(type(stage).__name__ for stage in stages),
            "no_progress_limit": str(self.no_progress_limit),
        }

    def __post_init__(self) -> None:
        _check_store(self.store_factory, self.store_kwargs)
        if not isinstance(self.events_dir, str | os.PathLike | None):
            raise ParameterTypeError("events_dir", self.events_dir, "str or os.PathLike")
        check(self)
        if self.abort is not None:
            steps_of(self.abort)
        check_assignment(self.rank_assignment)
        signum = self.interrupt_signal
        require(signum in signal.valid_signals(), "interrupt_signal", signum, "a signal of this system")
        fixed = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCHLD, signal.SIGSEGV)
        free = "a signal that is free for this use, such as signal.SIGRTMIN + 8"
        require(signum not in fixed, "interrupt_signal", signum, free)


def _check_store(factory: Any, kwargs: object) -> None:
    if not (inspect.isclass(factory) and issubclass(factory, StoreMixin)):
        expected = "type[inprocess.store.StoreMixin]"
        raise ParameterTypeError("store_factory", factory, expected, _our_store(factory))
    if not isinstance(kwargs, dict):
        return
    try:
        inspect.signature(factory).bind(**kwargs)
    except TypeError as error:
        names = ", ".join(inspect.signature(factory).parameters)
        raise ParameterError("store_kwargs", kwargs, f"arguments of {factory.__name__}({names}); {error}") from None
    except ValueError:  # it has no signature
        return


def _our_store(factory: object) -> str:
    """What to write instead of one of torch's own store classes, an instance, a function or another class."""
    name = getattr(factory, "__name__", type(factory).__name__)
    if name in ("TCPStore", "FileStore"):
        return f"store_factory=nvrx_core.inprocess.store.{name}"
    if inspect.isclass(factory):
        bases = ["nvrx_core.inprocess.store.StoreMixin", *(base.__name__ for base in factory.__bases__)]
        return f"class {name}({', '.join(bases)})"
    return "store_factory=nvrx_core.inprocess.store.TCPStore, store_kwargs={...}" if callable(factory) else ""


def least_world_size(initialize: Initialize | None) -> int:
    """Return how many ranks must be alive for an iteration to start: the highest `min_world_size`, at least 1."""
    asked = (part.min_world_size for part in _parts_of(initialize) if isinstance(part, RetryController))
    return max([1, *asked])


def _parts_of(initialize: object) -> Iterator[object]:
    if not isinstance(initialize, Compose):
        yield initialize
        return
    for part in initialize.instances:
        yield from _parts_of(part)
