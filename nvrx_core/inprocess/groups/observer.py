"""Observation of the process groups and stores that the function creates.

A group created by the function is referenced here until the next iteration begins. gloo's destructor joins its
threads, and one of them may need the GIL to destroy a work. If a DDP model held the last reference, the main thread
would join while it holds the GIL when the frame of the model is left, and deadlock. A group that is released from
Python is destroyed without the GIL. That takes 10 ms, which would delay a restart for each group that the garbage of
the iteration refers to; our references, which are dropped in a thread after its collection, are the last ones.

A group that torch has registered is kept by torch, and a reference to it costs nothing. A group that the function has
destroyed would be freed without ours: those are kept up to `BUDGET`, the last ones, for a function that creates and
destroys many. The groups are released by threads of their own, beside the next iteration.

The creation of a group is observed to keep a reference to it, the constructor of `TCPStore` to record the ports of the
function's own stores, and a rendezvous to redirect it, from iteration 1 on, to the store that the wrapper hosts.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, ClassVar, Final

import torch.distributed as dist

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.groups.blocked_read import BlockedRead, interruptible
from nvrx_core.inprocess.groups.default_group import DefaultGroupGuard
from nvrx_core.inprocess.groups.gloo_connections import GlooConnections
from nvrx_core.inprocess.groups.nccl import NcclBootstrap
from nvrx_core.inprocess.groups.rendezvous import (
    STORE_TIMEOUT,
    connect,
    given_arguments,
    ranks_in,
    rendezvous_at,
    with_prefix,
)
from nvrx_core.inprocess.groups.torch_groups import (
    close_batch,
    collectives_begun,
    collectives_by_group,
    forget_groups,
    is_registered,
    name_ranks,
    nccl_timeout,
    observe,
    tables_are_consistent,
    undo_exception_hooks,
)
from nvrx_core.process.sockets import shut_down, socket_inodes, tcp_sockets
from nvrx_core.process.torch_calls import rank_and_size
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["GroupObserver", "HeldGroups", "abort_groups", "bytes_of", "free_reserve", "is_aborted"]


BUDGET: Final = 8 << 20
"""Bytes of destroyed groups: some fifty of two ranks, eight of 64 ranks."""
BYTES_OF_GROUP: Final = 128 << 10
BYTES_OF_RANK: Final = 16 << 10
"""What a group of gloo takes: a thread with its stack, and a connection to each rank with its buffers."""
FIRST_SWEEP: Final = 64
FEW: Final = 16
"""Groups that are released by one thread."""
THREADS: Final = 8


class HeldGroups:
    """References to groups; adding one takes constant time on average.

    Args:
        is_registered: whether torch has registered a group.
    """

    def __init__(self, is_registered: Callable[[Any], bool]) -> None:
        self._is_registered = is_registered
        self._held = list[tuple[Any, int]]()
        self._sweep_at = FIRST_SWEEP
        self._releasing = list[threading.Thread]()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, created: Any, ranks: int) -> None:
        """Refer to what torch has returned for a new group.

        Args:
            created: the group, and what belongs to it.
            ranks: how many ranks the group has.
        """
        self._held.append((created, bytes_of(ranks)))
        if len(self._held) < self._sweep_at:
            return
        left, kept = BUDGET, list[tuple[Any, int]]()
        for each, size in reversed(self._held):
            registered = self._is_registered(each[0])
            left -= 0 if registered else size
            if registered or left >= 0:
                kept.append((each, size))
        self._held, self._sweep_at = kept[::-1], max(FIRST_SWEEP, 2 * len(kept))

    def clear(self) -> None:
        """Release all groups in the background."""
        self._releasing = [thread for thread in self._releasing if thread.is_alive()]
        held, self._held, self._sweep_at = self._held, [], FIRST_SWEEP
        if held:
            self._releasing += _started(_release, held)

    def wait(self) -> None:
        """Wait until the groups that were released in the background are gone."""
        while self._releasing:
            self._releasing.pop().join()


def _release(held: list[Any]) -> None:
    """Release the groups in this thread, many of them in further ones."""
    threads = THREADS if len(held) > FEW else 1
    shares = [held[first::threads] for first in range(threads)]
    held.clear()
    others = [thread for share in shares[1:] for thread in _started(list.clear, share)]
    shares[0].clear()
    for thread in others:
        thread.join()


def _started(release: Callable[[list[Any]], None], held: list[Any]) -> list[threading.Thread]:
    """Start a thread that releases the groups; without one, if the process has no threads left, this thread does it."""
    thread = threading.Thread(target=release, args=(held,), name="nvrx-release")
    try:
        thread.start()
    except RuntimeError:
        release(held)
        return []
    return [thread]


def bytes_of(ranks: int) -> int:
    """Return about how many bytes a group of so many ranks takes."""
    return BYTES_OF_GROUP + ranks * BYTES_OF_RANK


RESERVE: Final = 4
MAX_RESERVE: Final = 256
"""Descriptors reserved for the abort: some to inspect the sockets, and one for each connection that is kept open."""
_NON_MEMBER: Final[Any] = dist.GroupMember.NON_GROUP_MEMBER
_ITERATION: Final = int(ProgressField.ITERATION)
_COUNT: Final = int(ProgressField.RENDEZVOUS_COUNT)
_AT: Final = int(ProgressField.RENDEZVOUS_AT)
_DEPTH: Final = int(ProgressField.RENDEZVOUS_DEPTH)
STUCK_AFTER: Final = 0.3
"""Seconds after which a main thread that nothing has unblocked may wait for a peer in a place that is not observed."""


class GroupObserver:
    """An observer of group and store creation, created in the thread that runs the function.

    Args:
        page: the progress page of the rank.
        nccl_timeout: called with the watchdog timeout of an NCCL group, once per distinct timeout.
        earlier: how many wrapped calls this process has made before.
        check_ranks: called with the rank and the world size that the function passes for a default group, each None
            where it does not, and the iteration.

    Attributes:
        guard: refuses the default group to what goes on from an ended iteration.
        held: the groups that the function has created; it releases them in the background.
        rendezvous_endpoint: host and port of the store that the wrapper hosts for the iteration's process group.
        current: the installed observer.
    """

    current: ClassVar[GroupObserver | None] = None

    def __init__(
        self,
        page: Page,
        nccl_timeout: Callable[[timedelta], None] = lambda timeout: None,
        earlier: int = 0,
        check_ranks: Callable[[int | None, int | None, int], None] = lambda rank, world_size, iteration: None,
    ) -> None:
        self.page, self._earlier, self._check_ranks = page, earlier, check_ranks
        self._nccl_timeout = functools.cache(nccl_timeout)
        self.store_ports: set[int] = set()
        self.rendezvous_endpoint: tuple[str, int] | None = None
        self._aborted = self._begun = False
        self.guard = DefaultGroupGuard()
        self._gloo = GlooConnections()
        self._nccl, self._read = NcclBootstrap(), BlockedRead()
        self._before_function: frozenset[int] = frozenset()
        self._observed = ExitStack()
        self.held = HeldGroups(is_registered)
        self._default: Any = None
        self._defaults = 0
        self._reserve: list[int] = []
        self._stuck_since = 0.0

    def install(self) -> None:
        """Start observing."""
        GroupObserver.current = self
        self._observed = observe(
            group=self._creating, store=self._connecting, rendezvous=self._redirecting, receive=interruptible
        )

    def uninstall(self) -> None:
        """Stop observing."""
        self.release()
        self.held.clear()
        self.held.wait()
        self.free_reserve()
        self.disown()

    def disown(self) -> None:
        """Restore torch's functions without touching the groups, as required in a child of `os.fork`."""
        GroupObserver.current = None
        self.guard.close()
        self._observed.close()

    def clear_groups(self) -> None:
        """Release the groups of the last iteration, and clear torch's tables of groups, in the main thread.

        The abort clears them in another thread, while the main thread may be anywhere in `init_process_group` and may
        add an entry after the abort. A failed creation leaves torch's group counter incremented, so ranks that failed
        at different points would wait for different keys for ever. Consistent groups without an abort belong to the
        user and stay.
        """
        if self._begun:
            self.guard.leave()
        if self._aborted:
            close_batch()
        if self._aborted or not tables_are_consistent():
            forget_groups()
        self._aborted = False
        self.held.clear()

    def begin(self) -> None:
        """Reset the records of the last iteration."""
        self._begun = True
        self._defaults = 0
        self.store_ports.clear()
        self._read.restore()
        self._before_function = socket_inodes()
        self._reserve_descriptors(RESERVE)

    def _creating(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*args: Any, **kwargs: Any) -> Any:
            words = self.page.words  # thousands of groups are created: no look-up twice
            hit("init-pg-before", words[_ITERATION])
            if len(args) > 3 and not args[2] and args[0] > 0 and args[3] != "fake":  # a default group, also with store=
                self._check_ranks(args[1], args[0], words[_ITERATION])
            if len(self._reserve) < MAX_RESERVE:
                self._reserve_descriptors(len(self._reserve) + words[ProgressField.WORLD_SIZE])
            _begin_rendezvous(words)
            try:
                created = create(*args, **kwargs)
            finally:
                words[_DEPTH] -= 1
            if created[0] is not _NON_MEMBER:
                self._created(created)
            hit("init-pg-after", words[_ITERATION])
            return created

        return observed

    def _created(self, created: Any) -> None:
        """Note a group of which this rank is a member."""
        group = created[0]
        self.held.add(created, group.size())
        if not dist.is_initialized():
            self._default = group
            self._defaults += 1
            name_ranks(group)
        timeout = nccl_timeout(group)
        if timeout is not None:
            self._nccl_timeout(timeout)

    def _reserve_descriptors(self, files: int) -> None:
        """Reserve the descriptors that the abort of the groups needs, in case the function uses up all others."""
        with suppress(OSError):
            while len(self._reserve) < min(files, MAX_RESERVE):
                self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def free_reserve(self) -> None:
        """Close the reserved descriptors."""
        while self._reserve:
            os.close(self._reserve.pop())

    def _connecting(self, init: Callable[..., None]) -> Callable[..., None]:
        def observed(store: dist.TCPStore, host_name: str, port: int = 0, *args: Any, **kwargs: Any) -> None:
            self.store_ports.add(port)
            given, endpoint = given_arguments(args, kwargs), (host_name, port)
            with self._rendezvous():
                if given.get("is_master", False):
                    init(store, host_name, port, *args, **kwargs)
                else:
                    hosted = endpoint == self.rendezvous_endpoint
                    connect(functools.partial(init, store, *endpoint), given, endpoint, hosted=hosted)
                    store.set_timeout(given.get("timeout", STORE_TIMEOUT))
            self.store_ports.add(store.port)

        return observed

    def _redirecting(self, handler: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Redirect a rendezvous from iteration 1 on to the store that the wrapper hosts.

        A fixed address is valid for one iteration: later rank 0 may be on another host, the port in use, or the file
        already written. The hosted store lasts for the iteration, so each further default group gets a prefix for its
        keys. The store of a launcher lasts for all calls: from the second one on, iteration 0 gets a prefix as well.
        """

        def observed(url: str, **kwargs: Any) -> Iterator[Any]:
            self._check_ranks(*ranks_in(url), self.page[ProgressField.ITERATION])
            if self.page[ProgressField.ITERATION] < 1 or self.rendezvous_endpoint is None:
                stores = handler(url, **kwargs)
                return with_prefix(stores, self._earlier, self._defaults) if self._earlier else stores
            rank, size = (None, None) if url.startswith("env:") else ranks_in(url)
            if rank is None or size is None:
                stores = handler(url, **kwargs)
            else:
                stores = rendezvous_at(self.rendezvous_endpoint, rank, size, **kwargs)
            return with_prefix(stores, 0, self._defaults)

        return observed

    @contextmanager
    def _rendezvous(self) -> Iterator[None]:
        """Record a call in which ranks wait for each other."""
        words = self.page.words
        _begin_rendezvous(words)
        try:
            yield
        finally:
            words[_DEPTH] -= 1

    def abort_groups(self) -> None:
        """End the function's collectives, and clear torch's tables."""
        self._aborted = True
        default = rank_and_size()
        self.guard.abort(0 if default is None else default[1])
        self.free_reserve()
        self._gloo.cut()
        self._gloo.close_when_late()
        forget_groups()

    def unblock(self) -> int:
        """Shut down what the main thread may block in if it does not react to signals; return how many connections.

        If that was nothing, it may create a group, also unobserved: gloo connects lazily, and has constructors. A
        thread that is merely slow is not offered connections: gloo keeps them as long as the group exists.
        """
        stores = tcp_sockets(lambda inode: inode not in self._before_function) if self.store_ports else []
        closed = self._gloo.cut() + sum(shut_down(each) for each in stores if each.peer_port in self.store_ports)
        closed += self._read.cut(now=time.monotonic())
        self._stuck_since = self._stuck_since or time.monotonic()
        may_create = self.page.words[_DEPTH] or time.monotonic() - self._stuck_since >= STUCK_AFTER
        if closed or not may_create:
            return closed
        offered = self._gloo.offer(self.page[ProgressField.WORLD_SIZE], older=self._before_function)
        return offered or self._nccl.cut(self._before_function)

    def count_collectives(self) -> None:
        """Record how many collectives the default group has begun, even if it is destroyed."""
        self.page[ProgressField.COLLECTIVES] = collectives_begun(dist.group.WORLD or self._default)

    def observe_collectives(self) -> tuple[tuple[int, int], ...]:
        """Record the same, and return key and number of collectives begun of the other groups."""
        self.count_collectives()
        return tuple((_key(name), begun) for name, begun in collectives_by_group())

    def release(self) -> None:
        """Release the connections of the ended round, and the exception hooks of its default groups."""
        self._default, self._stuck_since = None, 0.0
        self._gloo.release()
        undo_exception_hooks()


def _begin_rendezvous(words: memoryview[int]) -> None:
    words[_COUNT] += 1
    words[_AT] = time.monotonic_ns()
    words[_DEPTH] += 1


def _key(name: str) -> int:
    """Return a number for the name of a group, which is the same on all its ranks."""
    return int(name) if name.isdecimal() and len(name) < 10 else -1 - zlib.crc32(name.encode())


def free_reserve() -> None:
    """Close the descriptors that are reserved for the abort."""
    if GroupObserver.current is not None:
        GroupObserver.current.free_reserve()


def is_aborted() -> bool:
    """Return whether an abort has ended the default group of the running iteration, and the function goes on alone."""
    return GroupObserver.current is not None and GroupObserver.current.guard.is_aborted


def abort_groups() -> None:
    """End the collectives of the running function, or of a process without one, and clear torch's tables."""
    if GroupObserver.current is not None:
        GroupObserver.current.abort_groups()
    else:
        forget_groups()
