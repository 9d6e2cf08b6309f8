"""The plan of a monitor process: what it needs to know, fixed before it is forked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from nvrx_core.events.log import EventLog
from nvrx_core.inprocess.coordination.joining import JoinRequest
from nvrx_core.inprocess.protocol.timeouts import HangTimeouts
from nvrx_core.process.memory import MemoryKills
from nvrx_core.process.stacks import Stacks
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.store.keys import StoreKeys
from nvrx_core.store.torch_stores import Factory
from nvrx_core.values import value

__all__ = ["MonitorPlan"]


@value
class MonitorPlan:
    """The plan of a monitor process, inherited by fork.

    Attributes:
        rank_pid: its process.
        rank_pidfd: a pidfd of that process.
        wake: an eventfd that the rank writes to when its page has changed.
        started: an eventfd that the monitor process writes to when it has started.
        factory, kwargs: how to connect to the store.
        keys: the keys of the call, in any generation.
        join_request: the rank that joins a generation.
        timeouts: of progress, and of the leases.
        grace: seconds from SIGTERM to SIGKILL.
        interval: seconds between two samples of the page, at most.
        barrier: how long to wait for the others' decision after a death.
        interrupt_signal: the interrupt signal.
        events: the event file.
        stacks: the stacks of the rank's threads.
        memory_kills: counts the OOM kills in the rank's cgroup, which is not known any more once the rank is dying.
        logfile: the log file, with `{rank}` filled in; None for no log.
        pidfile: the pid file, likewise.
    """

    rank_pid: int
    rank_pidfd: int
    wake: int
    started: int
    factory: Factory
    kwargs: Mapping[str, Any]
    keys: StoreKeys
    join_request: JoinRequest
    timeouts: HangTimeouts
    grace: float
    barrier: timedelta
    interval: float
    interrupt_signal: int
    events: EventLog
    stacks: Stacks
    memory_kills: MemoryKills
    logfile: str | None = None
    pidfile: str | None = None

    @property
    def member(self) -> InitialRank:
        """The rank's initial rank."""
        return self.join_request.member
