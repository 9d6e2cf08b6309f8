"""Fakes for tests without processes: a manual clock, a store in memory, and a `CallWrapper`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from nvrx_core.inprocess.call.handles import AtomicLock, MonitorHandle
from nvrx_core.inprocess.progress_watchdog import MainThreadWatchdog
from nvrx_core.inprocess.wrap import CallWrapper, Wrapper
from nvrx_core.rank_assignment.base import AssignmentState, FrozenState, Mode
from nvrx_core.store.mixin import StoreMixin

__all__ = ["FakeCallWrapper", "ManualClock", "MemoryStore"]


class ManualClock:
    """A monotonic clock and a wall clock that only a test advances.

    Args:
        now: the initial monotonic seconds.
        wall: the initial seconds since 1970.
    """

    def __init__(self, now: float = 0.0, wall: float = 0.0) -> None:
        self._now, self._wall = now, wall

    def now(self) -> float:
        """Return monotonic seconds."""
        return self._now

    def wall(self) -> float:
        """Return seconds since 1970."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Advance both clocks.

        Raises:
            ValueError: when `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"seconds={seconds}: a monotonic clock never goes back")
        self._now += seconds
        self._wall += seconds


class MemoryStore(StoreMixin, dist.HashStore):
    """A torch store in this process, shared by threads; a wait blocks until another thread sets the key.

    It is meant for functions and rank assignments under test. A `Wrapper` cannot use it, because its monitor process is
    another process.
    """

    endpoint = ("memory", 0)
    hosted = False

    @property
    def critical_ranks(self) -> Sequence[int]:
        """No rank: the store is lost only with its process."""
        return ()


class FakeSection:
    """The context of `FakeCallWrapper.atomic`; sections can be nested."""

    def __init__(self, call: FakeCallWrapper) -> None:
        self._call = call

    @property
    def is_open(self) -> bool:
        """Whether a section is open."""
        return self._call.depth > 0

    def __enter__(self) -> None:
        self._call.depth += 1
        self._call.sections += 1

    def __exit__(self, *error: object) -> None:
        self._call.depth -= 1


class FakeCallWrapper(CallWrapper):
    """A `CallWrapper` without a wrapper: it counts the calls of a function, and never interrupts it.

    Example:
        >>> call = FakeCallWrapper(iteration=1)
        >>> train(call)
        >>> assert call.steps[-1] == 99

    Args:
        iteration: the value of `iteration`.
        store: the base of `iteration_store`; default a new `MemoryStore`. Ranks that are threads share one.
        rank: the rank in `state`.
        world_size: the world size in `state`.

    Attributes:
        pings: how often the function has pinged.
        steps: the steps it has reported.
        sections: how many atomic sections it has entered.
        depth: how many of them are open.
        unprotected: how many `disable_hang_protection` are open.
        suspended: how many `suspend_ping` are open.
    """

    def __init__(self, iteration: int = 0, store: dist.Store | None = None, rank: int = 0, world_size: int = 1) -> None:
        self._state = AssignmentState(rank, world_size, rank, world_size, iteration=iteration, mode=Mode.ACTIVE)
        self._shared = MemoryStore() if store is None else store
        self._store = self._base_store = None
        self.pings = self.sections = self.depth = self.unprotected = self.suspended = 0
        self.steps: list[int] = []

    @property
    def iteration(self) -> int:
        """How often the function was restarted; `restart` increments it."""
        return self._state.iteration

    def restart(self) -> None:
        """Begin the next iteration, with an empty `iteration_store`."""
        self._state.advance()
        self._store = None

    def ping(self) -> None:
        """Count a ping."""
        self.pings += 1

    def suspend_pings(self) -> None:
        """Do nothing."""

    def progress(self, step: int, *, watched: bool = True) -> None:
        """Record a step."""
        self.steps.append(step)

    def atomic(self) -> Any:
        """Return an atomic section that is counted."""
        return FakeSection(self)

    @property
    def atomic_lock(self) -> AtomicLock:
        """`atomic()` as a lock."""
        return AtomicLock(self.atomic())

    @contextmanager
    def disable_hang_protection(self) -> Iterator[None]:
        """Return a context that is counted while it is open."""
        self.unprotected += 1
        try:
            yield
        finally:
            self.unprotected -= 1

    @contextmanager
    def suspend_ping(self) -> Iterator[None]:
        """Return a context that is counted while it is open."""
        self.suspended += 1
        try:
            yield
        finally:
            self.suspended -= 1

    def iteration_store(self) -> dist.Store:
        """Return a store for this iteration."""
        return dist.PrefixStore(str(self.iteration), self._shared)

    @property
    def base_store(self) -> dist.Store:
        """The store shared by all iterations."""
        return self._shared

    @property
    def state(self) -> FrozenState:
        """The state of an active rank."""
        return self._state.freeze()

    def shutdown(self) -> None:
        """Do nothing: there is nothing to stop."""

    @property
    def wrapper(self) -> Wrapper:
        """Not available.

        Raises:
            AttributeError: always.
        """
        raise _absent("wrapper")

    @property
    def monitor_process(self) -> MonitorHandle:
        """Not available, as `wrapper`."""
        raise _absent("monitor_process")

    @property
    def progress_watchdog(self) -> MainThreadWatchdog:
        """Not available, as `wrapper`."""
        raise _absent("progress_watchdog")


def _absent(name: str) -> AttributeError:
    return AttributeError(f"a FakeCallWrapper has no {name}: run the function in a Wrapper to test what it does there")
