"""Blocking calls of the main thread that neither a signal nor an abort of the groups ends: reads, and some receives.

An example of a read is one on a store client that was created before the call, so that the wrapper does not know of it.
The kernel reports the descriptor that the main thread reads from. The connection of a store is shut down at once, and
another one is put in its place before the next iteration: the store goes on serving. Any other connection is shut down
when the read takes longer than `PATIENCE`; otherwise the rank would be terminated at the hard timeout.

gloo does not fail a receive from any rank when a connection closes, so a thread that waits for it blocks until the
group's timeout. The main thread therefore waits for another thread, which waits for gloo and is abandoned when the
function ends.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist

from nvrx_core.process.sockets import TcpSocket, describe, put_in_place, shut_down, socket_inodes, tcp_sockets
from nvrx_core.process.system_calls import waits_on
from nvrx_core.store.connection import reconnect
from nvrx_core.store.endpoint import StoreConnectionError

__all__ = ["BlockedRead", "InterruptibleCall", "InterruptibleWork", "interruptible", "store_in_use"]


log = logging.getLogger("nvrx_core.inprocess")
PATIENCE: Final = 1.0
"""Seconds that a read may take in spite of signals before its connection is shut down."""


class BlockedRead:
    """The connection that the thread which creates this object reads from."""

    def __init__(self) -> None:
        self._thread, self._ident = threading.get_native_id(), threading.get_ident()
        self._inode = 0
        self._since = 0.0
        self._cut: list[tuple[TcpSocket, dist.TCPStore]] = []

    def cut(self, *, now: float) -> int:
        """Shut down the connection that the thread reads from, unless it may yet answer; return how many (0 or 1)."""
        found = self._connection()
        if found is None or found.inode != self._inode:
            self._inode, self._since = (0 if found is None else found.inode), now
            if found is not None and (store := store_in_use(self._ident, found.peer_port)) is not None:
                self._cut.append((found, store))
                return int(shut_down(found))
        if found is None or now < self._since + PATIENCE:
            return 0
        log.warning(
            "the main thread blocks in a read from port %d that no signal ends: the connection is shut down",
            found.peer_port,
        )
        return int(shut_down(found))

    def restore(self) -> None:
        """Connect the stores again whose connection was shut down, before the function is entered."""
        self._inode = 0
        while self._cut:
            _restore(*self._cut.pop())

    def _connection(self) -> TcpSocket | None:
        fd = waits_on(self._thread)
        try:
            found = None if fd is None else describe(fd, os.fstat(fd).st_ino)
        except OSError:
            return None
        return found if found is not None and found.peer_port else None


def _restore(cut: TcpSocket, store: dist.TCPStore) -> None:
    """Put a new connection in the place of one that was shut down: torch's client connects only once."""
    before = socket_inodes()
    try:
        fresh = reconnect(store, _no_clone, {})
        new = tcp_sockets(lambda inode: inode not in before)
        (found,) = [each for each in new if each.peer_port == cut.peer_port]
        put_in_place(found, cut)
        del fresh
    except (StoreConnectionError, RuntimeError, OSError, ValueError):
        log.warning(
            "the store on %s:%d, made before the call, does not answer: it cannot be used any more. Make it in the "
            "function, or host it in a process that is no rank", store.host, store.port,
        )  # fmt: skip


def _no_clone(**kwargs: Any) -> dist.Store:
    raise StoreConnectionError("this version of torch opens no second connection of a store")


class InterruptibleWork:
    """A proxy of a torch work that replaces its `wait`.

    Args:
        work: the work.
    """

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait as the work does; in the main thread, a signal ends the wait.

        Raises:
            BaseException: the exception of the work's own `wait`.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._work.wait(*args, **kwargs)
        waiting = InterruptibleCall(lambda: self._work.wait(*args, **kwargs))
        waiting.done.acquire()  # in C: a handler that raises leaves nothing half done
        return waiting.outcome()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class InterruptibleCall:
    """A call in its own thread, which is abandoned if nobody waits for it any more.

    Attributes:
        done: a lock that can be acquired when the call has ended; a signal ends the wait for it.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.done = threading.Lock()
        self.done.acquire()
        self._call, self._result = call, None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="nvrx-receive", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # boundary: the thread ends here, the waiting thread gets the error
            self._error = error
        finally:
            self.done.release()

    def outcome(self) -> Any:
        """Return the result of the call.

        Raises:
            BaseException: the exception of the call.
        """
        if self._error is not None:
            raise self._error
        return self._result


def interruptible(receive: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that returns the work of a receive, so that it returns an `InterruptibleWork`."""
    return lambda *args, **kwargs: InterruptibleWork(receive(*args, **kwargs))


DEPTH: Final = 3
"""Levels below the locals: an object, its attributes, and what these refer to."""
MAX_OBJECTS: Final = 2_000
"""Objects of one frame after which its search ends: a millisecond."""
MAX_FRAMES: Final = 32
"""The innermost frames, which are searched."""
MAX_CONTAINER: Final = 100
_NO_PARTS: Final = (
    types.ModuleType, types.CodeType, types.FrameType, types.FunctionType, type, str, bytes, int, float,
)  # fmt: skip


def store_in_use(thread: int, port: int) -> dist.TCPStore | None:
    """Return a TCP store with its server at `port` that the frames of a thread refer to; None where there is none.

    A store that was made before the call is known to its user only. While a thread waits in one, a frame refers to it:
    directly, by a prefix store, or by an object's attribute. The objects of each frame are searched level by level, as
    the interpreter reports what they refer to: no user code runs.

    Args:
        thread: `threading.get_ident()` of a thread that runs no bytecode.
        port: the port of the server.
    """
    frame, frames = sys._current_frames().get(thread), 0
    while frame is not None and frames < MAX_FRAMES:
        used = [frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals]
        level, seen = [*frame.f_locals.values(), *used], dict[int, object]()
        for _ in range(DEPTH + 1):
            new = {id(each): each for each in level if id(each) not in seen}
            seen |= new
            for store in map(_tcp_store, new.values()):
                if store is not None and store.port == port:
                    return store
            if len(seen) > MAX_OBJECTS:
                break
            held = (gc.get_referents(each) for each in new.values() if not issubclass(type(each), _NO_PARTS))
            level = [part for parts in held if len(parts) <= MAX_CONTAINER for part in parts]
        frame, frames = frame.f_back, frames + 1
    return None


def _tcp_store(found: Any) -> dist.TCPStore | None:
    while issubclass(type(found), dist.PrefixStore):
        found = found.underlying_store
    return found if issubclass(type(found), dist.TCPStore) else None
