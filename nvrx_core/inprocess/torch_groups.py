"""torch's process groups, where no public name reaches: the one file that touches private names of torch.distributed.

A group that the function has made is held until the round has ended. gloo's destructor joins its threads, and one of
them may need the interpreter's lock to destroy a work: were the last reference that of a DDP model whose frame is left,
the main thread would join while it holds the lock, for ever. Let go from Python, a group is destroyed without the lock;
and the 10 ms that this takes do not lie between a fault and the restart.

While a wrapped function runs, two of torch's functions are observed: the one that creates a process group, to learn
which listening sockets are gloo's, and the constructor of `TCPStore`, to learn which ports are those of the function's
own stores. Nothing they do is changed. A canary test fails with a clear text when a name used here moves.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, ClassVar, Final

import torch
import torch._C._distributed_c10d as bindings
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.bounded import call_all_bounded
from nvrx_core.process.sockets import keep_open, shut_down, socket_inodes, tcp_sockets, wait_quiet
from nvrx_core.progress.page import Page, Word
from nvrx_core.store.connection import StoreConnectionError, await_listener

STORE_ARGUMENTS: Final = (
    "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv",
)  # fmt: skip
"""Those of torch's `TCPStore` after host and port, in order."""
MEET_ATTEMPT: Final = timedelta(seconds=1)
CONNECT_ATTEMPT: Final = timedelta(seconds=5)
"""How long a client of a store may be out of reach of a signal."""
STORE_TIMEOUT: Final = timedelta(seconds=300)
"""torch's default."""
QUIET_WITHIN: Final = 0.05
"""Seconds that collectives of living ranks have to come to rest before the connections are cut."""
ABORT_WITHIN: Final = timedelta(seconds=10)
"""How long an abort of NCCL may take."""
RESERVE: Final = 4
RESERVE_MOST: Final = 256
"""Descriptors put by for the abort: some to look at the sockets, and one for each connection that is kept open."""
HELD: Final = 64
"""Groups held at most; a function that makes and destroys many does not keep them all."""

__all__ = [
    "GroupObserver",
    "abort_gloo",
    "flight_recorders",
    "forget_groups",
    "free_reserve",
    "has_groups",
    "reset_group_count",
]

log = logging.getLogger("nvrx_core.inprocess")


