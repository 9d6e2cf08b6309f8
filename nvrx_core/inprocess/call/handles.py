"""Read-only handles exposed by `CallWrapper`, and the parts that it delegates to."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Protocol

import torch.distributed as dist

from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.interruption.atomic import Atomic
from nvrx_core.inprocess.interruption.interrupt import FunctionThread
from nvrx_core.inprocess.progress_watchdog import MainThreadWatchdog
from nvrx_core.inprocess.state import State
from nvrx_core.process.lifeline import is_running
from nvrx_core.process.signal_safe import SignalSafeEvent
from nvrx_core.progress.page import Page
from nvrx_core.values import value

__all__ = ["AtomicLock", "CallHandles", "MonitorHandle", "PassedVotes", "UserStores"]


@value
class CallHandles:
    """The parts that a `CallWrapper` delegates to.

    Attributes:
        state: the rank's.
        page: its progress page.
        function_thread: the thread whose interruption its atomic sections defer.
        stores: the stores that user code gets.
        watchdog: the progress watchdog.
        monitor: the monitor process.
        over: set when the call has ended, and in a child of `os.fork`.
        votes: what ranks tell each other of their live states.
    """

    state: State
    page: Page
    function_thread: FunctionThread
    stores: UserStores
    watchdog: MainThreadWatchdog
    monitor: MonitorHandle
    over: SignalSafeEvent
    votes: PassedVotes


class Voting(Protocol):
    """A live state."""

    def passed_vote(self) -> tuple[int, ...]:
        """Return the iteration and the step of the last vote that it has passed; empty for none."""


class PassedVotes:
    """The votes that the live states of a call have passed: this rank's for its arrivals, the newest from decisions.

    What is told is of one live state. Where any rank has several, the decision has no vote: it may have passed a newer
    vote of the one that the others tell of.
    """

    def __init__(self) -> None:
        self._states = weakref.WeakSet[Voting]()
        self._teller: weakref.ref[Voting] | None = None
        self._newest: tuple[int, ...] = ()
        self._committed_at: dict[int, tuple[CodeType, int]] = {}

    def register(self, state: Voting) -> None:
        """Add a live state that belongs to the call; it is not kept alive."""
        self._states.add(state)

    def passed(self) -> tuple[tuple[int, ...], bool]:
        """Return the vote that this rank tells of, empty for none, and whether it has several live states."""
        states = list(self._states)
        self._teller = weakref.ref(states[0]) if len(states) == 1 else None
        return states[0].passed_vote() if len(states) == 1 else (), len(states) > 1

    def decided(self, newest: tuple[int, ...]) -> None:
        """Note the newest vote that any living rank has told of, empty for none: an iteration begins."""
        self._newest, self._committed_at = newest, {}

    def committed(self, caller: FrameType | None) -> None:
        """Note where the function has committed a step: a restart does not do again what follows it in its pass.

        No frame is kept: frames have the function's process groups.
        """
        self._committed_at = {}
        while caller is not None:
            self._committed_at[id(caller)] = caller.f_code, caller.f_lineno
            caller = caller.f_back

    def follows_commit(self, trace: TracebackType | None) -> bool:
        """Return whether an exception comes from a line behind the last commit, in the innermost frame of both.

        What comes from a line before it belongs to the next step, in a loop. In one that commits in some of its passes
        only, a line behind the commit is reached without one as well. Gradients do not tell these passes: an evaluation
        may make some, too.
        """
        behind = False
        while trace is not None:
            code, line = self._committed_at.get(id(trace.tb_frame), (None, 0))
            if code is not trace.tb_frame.f_code:
                break
            behind, trace = trace.tb_lineno > line, trace.tb_next
        return behind

    def newest(self, state: Voting) -> tuple[tuple[int, ...], bool]:
        """Return the newest vote, empty for none, and whether it is this live state that this rank has told of."""
        return self._newest, self._teller is not None and self._teller() is state


class AtomicLock:
    """The atomic section as a lock: its holder is not interrupted. It can be nested, in the function's thread.

    Args:
        section: the section.
    """

    def __init__(self, section: Atomic) -> None:
        self._section = section

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Enter the section; the arguments are those of a lock and have no effect: no other thread can hold it."""
        self._section.__enter__()
        return True

    def release(self) -> None:
        """Leave the section.

        Raises:
            RuntimeError: when it is not open.
        """
        if not self._section.is_open:
            raise RuntimeError("release() without acquire(): the atomic section is not open")
        self._section.__exit__(None, None, None)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class MonitorHandle:
    """The rank's current monitor process: a lost one is replaced.

    Args:
        pid: returns its process id, once it has started.
    """

    def __init__(self, pid: Callable[[], int]) -> None:
        self._pid = pid

    @property
    def pid(self) -> int:
        """The pid of the monitor process; shortly after the entry, it waits until the process has started."""
        return self._pid()

    def is_alive(self) -> bool:
        """Whether the monitor process runs."""
        return is_running(self.pid)


class UserStores:
    """The stores that user code gets, each on its own connection.

    Args:
        connections: the call's connections to the control store.
        observer: cuts a connection if nothing else ends the function's wait on it.
        state: the state of this rank.
    """

    def __init__(self, connections: Connections, observer: GroupObserver, state: State) -> None:
        self._connections, self._observer, self._state = connections, observer, state

    def iteration_store(self) -> dist.Store:
        """Open a torch store for the iteration, initially empty."""
        self._may_be_cut()
        return self._connections.iteration_store(self._state.iteration, self._observer.rendezvous_endpoint)

    def base_store(self) -> dist.Store:
        """Open a connection to the control store itself."""
        self._may_be_cut()
        return self._connections.another_store()

    def _may_be_cut(self) -> None:
        if self._connections.endpoint[1]:
            self._observer.store_ports.add(self._connections.endpoint[1])
