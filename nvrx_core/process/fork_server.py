"""A single-threaded process that forks a worker, and another one when that is lost.

A process with threads must not be forked for anything but exec: the child may inherit a lock that nobody will ever
release. So the template is forked before the caller has threads or stores of ours, does nothing, and forks the worker
whenever one is needed. Both are in a session of their own, hold none of the caller's files but those they are told to
keep, and are no children of the caller, whose `wait` calls stay its own.

The worker that returns has done its work, and the template ends with it. One that is killed, stopped, or fails is
replaced; after several that failed at once the template ends as well.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from nvrx_core.process.descriptors import give_up
from nvrx_core.process.lifeline import open_pidfd, send
from nvrx_core.process.waiting import readable

__all__ = ["ForkServer", "TemplateError"]

READY_WITHIN: Final = 5.0
TRIES: Final = 3
SHORT_LIFE: Final = 1.0
SHORT_LIVES: Final = 5
"""Workers in a row that did not live for `SHORT_LIFE`, after which no more are forked."""
MAX_MESSAGE: Final = 256
FINISHED: Final = 71
"""The exit code of a worker whose work is done: not 0, with which anything may end a process."""
DONE: Final = b"done"
"""The worker's last word; what follows is its end, and the template's."""
WHY: Final = b"why "
"""Before the exception that worker or template failed with; their end follows."""


class TemplateError(RuntimeError):
    """No worker could be started."""


class ForkServer:
    """The caller's end of a template process and its worker.

    Attributes:
        channel: becomes readable when a worker was replaced (`poll`), and ends when the template has ended.
        worker: the worker's pid.
        server: the template's own.
        done: the worker has said its last word.
        ended: the template is gone; `channel` stays readable and has nothing more to say.
        reason: the exception that the last worker, or the template, failed with; "" for none.
    """

    def __init__(self, channel: socket.socket, first: int) -> None:
        self.channel, self._first = channel, first
        self.worker = self.server = 0
        self.done = self.ended = False
        self.reason = ""

    @classmethod
    def start(cls, work: Callable[[Callable[[], None]], None], keep: Iterable[int]) -> ForkServer:
        """Fork the template, which forks its worker while the caller goes on; `await_ready` says how that went.

        Args:
            work: what the worker does; it calls its argument when it is ready.
            keep: descriptors that template and worker need.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        first = os.fork()
        if first == 0:
            _detach_and_serve(work, theirs, keep)
        theirs.close()
        return cls(ours, first)

    def await_ready(self) -> None:
        """Wait for the worker.

        Raises:
            TemplateError: when none was ready in time, three times in a row.
        """
        for _ in range(TRIES):
            if readable([self.channel], READY_WITHIN):
                message = self._receive()
                if message.startswith(b"ready "):
                    self._reap()
                    return
                if not message:
                    break
        self.end(0.0)
        why = f"; it failed with {self.reason}" if self.reason else ""
        raise TemplateError(f"the monitor process was not ready within {READY_WITHIN:g} s, {TRIES} times in a row{why}")

    def _reap(self) -> None:
        """Collect the process between caller and template, which has nothing to do but to end."""
        first, self._first = self._first, 0
        if first:
            with suppress(ChildProcessError):
                os.waitpid(first, 0)

    def _receive(self) -> bytes:
        """The next message that is no reason for another one; notes what it says."""
        while (received := self.channel.recv(MAX_MESSAGE)).startswith(WHY):
            self.reason = received.removeprefix(WHY).decode(errors="replace")
        if received.startswith(b"ready "):
            self.worker, self.server = map(int, received.split()[1:])
        return received

    def poll(self) -> str | None:
        """Why the worker was replaced; "" when the template itself is gone, None when there is no news."""
        if not readable([self.channel], 0):
            return None
        self.reason = ""
        received = self._receive()
        self.ended = not received
        self.done = self.done or received == DONE
        if received.startswith(b"ready ") or self.done:
            return None
        return ": ".join(filter(None, (received.decode(), self.reason))) if received else ""

    def detach(self) -> None:
        """Let worker and template go on by themselves; they end when the work is done."""
        self._reap()
        self._continue()
        self.channel.close()

    def end(self, within: float) -> None:
        """Wait until the worker is done, which ends it and the template; after `within` seconds it is killed."""
        self._reap()
        self._continue()
        if not (self.done or self._await_end(within)):
            with suppress(OSError):
                self.channel.send(b"end")
            self._await_end(1.0)
        self.channel.close()

    def _await_end(self, within: float) -> bool:
        deadline = time.monotonic() + within
        while readable([self.channel], deadline - time.monotonic()):
            if self.channel.recv(MAX_MESSAGE) in (b"", DONE):
                return True
        return False

    def _continue(self) -> None:
        """Wake them if they are stopped: a stopped worker is replaced by its template, but nobody replaces that."""
        for pid in filter(None, (self.worker, self.server)):
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)