class GroupObserver:
    """Watches group and store creation while it is installed.

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
        self.meeting_place: tuple[str, int] | None = None
        self._listeners: set[int] = set()
        self._pairs: set[int] = set()
        self._before_group: frozenset[int] | None = None
        self._before_function: frozenset[int] = frozenset()
        self._create = c10d._new_process_group_helper
        self._init_store = dist.TCPStore.__init__
        self._excepthook: Any = sys.excepthook
        self._held: deque[Any] = deque(maxlen=HELD)
        self._default: Any = None
        self._kept: dict[int, socket.socket] = {}
        self._reserve: list[int] = []

    def install(self) -> None:
        """Start to observe."""
        GroupObserver.current = self
        self._excepthook = sys.excepthook
        c10d._new_process_group_helper = self._creating(self._create)
        dist.TCPStore.__init__ = self._connecting(self._init_store)  # type: ignore[method-assign]

    def uninstall(self) -> None:
        """Stop to observe."""
        GroupObserver.current = None
        self.release()
        self.free_reserve()
        c10d._new_process_group_helper = self._create
        dist.TCPStore.__init__ = self._init_store  # type: ignore[method-assign]

    def begin(self) -> None:
        """A new iteration: what was noted of the last one is void."""
        self.store_ports.clear()
        self._listeners.clear()
        self._pairs.clear()
        self._before_group = None
        self._before_function = socket_inodes()
        self._put_by(RESERVE)

    def _creating(self, create: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(create)
        def observed(*args: Any, **kwargs: Any) -> Any:
            self._before_group = socket_inodes()
            try:
                hit("init-pg-before", self.page[Word.ITERATION])
                with self._meeting():
                    created = create(*args, **kwargs)
                self._held.append(created)
                if not dist.is_initialized():
                    self._default = created[0]
                self._tell_timeout(created[0])
                hit("init-pg-after", self.page[Word.ITERATION])
                return created
            finally:
                self._note_new_sockets()
                self._before_group = None
                self._put_by(RESERVE + len(self._pairs))

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
        timeout = getattr(getattr(_nccl(group), "options", None), "_timeout", None)
        if timeout is not None:
            self._nccl_timeout(timeout)

    def _connecting(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def observed(store: dist.TCPStore, host_name: str, port: int = 0, *args: Any, **kwargs: Any) -> None:
            self.store_ports.add(port)
            given = dict(zip(STORE_ARGUMENTS, args, strict=False)) | kwargs
            with self._meeting():
                if given.get("is_master", False):
                    init(store, host_name, port, *args, **kwargs)
                else:
                    self._connect(functools.partial(init, store, host_name, port), given, host_name, port)
                    store.set_timeout(given.get("timeout", STORE_TIMEOUT))
            self.store_ports.add(store.port)

        return observed

    def _connect(self, init: Callable[..., None], given: dict[str, Any], host_name: str, port: int) -> None:
        """Become a client of a store, in short attempts: between two of them a signal reaches the main thread.

        torch waits in C++ for a server that is not there yet, and connects again and again when one is gone, as it is
        when its rank was lost. At the meeting place all ranks are clients, and none needs to wait for the others.
        """
        timeout: timedelta = given.get("timeout", STORE_TIMEOUT)
        ours = (host_name, port) == self.meeting_place
        given = {"is_master": False, "wait_for_workers": False} if ours else given
        attempt = min(timeout, MEET_ATTEMPT if ours else CONNECT_ATTEMPT)
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            _await_server(host_name, port, timeout)
            try:
                init(**{**given, "timeout": attempt})
                return
            except (dist.DistNetworkError, dist.DistStoreError):
                if time.monotonic() >= deadline:
                    raise

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """A call in which ranks wait for each other."""
        self.page[Word.MEETINGS] += 1
        self.page[Word.MEETING] += 1
        try:
            yield
        finally:
            self.page[Word.MEETING] -= 1

    def _note_new_sockets(self) -> None:
        """Note what a group's creation has opened: its listener, and the connections to those of other ranks."""
        before = self._before_group
        if before is not None:
            new = [s for s in tcp_sockets() if s.inode not in before]
            self._listeners |= {s.inode for s in new if s.listening}
            self._pairs |= {s.inode for s in new if s.peer_port and s.peer_port not in self.store_ports}

    def abort_gloo(self) -> int:
        """End what blocks in gloo in this process: let it read the end of the stream on all its connections.

        Each rank does this for itself, and no rank sees another one's connections end: they are kept open until the
        round is decided. For gloo loses a send that it could not hand to the kernel at once when the connection ends,
        and the operation, with it the main thread, waits for ever (`Pair::signalException` passes over the unbound
        buffers in `tx_`). So the cut waits until nothing travels any more, and only reading is shut.
        """
        self.free_reserve()
        self._note_new_sockets()
        found = tcp_sockets()
        ports = {s.local_port for s in found if s.listening and s.inode in self._listeners}
        ours = [s for s in found if s.peer_port and (s.local_port in ports or s.inode in self._pairs)]
        kept = {s.inode: connection for s in ours if s.inode not in self._kept and (connection := keep_open(s))}
        self._kept |= kept
        wait_quiet(kept.values(), QUIET_WITHIN)
        return sum(map(_shut_reading, kept.values()))

    def abort_stores(self) -> int:
        """Cut the client connections of the function's own stores; only when nothing else frees the main thread."""
        candidates = [
            s for s in tcp_sockets() if s.peer_port in self.store_ports and s.inode not in self._before_function
        ]
        return sum(shut_down(s) for s in candidates)

    def count_collectives(self) -> None:
        """Note how many collectives the default group has begun, destroyed or not; 0 when torch does not tell."""
        group: Any = dist.group.WORLD or self._default
        try:
            self.page[Word.COLLECTIVES] = 0 if group is None else group._get_sequence_number_for_group()
        except (AttributeError, RuntimeError):
            self.page[Word.COLLECTIVES] = 0

    def release(self) -> None:
        """Let the groups of the ended round go, their connections, and torch's chain of exception hooks."""
        self._held.clear()
        self._default = None
        while self._kept:
            self._kept.popitem()[1].close()
        sys.excepthook = self._excepthook


