"""What a fork server does: fork a worker, wait for its end, fork the next one.

A worker that returns has done its work, and the server ends with it. One that is killed, stopped, or fails is replaced;
after several that failed at once the server ends as well, and after `STARTS_WITHIN` for want of a process. The first
worker may be postponed. The server tells its caller over a channel, one message a packet:

    postponed <server's pid>                the first worker follows, if it is postponed
    late <exception>                        there is no process for a worker; the fork is tried again
    ready <worker's pid> <server's pid>     after each start of a worker
    why <exception>                         before the end of a worker or server that failed with one
    <what became of it> (pid <worker>)      a worker was lost; another one follows
    done                                    the work is done; the ends of worker and server follow
    alive                                   the answer to `ask`

The caller says `start`, for a worker that is postponed, `ask`, and `end`, or nothing.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

from nvrx_core.backoff import Backoff
from nvrx_core.process.descriptors import give_up
from nvrx_core.process.lifeline import ParentDeathSignal, open_pidfd, send
from nvrx_core.process.orphan import Orphan
from nvrx_core.process.signals import SENT_TO_ALL, signal_name
from nvrx_core.process.waiting import readable
from nvrx_core.values import value

__all__ = [
    "ALIVE", "ASK", "DONE", "END", "LATE", "NO_CALLER", "POSTPONED", "READY", "START", "STARTS_WITHIN", "WHY",
    "Postponement", "Work", "become_server", "receive", "serve",
]  # fmt: skip

STARTS_WITHIN: Final = 15.0
"""Seconds in which a worker must have started."""
SHORT_LIFE: Final = 1.0
SHORT_LIVES: Final = 5
"""Workers in a row that did not live for `SHORT_LIFE`, after which no more are forked."""
PAUSES: Final = Backoff(0.01, 1.0)
"""Before the next fork, when one has failed, and when a worker did not live for `SHORT_LIFE`."""
TRANSIENT: Final = frozenset({errno.EAGAIN, errno.ENOMEM})
"""A limit of processes, or a lack of memory: it may last for a moment only."""
FINISHED: Final = 71
"""The exit code of a worker whose work is done: not 0, with which anything may end a process."""
FAILED: Final = 70
LINGERS: Final = 0.05
"""Seconds between the end of an orphan's work and its own: to free its memory takes the CPU that its caller may need to
end, and callers on the same node end together."""

MAX_MESSAGE: Final = 256
POSTPONED: Final = b"postponed "
LATE: Final = b"late "
READY: Final = b"ready "
WHY: Final = b"why "
DONE: Final = b"done"
START: Final = b"start"
END: Final = b"end"
ASK: Final = b"ask"
ALIVE: Final = b"alive"
NO_CALLER: Final = 0
"""In the place of the pid of the caller to die with."""

Work = Callable[[Callable[[], None]], None]


@value
class Postponement:
    """When the first worker is started: later, or as soon as it is needed.

    Attributes:
        seconds: after which it is started in any case.
        urgent: descriptors of the caller's; it is started at once when one is readable.
        begins: called in the server, before it waits.
        prepares: called in the server after that: imports what each worker needs.
    """

    seconds: float
    urgent: tuple[int, ...] = ()
    begins: Callable[[], None] | None = None
    prepares: Callable[[], object] | None = None


def serve(work: Work, arguments: Sequence[str], keep: Iterable[int] = ()) -> NoReturn:
    """Run the server, in a program that `ForkServer.spawn` has started; before it has threads.

    Args:
        work: what the worker does; it calls its argument when it is ready.
        arguments: the program's last two.
        keep: descriptors that server and worker need.
    """
    fd, caller = map(int, arguments)
    become_server(work, socket.socket(fileno=fd), keep, Orphan() if caller == NO_CALLER else ParentDeathSignal(caller))


def become_server(
    work: Work,
    channel: socket.socket,
    keep: Iterable[int],
    parting: ParentDeathSignal | Orphan,
    *,
    postponement: Postponement | None = None,
) -> NoReturn:
    """Run the server, in a process that was forked for it.

    Args:
        work: what the worker does.
        channel: this end of it.
        keep: descriptors that server and worker need, besides the channel.
        parting: what becomes of server and worker when the caller ends: they end with it, or outlive it as orphans.
        postponement: when the first worker is started; None: at once.
    """
    try:
        gc.disable()
        gc.freeze()
        if os.getsid(0) != os.getpid():
            os.setsid()
        if isinstance(parting, ParentDeathSignal):
            parting.set()
        else:
            parting.become()
        give_up({int(name) for name in os.listdir("/proc/self/fd")} - {channel.fileno(), *keep})
        _reset_signals()
        dies_with_caller = isinstance(parting, ParentDeathSignal)
        if postponement is None or _is_needed(channel, postponement):
            if postponement is not None and postponement.prepares is not None:
                postponement.prepares()
            _serve(work, channel, dies_with_caller)
        else:
            _finish(channel, dies_with_caller)
    except BaseException as error:  # boundary: the process ends here, its caller is told why
        _tell(channel, WHY, error)
    finally:
        os._exit(0)


def _tell(channel: socket.socket, what: bytes, error: BaseException) -> None:
    with suppress(OSError):
        channel.send((what + f"{type(error).__name__}: {error}".encode())[:MAX_MESSAGE], socket.MSG_DONTWAIT)


def _reset_signals() -> None:
    """Reset them, for the worker as well; server and worker last as long as their caller, whatever all are sent."""
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        with suppress(OSError, ValueError):
            if signum in SENT_TO_ALL:
                signal.signal(signum, signal.SIG_IGN)
            elif signal.getsignal(signum) not in (signal.SIG_DFL, signal.SIG_IGN):
                signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _is_needed(channel: socket.socket, postponement: Postponement) -> bool:
    """Wait until the first worker is due, or needed because the caller is gone; False: the caller needs none."""
    if postponement.begins is not None:
        postponement.begins()
    with suppress(OSError):
        channel.send(POSTPONED + str(os.getpid()).encode(), socket.MSG_DONTWAIT)
    ready = readable([channel.fileno(), *postponement.urgent], postponement.seconds)
    return channel.fileno() not in ready or _hear(channel) != END


def _finish(channel: socket.socket, dies_with_caller: bool) -> None:
    """Say that the work is done; an orphan's memory is freed later."""
    channel.send(DONE, socket.MSG_DONTWAIT)
    if not dies_with_caller:
        select.select([], [], [], LINGERS)


