"""Access to private names of torch.distributed; no other file uses them but `process/torch_calls.py`, which reads.

A canary test fails with a clear message when torch moves one of these names.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch._C._distributed_c10d as bindings
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import _rendezvous_handlers

from nvrx_core.inprocess.groups.nccl import services_awake
from nvrx_core.process.bounded import call_all_bounded
from nvrx_core.process.torch_calls import collectives_begun, collectives_by_group, flight_dumps

__all__ = [
    "ABORT_WITHIN",
    "ask_before_default_group",
    "close_batch",
    "collectives_begun",
    "collectives_by_group",
    "flight_record",
    "flight_recorders",
    "forget_groups",
    "has_groups",
    "is_registered",
    "name_ranks",
    "nccl_timeout",
    "observe",
    "tables_are_consistent",
    "undo_exception_hooks",
]

ABORT_WITHIN: Final = timedelta(seconds=10)
"""The timeout of an abort of NCCL."""
RENDEZVOUS: Final = ("env", "tcp", "file")
"""Schemes of an `init_method` that contains its endpoint."""
TABLES: Final = (
    "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg", "pg_coalesce_state",
    "comms",
)  # fmt: skip
"""The tables in which torch registers groups; older versions lack some of them."""
BATCHES: Final = "_ZN4c10d16ProcessGroupNCCL23ncclActiveGroupCounter_E"
"""torch's count of the groups of NCCL operations that a thread has begun and not ended, a variable of each thread."""
EXCEPTION_HOOK: Final = "init_process_group.<locals>._distributed_excepthook"
"""What `init_process_group` sets as `sys.excepthook`: it calls the former one and puts the rank before each line."""
QUESTIONS: Final = frozenset(
    {
        "get_backend", "get_backend_config", "get_global_rank", "get_group_rank", "get_node_local_rank",
        "get_process_group_ranks", "get_rank", "get_world_size", "_get_group_size", "_rank_not_in_group",
    }
)  # fmt: skip
"""Functions that ask for the default group and begin no collective."""
CHECKPOINT: Final = "torch.distributed.checkpoint"

log = logging.getLogger("nvrx_core.inprocess")
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def observe(*, group: Wrap, store: Wrap, rendezvous: Wrap, receive: Wrap) -> ExitStack:
    """Replace functions of torch by wrappers; closing the returned stack restores them.

    Args:
        group: wraps the function that creates a process group.
        store: wraps the constructor of `TCPStore`.
        rendezvous: wraps a handler that yields store, rank and world size for an `init_method`.
        receive: wraps the method that begins a receive from any rank.
    """
    stack = ExitStack()
    for owner, name, wrap in (
        (c10d, "_new_process_group_helper", group),
        (dist.TCPStore, "__init__", store),
        (dist.ProcessGroup, "recv_anysource", receive),
        (c10d, "_coalescing_manager", _closing),
    ):
        original = getattr(owner, name)
        setattr(owner, name, _around(original, wrap))
        stack.callback(setattr, owner, name, original)
    handlers = {scheme: _rendezvous_handlers[scheme] for scheme in RENDEZVOUS}
    stack.callback(_rendezvous_handlers.update, handlers)
    _rendezvous_handlers.update((scheme, _around(handler, rendezvous)) for scheme, handler in handlers.items())
    return stack