def _await_server(host_name: str, port: int, timeout: timedelta) -> None:
    """Wait for a store's server in Python: torch's own wait for one that is not there yet ends by no signal."""
    try:
        await_listener(host_name, port, timeout)
    except StoreConnectionError as error:
        raise dist.DistNetworkError(str(error)) from None


def _shut_reading(connection: socket.socket) -> bool:
    try:
        connection.shutdown(socket.SHUT_RD)
    except OSError:
        return False
    return True


def free_reserve() -> None:
    """Let go of the descriptors that were put by for the abort."""
    if GroupObserver.current is not None:
        GroupObserver.current.free_reserve()


def abort_gloo() -> int:
    """Cut all gloo connections of the running function; the number of connections cut."""
    return 0 if GroupObserver.current is None else GroupObserver.current.abort_gloo()


def has_groups() -> bool:
    """Whether any process group is alive."""
    return dist.is_initialized() or bool(c10d._world.pg_map)


def forget_groups(within: timedelta = ABORT_WITHIN) -> None:
    """Abort all groups, as far as their backend can, and clear torch's tables; what fails is one error line.

    The communicators of NCCL are aborted all at once: each may wait until its peers' kernels end, and one that hangs
    keeps none of the others. Older versions of torch lack some of the names: the next best is taken.
    """
    if not has_groups():
        return
    if not dist.is_initialized():  # made, and interrupted or failed before torch called it the default group
        c10d._update_default_pg(next(iter(c10d._world.pg_map)))
    errors = call_all_bounded(_nccl_aborts(), within)
    clear = getattr(c10d, "_abort_process_group", dist.destroy_process_group)
    errors |= call_all_bounded({"clear the groups": clear}, within)
    if errors:
        log.error("abort: %s", "; ".join(f"{name}: {type(e).__name__}: {e}" for name, e in errors.items()))


def _nccl_aborts() -> dict[str, Callable[[], object]]:
    """What aborts each group's NCCL communicators, by a name for its thread."""
    backends = {str(name): _nccl(group) for group, name in list(c10d._world.pg_names.items())}
    return {
        f"abort group {name}": getattr(backend, "abort", None) or backend._shutdown
        for name, backend in backends.items()
        if backend is not None
    }


def _nccl(group: Any) -> Any:
    """The NCCL backend of a group, None where it has none; what is no group has none."""
    try:
        backend = group._get_backend(torch.device("cuda"))
    except (AttributeError, RuntimeError):
        return None
    return backend if type(backend).__name__ == "ProcessGroupNCCL" else None


def flight_recorders() -> dict[str, Callable[[], bytes]]:
    """What dumps each flight recorder that this torch has, as JSON and without stack traces."""
    names = {"nccl": "_dump_nccl_trace_json", "cpu": "_dump_fr_trace_json"}
    found = {recorder: getattr(bindings, name, None) for recorder, name in names.items()}
    return {recorder: dump for recorder, dump in found.items() if dump is not None}


def reset_group_count() -> None:
    """Reset torch's group counter when there is no default group.

    A failed `init_process_group` leaves it raised, and perhaps a group that is not the default one yet; ranks that got
    different far would then wait on different keys for ever.
    """
    if not dist.is_initialized():
        forget_groups()
        c10d._world.group_count = 0