def _serve(work: Work, channel: socket.socket, dies_with_server: bool) -> None:
    death_signal = ParentDeathSignal(os.getpid()) if dies_with_server else None
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    finished = os.eventfd(0)

    def noted(ready: Callable[[], None]) -> None:
        work(ready)
        os.eventfd_write(finished, 1)

    signal.signal(signal.SIGCHLD, lambda *_: None)  # also where the caller ignores it: the worker's status is needed
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    short_lives = 0
    while short_lives < SHORT_LIVES:
        worker = _fork_worker(channel)
        if worker is None:
            return
        born = time.monotonic()
        if worker == 0:
            _become_worker(noted, channel, (wake_read, wake_write), death_signal)
        why = _await_end(worker, channel, wake_read)
        if why is None:
            return
        if readable([finished], 0):  # lost when its work was done
            with suppress(OSError):
                channel.send(DONE, socket.MSG_DONTWAIT)
            return
        short_lives = short_lives + 1 if time.monotonic() - born < SHORT_LIFE else 0
        with suppress(OSError):
            channel.send(f"{why} (pid {worker})".encode(), socket.MSG_DONTWAIT)
        if _is_ended(channel, PAUSES.pause(short_lives)):
            return


def _fork_worker(channel: socket.socket) -> int | None:
    """Fork, and try again while fork fails (EAGAIN, ENOMEM); None: the caller has ended the server meanwhile.

    The time for it is that of the pauses: one for which the machine is paused does not count.

    Raises:
        OSError: when it fails for too long, or otherwise.
    """
    failures, left = 0, STARTS_WITHIN
    while True:
        try:
            return os.fork()
        except OSError as error:
            if error.errno not in TRANSIENT or left <= 0:
                raise
            if not failures:
                _tell(channel, LATE, error)
            failures += 1
        pause = min(PAUSES.pause(failures), left)
        left -= pause
        if _is_ended(channel, pause):
            return None


def _is_ended(channel: socket.socket, pause: float) -> bool:
    """Wait for so many seconds; return whether the caller has said `end`. One that is gone still needs its worker."""
    said = _hear(channel) if readable([channel], pause) else START
    if not said:
        select.select([], [], [], pause)
    return said == END


def _become_worker(
    work: Work, channel: socket.socket, pipe: tuple[int, int], death_signal: ParentDeathSignal | None
) -> NoReturn:
    code, server = FAILED, os.getppid()
    try:
        if death_signal is not None:
            death_signal.set()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in pipe:
            os.close(fd)

        def ready() -> None:
            with suppress(OSError):  # the caller is gone
                channel.send(READY + f"{os.getpid()} {server}".encode(), socket.MSG_DONTWAIT)

        work(ready)
        code = FINISHED
        _finish(channel, death_signal is not None)
    except BaseException as error:  # boundary: the process ends here, its caller is told why
        _tell(channel, WHY, error)
    finally:
        with suppress(OSError):  # a server that is stopped would not see its worker's end
            os.kill(os.getppid(), signal.SIGCONT)
        os._exit(code)


def _await_end(worker: int, channel: socket.socket, wake: int) -> str | None:
    """Wait for the worker; returns why it must be replaced, or None when all is done."""
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
            said = _hear(channel) if channel in ready else START
            if said == END:
                send(pidfd, [signal.SIGKILL])
                os.waitpid(worker, 0)
                return None
            if not said:
                channels.remove(channel)
    finally:
        os.close(pidfd)


def _hear(channel: socket.socket) -> bytes:
    """Receive what the caller says, and answer where it asks whether this process runs."""
    if (said := receive(channel)) == ASK:
        with suppress(OSError):
            channel.send(ALIVE, socket.MSG_DONTWAIT)
    return said


def receive(channel: socket.socket) -> bytes:
    """Receive what the other end says, b"" when it is gone; one that left news unread is ECONNRESET first, unix(7)."""
    with suppress(ConnectionResetError):
        return channel.recv(MAX_MESSAGE)
    return channel.recv(MAX_MESSAGE)


def _why(status: int) -> str | None:
    if os.WIFSIGNALED(status):
        return f"lost to {signal_name(os.WTERMSIG(status))}"
    code = os.WEXITSTATUS(status)
    return None if code == FINISHED else f"failed with exit code {code}"