def _detach_and_serve(work: Callable[[Callable[[], None]], None], channel: socket.socket, keep: Iterable[int]) -> None:
    """In the child: become an orphan in a session of its own, then serve. Never returns."""
    try:
        gc.disable()
        gc.freeze()
        os.setsid()
        if os.fork():
            os._exit(0)
        give_up({int(name) for name in os.listdir("/proc/self/fd")} - {channel.fileno(), *keep})
        _reset_signals()
        _serve(work, channel)
    except BaseException as error:  # boundary: the process ends here, its caller is told why
        _tell(channel, error)
    finally:
        os._exit(0)


def _tell(channel: socket.socket, error: BaseException) -> None:
    with suppress(OSError):
        channel.send((WHY + f"{type(error).__name__}: {error}".encode())[:MAX_MESSAGE], socket.MSG_DONTWAIT)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        with suppress(OSError, ValueError):
            if signal.getsignal(signum) not in (signal.SIG_DFL, signal.SIG_IGN):
                signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _serve(work: Callable[[Callable[[], None]], None], channel: socket.socket) -> None:
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    pause, short_lives = 0.0, 0
    while short_lives < SHORT_LIVES:
        born = time.monotonic()
        worker = _fork_worker(work, channel, (wake_read, wake_write))
        why = _await_end(worker, channel, wake_read)
        if why is None:
            return
        short_lives = short_lives + 1 if time.monotonic() - born < SHORT_LIFE else 0
        pause = 2 * pause + 0.01 if short_lives else 0.0
        with suppress(OSError):
            channel.send(f"{why} (pid {worker})".encode(), socket.MSG_DONTWAIT)
        select.select([], [], [], pause)


def _fork_worker(work: Callable[[Callable[[], None]], None], channel: socket.socket, pipe: tuple[int, int]) -> int:
    worker = os.fork()
    if worker:
        return worker
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in pipe:
            os.close(fd)

        def ready() -> None:
            with suppress(OSError):  # the caller is gone
                channel.send(f"ready {os.getpid()} {os.getppid()}".encode(), socket.MSG_DONTWAIT)

        work(ready)
        code = FINISHED
        channel.send(DONE, socket.MSG_DONTWAIT)
    except BaseException as error:  # boundary: the process ends here, its caller is told why
        _tell(channel, error)
    finally:
        with suppress(OSError):  # a template that is stopped would not see its worker's end
            os.kill(os.getppid(), signal.SIGCONT)
        os._exit(code)


def _await_end(worker: int, channel: socket.socket, wake: int) -> str | None:
    """Wait for the worker; why it must be replaced, or None when all is done."""
    pidfd = open_pidfd(worker)
    channels: list[Any] = [channel, wake]
    try:
        while True:
            found, status = os.waitpid(worker, os.WNOHANG | os.WUNTRACED)
            if found and os.WIFSTOPPED(status):
                send(pidfd, [signal.SIGKILL])
            elif found:
                return _why(status)
            ready = readable(channels)
            if wake in ready:
                os.read(wake, 4096)
            if channel in ready:
                if _told(channel) == b"end":
                    send(pidfd, [signal.SIGKILL])
                    os.waitpid(worker, 0)
                    return None
                channels.remove(channel)
    finally:
        os.close(pidfd)


def _told(channel: socket.socket) -> bytes:
    """What the caller says, b"" when it is gone; one that left news unread is an error first: ECONNRESET, unix(7)."""
    with suppress(ConnectionResetError):
        return channel.recv(MAX_MESSAGE)
    return channel.recv(MAX_MESSAGE)


def _why(status: int) -> str | None:
    if os.WIFSIGNALED(status):
        return f"lost to {signal.Signals(os.WTERMSIG(status)).name}"
    code = os.WEXITSTATUS(status)
    return None if code == FINISHED else f"failed with exit code {code}"
