"""The wrapper's parameters: their values, checked before anything is started."""

from __future__ import annotations

import inspect
import os
import signal
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from nvrx_core.errors import ParameterError, ParameterTypeError, require, require_type
from nvrx_core.inprocess.abort import Abort
from nvrx_core.inprocess.completion import Completion
from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.inprocess.health_check import HealthCheck
from nvrx_core.inprocess.initialize import Initialize
from nvrx_core.inprocess.terminate import Terminate
from nvrx_core.rank_assignment.base import RankAssignment
from nvrx_core.rank_assignment.composition import check as check_assignment
from nvrx_core.store.mixin import StoreMixin
from nvrx_core.store.torch_stores import Factory

__all__ = ["Parameters"]


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """All parameters of a `Wrapper`; see there for their meaning.

    Raises:
        ValueError: when a value breaks a rule.
        TypeError: when a value has the wrong type.
    """

    store_factory: Factory
    store_kwargs: dict[str, Any]
    initialize: Initialize | None
    abort: Abort | None
    finalize: Finalize | None
    health_check: HealthCheck | None
    rank_assignment: RankAssignment
    rank_filter: RankAssignment | None
    monitor_thread_interval: timedelta
    monitor_process_interval: timedelta
    heartbeat_interval: timedelta
    progress_watchdog_interval: timedelta
    soft_timeout: timedelta
    hard_timeout: timedelta
    heartbeat_timeout: timedelta
    barrier_timeout: timedelta
    completion_timeout: timedelta
    last_call_wait: timedelta
    termination_grace_time: timedelta
    monitor_process_logfile: str | None
    monitor_process_pidfile: str | None
    completion: Completion | None
    terminate: Terminate | None
    events_dir: str | None
    interrupt_signal: int
    thread_exceptions: str
    no_progress_limit: int | None

    @property
    def breath(self) -> float:
        """Seconds between two signs of life of the watchdog thread."""
        return min(self.progress_watchdog_interval, self.soft_timeout / 20).total_seconds()

    def __post_init__(self) -> None:
        self._check_types()
        self._check_times()
        self._check_order()
        for name in ("monitor_process_logfile", "monitor_process_pidfile"):
            path = getattr(self, name)
            require(path is None or os.path.isabs(path), name, path, "an absolute path")
        require(
            self.thread_exceptions in ("log", "fault"), "thread_exceptions", self.thread_exceptions, "'log' or 'fault'"
        )
        limit = self.no_progress_limit
        require(limit is None or limit >= 1, "no_progress_limit", limit, "at least 1, or None for no limit")
        _check_signal(self.interrupt_signal)

    def _check_types(self) -> None:
        if not (inspect.isclass(self.store_factory) and issubclass(self.store_factory, StoreMixin)):
            raise ParameterTypeError(
                "store_factory", self.store_factory, "class that derives from inprocess.store.StoreMixin"
            )
        optional = {
            "initialize": Initialize,
            "abort": Abort,
            "finalize": Finalize,
            "health_check": HealthCheck,
            "completion": Completion,
            "terminate": Terminate,
            "rank_filter": RankAssignment,
        }
        for name, kind in optional.items():
            if getattr(self, name) is not None:
                require_type(name, getattr(self, name), kind)
        check_assignment(self.rank_assignment)

    def _check_times(self) -> None:
        for name, kind in self.__annotations__.items():
            if kind == "timedelta":
                value = getattr(self, name)
                require_type(name, value, timedelta)
                may_be_zero = name in ("last_call_wait", "termination_grace_time")
                rule = "not negative" if may_be_zero else "positive"
                require(value >= timedelta(0) if may_be_zero else value > timedelta(0), name, value, rule)

    def _check_order(self) -> None:
        """Each pair is a rule of the specification: the first must be shorter than the second."""
        for shorter, longer in (
            ("soft_timeout", "hard_timeout"),
            ("hard_timeout", "barrier_timeout"),
            ("monitor_process_interval", "barrier_timeout"),
            ("monitor_process_interval", "heartbeat_timeout"),
            ("monitor_process_interval", "soft_timeout"),
            ("heartbeat_timeout", "barrier_timeout"),
            ("heartbeat_interval", "heartbeat_timeout"),
            ("monitor_thread_interval", "soft_timeout"),
            ("progress_watchdog_interval", "soft_timeout"),
        ):
            least, most = getattr(self, shorter), getattr(self, longer)
            if not least < most:
                raise ParameterError(shorter, str(least), f"shorter than {longer}={most}")


def _check_signal(signum: int) -> None:
    require(signum in signal.valid_signals(), "interrupt_signal", signum, "a signal of this system")
    fixed = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCHLD, signal.SIGSEGV)
    require(
        signum not in fixed,
        "interrupt_signal",
        signum,
        "a signal that is free for this use, such as signal.SIGRTMIN + 8",
    )
