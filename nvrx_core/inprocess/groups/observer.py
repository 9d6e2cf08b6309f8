"""Process groups and stores of the function, observed while it runs.

A group that the function has made is held until the round has ended. gloo's destructor joins its threads, and one of
them may need the interpreter's lock to destroy a work: were the last reference that of a DDP model whose frame is left,
the main thread would join while it holds the lock, for ever. Let go from Python, a group is destroyed without the lock;
and the 10 ms that this takes do not lie between a fault and the restart.

The creation of a group is observed to hold it, the constructor of `TCPStore` to learn which ports are those of the
function's own stores, and a rendezvous to let it happen, from iteration 1 on, where the wrapper hosts a store.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, ClassVar, Final

import torch.distributed as dist

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.groups.blocked_read import BlockedRead
from nvrx_core.inprocess.groups.gloo_connections import GlooConnections
from nvrx_core.inprocess.groups.receive import interruptible
from nvrx_core.inprocess.groups.store_clients import STORE_TIMEOUT, apart, connect, given_arguments, meet, says_who
from nvrx_core.inprocess.groups.torch_groups import (
    are_whole,
    collectives_begun,
    forget_groups,
    nccl_timeout,
    observe,
)
from nvrx_core.process.sockets import shut_down, socket_inodes, tcp_sockets
from nvrx_core.progress.page import Page, ProgressField

RESERVE: Final = 4
RESERVE_MOST: Final = 256
"""Descriptors put by for the abort: some to look at the sockets, and one for each connection that is kept open."""
HELD: Final = 64
"""Groups held at most; a function that makes and destroys many does not keep them all."""

__all__ = ["GroupObserver", "abort_groups", "free_reserve"]


class GroupObserver:
    """Watches group and store creation while it is installed; made in the thread that runs the function.

    Args:
        page: where the rank's progress is noted.
        nccl_timeout: told the timeout of an NCCL group's watchdog, each timeout once.

    Attributes:
        meeting_place: host and port of the store that the wrapper hosts for the iteration's process group.
        current: the observer of the wrapped function that runs now.
    """

    current: ClassVar[GroupObserver | None] = None

    def __init__(self, page: Page, nccl_timeout: Callable[[timedelta], None] = lambda timeout: None) -> None:
        self.page = page
        self._nccl_timeout = functools.cache(nccl_timeout)
        self.store_ports: set[int] = set()
        self.rendezvous_endpoint: tuple[str, int] | None = None
        self._aborted = False
        self._gloo = GlooConnections()
        self._read = BlockedRead(threading.get_native_id())
        self._before_function: frozenset[int] = frozenset()
        self._observed = ExitStack()
        self._excepthook: Any = sys.excepthook
        self._held: deque[Any] = deque(maxlen=HELD)
        self._default: Any = None
        self._defaults = 0
        self._reserve: list[int] = []

    def install(self) -> None:
        """Start to observe."""
        GroupObserver.current = self
        self._excepthook = sys.excepthook
        self._observed = observe(
            group=self._creating, store=self._connecting, rendezvous=self._meeting_at, receive=interruptible
        )

    def uninstall(self) -> None:
        """Stop to observe."""
        self.release()
        self.free_reserve()
        self.disown()

    def disown(self) -> None:
        """Give torch its own functions back and leave the groups alone, as befits a child of `os.fork`."""
        GroupObserver.current = None
        self._observed.close()

    def clear_groups(self) -> None:
        """Before an iteration, in the main thread: clear what the last one has left in torch's tables.

        The abort clears them in another thread, while the main thread may be anywhere in `init_process_group`: what it
        was about to enter there is entered after the abort. A creation that failed leaves torch's counter of groups
        raised: ranks that got different far would wait on different keys for ever. Whole groups that no abort has
        touched are the user's.
        """
        if self._aborted or not are_whole():
            forget_groups()
        self._aborted = False

    def begin(self) -> None:
        """A new iteration: what was noted of the last one is void."""
        self._defaults = 0
        self.store_ports.clear()
        self._before_function = socket_inodes()
        self._put_by(RESERVE)

    def _creating(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*args: Any, **kwargs: Any) -> Any:
            hit("init-pg-before", self.page[ProgressField.ITERATION])
            self._put_by(len(self._reserve) + self.page[ProgressField.WORLD_SIZE])
            with self._meeting():
                created = create(*args, **kwargs)
            self._held.append(created)
            if not dist.is_initialized():
                self._default = created[0]
                self._defaults += 1
            self._tell_timeout(created[0])
            hit("init-pg-after", self.page[ProgressField.ITERATION])
            return created

        return observed

    def _put_by(self, files: int) -> None:
        """Hold as many descriptors as the abort of the groups will need, for a function that uses up all others."""
        with suppress(OSError):
            while len(self._reserve) < min(files, RESERVE_MOST):
                self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def free_reserve(self) -> None:
        """Let go of what was put by."""
        while self._reserve:
            os.close(self._reserve.pop())

    def _tell_timeout(self, group: Any) -> None:
        timeout = nccl_timeout(group)
        if timeout is not None:
            self._nccl_timeout(timeout)

    def _connecting(self, init: Callable[..., None]) -> Callable[..., None]:
        def observed(store: dist.TCPStore, host_name: str, port: int = 0, *args: Any, **kwargs: Any) -> None:
            self.store_ports.add(port)
            given, place = given_arguments(args, kwargs), (host_name, port)
            with self._meeting():
                if given.get("is_master", False):
                    init(store, host_name, port, *args, **kwargs)
                else:
                    connect(
                        functools.partial(init, store, *place), given, place, meeting=place == self.rendezvous_endpoint
                    )
                    store.set_timeout(given.get("timeout", STORE_TIMEOUT))
            self.store_ports.add(store.port)

        return observed

    def _meeting_at(self, handler: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """A fixed address is good for one iteration: rank 0 may be another one, the port taken, the file written.

        The wrapper's store lasts as long as the iteration: a further default group in it has keys of its own there.
        """

        def observed(url: str, **kwargs: Any) -> Iterator[Any]:
            if self.page[ProgressField.ITERATION] < 1 or self.rendezvous_endpoint is None:
                return handler(url, **kwargs)
            hosted = says_who(url) and not url.startswith("env:")
            found = meet(self.rendezvous_endpoint, url, **kwargs) if hosted else handler(url, **kwargs)
            return apart(found, self._defaults)

        return observed

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """A call in which ranks wait for each other."""
        self.page[ProgressField.RENDEZVOUS_COUNT] += 1
        self.page[ProgressField.RENDEZVOUS_AT] = time.monotonic_ns()
        self.page[ProgressField.RENDEZVOUS_DEPTH] += 1
        try:
            yield
        finally:
            self.page[ProgressField.RENDEZVOUS_DEPTH] -= 1

    def abort_groups(self) -> None:
        """End the function's collectives, and clear torch's tables."""
        self._aborted = True
        self.free_reserve()
        self._gloo.cut()
        self._gloo.close_when_late()
        forget_groups()

    def unblock(self) -> int:
        """Close what the main thread may wait in, when no signal has reached it; how many connections were closed."""
        closed = self._gloo.cut() + self._cut_stores() + self._read.cut(now=time.monotonic())
        return closed or self._gloo.offer(self.page[ProgressField.WORLD_SIZE])

    def _cut_stores(self) -> int:
        """Cut the client connections of the function's own stores."""
        candidates = [
            s for s in tcp_sockets() if s.peer_port in self.store_ports and s.inode not in self._before_function
        ]
        return sum(shut_down(s) for s in candidates)

    def count_collectives(self) -> None:
        """Note how many collectives the default group has begun, destroyed or not."""
        self.page[ProgressField.COLLECTIVES] = collectives_begun(dist.group.WORLD or self._default)

    def release(self) -> None:
        """Let the groups of the ended round go, their connections, and torch's chain of exception hooks."""
        self._held.clear()
        self._default = None
        self._gloo.release()
        sys.excepthook = self._excepthook


def free_reserve() -> None:
    """Let go of the descriptors that were put by for the abort."""
    if GroupObserver.current is not None:
        GroupObserver.current.free_reserve()


def abort_groups() -> None:
    """End the collectives of the running function, or of a process without one, and clear torch's tables."""
    if GroupObserver.current is not None:
        GroupObserver.current.abort_groups()
    else:
        forget_groups()