def ask_before_default_group(collective: Callable[[], None], checkpoint: Callable[[], None]) -> ExitStack:
    """Call a function in each thread that is about to use the default group; closing the stack ends that.

    Args:
        collective: called before a collective without a group, and not before a question about rank or size.
        checkpoint: called when `torch.distributed.checkpoint` asks whether there is a default group, or one rank alone.
    """

    def finding(find: Callable[[], Any]) -> Callable[[], Any]:
        def observed() -> Any:
            if not torch.compiler.is_compiling() and sys._getframe(1).f_code.co_name not in QUESTIONS:
                collective()
            return find()

        return observed

    def looking(is_initialized: Callable[[], bool]) -> Callable[[], bool]:
        def observed() -> bool:
            if not torch.compiler.is_compiling():
                asking = str(sys._getframe(1).f_globals.get("__name__"))
                if asking.startswith(CHECKPOINT):
                    checkpoint()
            return is_initialized()

        return observed

    stack = ExitStack()
    for owner, name, wrap in ((c10d, "_get_default_group", finding), (dist, "is_initialized", looking)):
        original = getattr(owner, name)
        setattr(owner, name, _around(original, wrap))
        stack.callback(setattr, owner, name, original)
    return stack


def _closing(coalesce: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the context of a batch: a batch that was not ended is forgotten in its thread, which may be autograd's."""

    @contextmanager
    def observed(*args: Any, **kwargs: Any) -> Iterator[Any]:
        complete = False
        try:
            with coalesce(*args, **kwargs) as coalescing:
                yield coalescing
                complete = True
        except BaseException:  # boundary: it is raised again
            if complete:
                close_batch()
            raise

    return observed


def _around(original: Callable[..., Any], wrap: Wrap) -> Callable[..., Any]:
    return functools.wraps(original)(wrap(original))


def has_groups() -> bool:
    """Return whether torch has registered any process group, complete or not."""
    return dist.is_initialized() or any(_tables())


def tables_are_consistent() -> bool:
    """Return whether there is a default group and torch's tables agree; an abort during a creation breaks this."""
    groups = c10d._world.pg_map
    return c10d._world.default_pg in groups and set(groups) == set(c10d._world.pg_names)


def _tables() -> list[Any]:
    """Return all tables of groups."""
    return [table for name in TABLES if (table := getattr(c10d._world, name, None)) is not None]


def _take_groups() -> dict[Any, str]:
    """Clear torch's tables, whatever their state, and return their groups with the names."""
    world = c10d._world
    default = [] if world.default_pg is None else [world.default_pg]
    groups = dict.fromkeys((*default, *list(world.pg_map)), "without a name") | dict(world.pg_names)
    c10d._update_default_pg(None)
    for table in _tables():
        table.clear()
    bindings._unregister_all_process_groups()
    world.group_count = 0
    return groups


def forget_groups(within: timedelta = ABORT_WITHIN) -> None:
    """Clear torch's tables and abort all groups, as far as their backends can; failures are one error line.

    The NCCL communicators are aborted concurrently: each may wait until its peers' kernels end, and one that hangs does
    not delay the others. The tables are cleared first, so that an abort that hangs does not touch a table of the next
    iteration.
    """
    groups = _take_groups()
    nccl = {group: backend for group in groups if (backend := _nccl(group)) is not None}
    with services_awake(within.total_seconds()) if nccl else nullcontext():
        errors = call_all_bounded(_aborts(groups, nccl), within)
    if errors:
        log.error("abort: %s", "; ".join(f"{name}: {type(e).__name__}: {e}" for name, e in errors.items()))


def close_batch() -> None:
    """Let torch begin no further operation of this thread inside the batch in which an abort has met it.

    `batch_isend_irecv` begins a group of NCCL operations and ends it; when the end fails, torch still counts the group,
    and each communicator that it makes later fails with "ncclGroupEnd: not in a group call".
    """
    if not dist.is_nccl_available():
        return
    library = Path(torch.__file__).with_name("lib") / "libtorch_cuda.so"
    with suppress(OSError, ValueError):  # this torch has no such library, or no such count
        ctypes.c_uint64.in_dll(ctypes.CDLL(str(library)), BATCHES).value = 0


def _aborts(groups: dict[Any, str], nccl: dict[Any, Any]) -> dict[str, Callable[[], object]]:
    """Return the functions that abort the groups, by thread name; older versions of torch lack `abort`."""
    others = [group for group in groups if group not in nccl]
    aborts = {
        f"abort group {groups[group]}": getattr(backend, "abort", None) or backend._shutdown
        for group, backend in nccl.items()
    }
    return aborts | ({"abort the other groups": lambda: _abort_each(others)} if others else {})


def _abort_each(groups: list[Any]) -> None:
    for group in groups:
        (getattr(group, "abort", None) or group.shutdown)()


def _nccl(group: Any) -> Any:
    """Return the NCCL backend of a group, None where it has none or is not a group."""
    try:
        backend = group._get_backend(torch.device("cuda"))
    except (AttributeError, RuntimeError):
        return None
    return backend if type(backend).__name__ == "ProcessGroupNCCL" else None


def nccl_timeout(group: Any) -> timedelta | None:
    """Return the timeout of a registered group's NCCL watchdog, None where it has none."""
    if not _names_nccl(group):
        return None
    timeout: timedelta | None = getattr(getattr(_nccl(group), "options", None), "_timeout", None)
    return timeout


def name_ranks(group: Any) -> None:
    """Let NCCL's backend of a default group know the group's ranks, so that it can be split.

    torch knows those of the first group of a process alone. In a later one, `split_group`, and a `DeviceMesh` on a
    group that has a `device_id`, end the process by SIGSEGV.
    """
    options = getattr(_nccl(group), "options", None) if _names_nccl(group) else None
    if options is not None and not getattr(options, "global_ranks_in_group", True):  # a torch may lack it
        options.global_ranks_in_group = list(range(group.size()))


def _names_nccl(group: Any) -> bool:
    """Return whether a registered group was made with NCCL; to ask one that was not costs 0.1 ms, for torch's error."""
    return "nccl" in c10d._world.pg_backend_config.get(group, "")


def is_registered(group: Any) -> bool:
    """Return whether torch has registered the group; a destroyed one is not."""
    return group in c10d._world.pg_map


def flight_record() -> dict[str, bytes]:
    """Return the record of each recorder as torch's `fr_trace` reads it, a pickle without stack traces.

    2,000 operations take 0.1 s, in which no other thread runs. gloo's record lacks the groups, which are added.
    """
    found = dict[str, bytes]()
    for recorder, dump in flight_dumps().items():
        record = pickle.loads(dump(True, False, False))
        record["pg_config"] = _described_groups() | {
            name: group for name, group in record.get("pg_config", {}).items() if group.get("name")
        }
        found[recorder] = pickle.dumps(record, protocol=2)
    return found


def _described_groups() -> dict[str, dict[str, str]]:
    """Return the registered groups as a flight record has them."""
    return {
        str(name): {
            "name": str(name),
            "desc": str(getattr(group, "group_desc", "")),
            "ranks": str(sorted(c10d._world.pg_group_ranks.get(group, ()))),
        }
        for group, name in list(c10d._world.pg_names.items())
    }


def undo_exception_hooks() -> None:
    """Put back the `sys.excepthook` of before the function's default groups.

    Each default group adds a hook around the former one. A hook of the user's stays, with what it refers to.
    """
    while (former := _former_hook(sys.excepthook)) is not None:
        sys.excepthook = former


def _former_hook(hook: Any) -> Any:
    """Return the hook that one of torch's has replaced; None for any other hook."""
    if getattr(hook, "__qualname__", "") != EXCEPTION_HOOK or hook.__module__ != c10d.__name__:
        return None
    cells = dict(zip(hook.__code__.co_freevars, hook.__closure__, strict=True))
    return cells["old_hook"].cell_contents if "old_hook" in cells else None


def flight_recorders() -> dict[str, Callable[[], bytes]]:
    """Return the dump functions of torch's flight recorders; they return JSON without stack traces."""
    names = {"nccl": "_dump_nccl_trace_json", "cpu": "_dump_fr_trace_json"}
    found = {recorder: getattr(bindings, name, None) for recorder, name in names.items()}
    return {recorder: dump for recorder, dump in found.items() if dump is not None}
