"""The caller's end of a fork server: a single-threaded process that forks a worker, and another when that is lost.

A process with threads must not be forked for anything but exec: the child may inherit a lock that nobody will ever
release. So the server is forked before the caller has threads or stores of ours, or is started by exec where it is too
late for that; it forks the worker, at once or after a while, and every replacement. `fork_server_process` has what it
does.

Server and worker are in a session of their own and hold none of the caller's files but those they are told to keep.
They outlive the caller, and are no children of it, whose `wait` calls stay its own; or, where asked for, the server is
the caller's child and both end with it, whatever ends it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final, Self

from nvrx_core.process.children import start_child
from nvrx_core.process.fork_server_process import (
    ALIVE,
    ASK,
    DONE,
    END,
    LATE,
    NO_CALLER,
    POSTPONED,
    READY,
    START,
    STARTS_WITHIN,
    WHY,
    Postponement,
    Work,
    become_server,
    receive,
)
from nvrx_core.process.lifeline import ParentDeathSignal, open_pidfd, send
from nvrx_core.process.orphan import Orphan
from nvrx_core.process.sockets import blocking_pair
from nvrx_core.process.waiting import readable

__all__ = ["STARTS_WITHIN", "ForkServer", "ForkServerError", "Postponement"]

TRIES: Final = 3
READY_WITHIN: Final = STARTS_WITHIN / TRIES
ENDS_WITHIN: Final = 1.0


class ForkServerError(RuntimeError):
    """No worker could be started."""


class ForkServer:
    """One server and its worker.

    Attributes:
        channel: becomes readable when a worker was replaced (`poll`), and ends when the server has ended.
        worker: the worker's pid, 0 before it is ready.
        server: the server's pid.
        done: the worker has reported that its work is done.
        ended: the server is gone; `channel` stays readable and has nothing more to say.
        late: the server has no process for the worker, for the reason in `reason`, and tries again.
        reason: the exception that the last worker, or the server, failed with; "" for none.
    """

    def __init__(self, channel: socket.socket, child: int) -> None:
        self.channel = channel
        self.worker = self.server = 0
        self.done = self.ended = self.late = False
        self.reason = ""
        self._child, self._child_pidfd = child, -1
        with suppress(ProcessLookupError):  # ended and reaped by the kernel: the caller ignores SIGCHLD
            self._child_pidfd = open_pidfd(child)

    @classmethod
    def start(
        cls,
        work: Work,
        keep: Iterable[int],
        *,
        dies_with_caller: bool = False,
        postponement: Postponement | None = None,
    ) -> Self:
        """Fork the server, which forks its worker while the caller goes on; `await_ready` says how that went.

        Args:
            work: what the worker does; it calls its argument when it is ready.
            keep: descriptors that server and worker need.
            dies_with_caller: the kernel kills both as soon as the thread that calls this has ended.
            postponement: when the worker is started; None: at once.
        """
        parting = ParentDeathSignal(os.getpid()) if dies_with_caller else Orphan()
        ours, theirs = blocking_pair(socket.SOCK_SEQPACKET)
        with theirs, ExitStack() as failing:
            failing.callback(ours.close)
            child = _fork()
            if child == 0:
                become_server(work, theirs, keep, parting, postponement=postponement)
            failing.pop_all()
        return cls(ours, child)

    @classmethod
    def spawn(
        cls,
        command: Sequence[str],
        keep: Iterable[int],
        *,
        dies_with_caller: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Start the server by exec, for a caller that has threads.

        Args:
            command: a program and its arguments; it calls `fork_server_process.serve`, with the two arguments that are
                added to these.
            keep: descriptors that server and worker need; they have the same numbers there.
            dies_with_caller: the kernel kills both as soon as the thread that calls this has ended.
            env: the environment; None: the caller's.

        Raises:
            OSError: when the program cannot be started.
        """
        caller = os.getpid() if dies_with_caller else NO_CALLER
        ours, theirs = blocking_pair(socket.SOCK_SEQPACKET)
        with theirs, ExitStack() as failing:
            failing.callback(ours.close)
            started = start_child(
                [*command, str(theirs.fileno()), str(caller)],
                pass_fds=(theirs.fileno(), *keep),
                start_new_session=True,
                env=env,
            )
            failing.pop_all()
        started.returncode = 0  # `_reap` waits for it; Popen would warn that nobody does
        return cls(ours, started.pid)

    def await_ready(self) -> None:
        """Wait for the worker, or for the server where the worker is postponed.

        Raises:
            ForkServerError: when none was ready in time, three times in a row.
        """
        tries = 0
        while tries < TRIES:
            if readable([self.channel], READY_WITHIN):
                message = self._receive()
                if message.startswith((READY, POSTPONED)):
                    if self.server != self._child:
                        self._reap()
                    return
                if not message:
                    break
            tries += not self.late
            self.late = False
        self.end(0.0)
        why = f"; it failed with {self.reason}" if self.reason else ""
        raise ForkServerError(f"no worker was ready within {READY_WITHIN:g} s, {TRIES} times in a row{why}")

    def hasten(self) -> None:
        """Start a postponed worker at once."""
        with suppress(OSError):
            self.channel.send(START)

    def ask(self) -> None:
        """Ask the server whether it runs; its answer, as any of its messages, makes `channel` readable."""
        with suppress(OSError):
            self.channel.send(ASK, socket.MSG_DONTWAIT)

    def kill(self) -> None:
        """Kill the server, which may be stopped, and with it a worker that ends with the caller; then `end` it."""
        if self._child_pidfd >= 0:
            send(self._child_pidfd, [signal.SIGKILL])

    def is_overdue(self, waited: float) -> bool:
        """Return whether no worker is ready though `poll` has waited for it so long, in seconds."""
        return not self.worker and waited > STARTS_WITHIN

    def poll(self) -> str | None:
        """Return why the worker was replaced; "" when the server itself is gone, None when there is no such news."""
        if not readable([self.channel], 0):
            return None
        self.reason = ""
        received = self._receive()
        self.ended = not received
        self.done = self.done or received == DONE
        if received.startswith((READY, LATE, ALIVE)) or self.done:
            return None
        return ": ".join(filter(None, (received.decode(), self.reason))) if received else ""

    def detach(self) -> None:
        """Leave server and worker running on their own; they exit when the work is done."""
        self._continue()
        self.channel.close()
        if not self._reap(0.0 if self.server == self._child else ENDS_WITHIN):
            os.close(self._child_pidfd)

    def end(self, within: float) -> None:
        """Wait until worker and server have exited; after `within` seconds they are killed. Nothing the second time."""
        if self.channel.fileno() < 0:
            return
        self._continue()
        if not (self.done or self._await_end(within)):
            with suppress(OSError):
                self.channel.send(END)
            self._await_end(ENDS_WITHIN)
        self.channel.close()
        if not self._reap():  # stopped, or held up on its way to being a server
            send(self._child_pidfd, [signal.SIGKILL])
            self._reap()

    def _receive(self) -> bytes:
        """Receive the next message that is not the reason for another one, and record it."""
        while (received := receive(self.channel)).startswith(WHY):
            self.reason = received.removeprefix(WHY).decode(errors="replace")
        self.late = received.startswith(LATE)
        if self.late:
            self.reason = received.removeprefix(LATE).decode(errors="replace")
        elif received.startswith(READY):
            self.worker, self.server = map(int, received.removeprefix(READY).split())
        elif received.startswith(POSTPONED):
            self.server = int(received.removeprefix(POSTPONED))
        return received

    def _reap(self, within: float = ENDS_WITHIN) -> bool:
        """Reap the caller's child, the server or the process that started it; return whether it has exited."""
        if self._child_pidfd < 0:
            return True
        if not readable([self._child_pidfd], within):
            return False
        with suppress(ChildProcessError):  # the caller ignores SIGCHLD, or waits for any child itself
            os.waitid(os.P_PIDFD, self._child_pidfd, os.WEXITED)
        os.close(self._child_pidfd)
        self._child_pidfd = -1
        return True

    def _await_end(self, within: float) -> bool:
        deadline = time.monotonic() + within
        while readable([self.channel], deadline - time.monotonic()):
            if receive(self.channel) in (b"", DONE):
                return True
        return False

    def _continue(self) -> None:
        """Continue them if they are stopped: the server replaces a stopped worker, but nothing replaces the server."""
        for pid in filter(None, (self.worker, self.server)):
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)


def _fork() -> int:
    """Fork; signals to this thread wait until that is over, in the child until it unblocks them.

    What a handler raises in a function of `os.register_at_fork` is lost, and in the child it would reach the caller's
    frames. In a process with other threads, the kernel gives one of them a signal that is blocked here, and Python runs
    its handler here all the same.
    """
    child, mask = -1, signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        child = os.fork()
    finally:
        if child:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return child
