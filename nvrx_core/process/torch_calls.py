"""What torch.distributed of this process is about: the call that a thread is in, and what its groups have begun.

It reads private names of torch, as `inprocess/groups/torch_groups.py` does; the same canary test watches them. torch is
not imported: a process that has not imported it has no groups.
"""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, Final

from nvrx_core.collective import Collective

__all__ = [
    "call_of",
    "collectives_begun",
    "collectives_by_group",
    "counts_of_groups",
    "flight_dumps",
    "flight_status",
    "rank_and_size",
    "torch_folder",
    "uses_cuda",
]

MAX_COUNTED: Final = 32
"""Groups of a rank whose collectives are counted; a rank of a model that is split in five ways has some twenty."""
UNDESCRIBED: Final = "undefined"
"""The description of a group that was made without one."""
POINT_TO_POINT: Final = {
    "send": ("dst",), "recv": ("src",), "send_object_list": ("dst",), "recv_object_list": ("src",),
}  # fmt: skip
"""Functions that wait for one rank, and their arguments that name it; each has one for the rank in the group, too."""


def _c10d() -> Any:
    """Return torch.distributed.distributed_c10d; None in a process that has not imported it whole."""
    found = sys.modules.get("torch.distributed.distributed_c10d")
    return found if hasattr(found, "_world") else None


def _default_group() -> Any:
    c10d = _c10d()
    return None if c10d is None else c10d._world.default_pg


def torch_folder() -> str:
    """Return the folder of torch, with a slash at its end; "" in a process that has not imported it."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return f"{file.rpartition('/')[0]}/" if file else ""


def uses_cuda() -> bool:
    """Return whether this process has begun to use CUDA."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def call_of(frames: Iterable[FrameType]) -> Collective | None:
    """Return the call of torch.distributed that the frames belong to, the outermost one; None if they are of none.

    Args:
        frames: of a thread that runs no bytecode, innermost first, down to the user's code.
    """
    c10d = _c10d()
    inside = [] if c10d is None else [frame for frame in frames if frame.f_code.co_filename == c10d.__file__]
    if not inside:
        return None
    frame = inside[-1]
    operation, given = frame.f_code.co_name, frame.f_locals
    try:
        group: Any = given.get("group") or c10d._world.default_pg
        name, label = c10d._world.pg_names[group], getattr(group, "group_desc", "")
        label = "" if group is c10d._world.default_pg else name if label in ("", UNDESCRIBED) else label
        members = c10d._world.pg_group_ranks[group]
        peers = [_peer(given, each, f"group_{each}", members) for each in POINT_TO_POINT.get(operation, ())]
    except (AttributeError, KeyError, TypeError, ValueError):  # an abort clears torch's tables meanwhile
        return Collective(operation)
    known = frozenset(rank for rank in peers if rank is not None)
    number = 0 if operation in POINT_TO_POINT else collectives_begun(group)
    return Collective(operation, name, label, number, frozenset(members), known)


def _peer(given: Mapping[str, Any], name: str, in_group: str, members: Mapping[int, int]) -> int | None:
    """Return the global rank that an argument names, or another one that counts in the group."""
    if (rank := given.get(name)) is not None:
        return int(rank)
    rank = given.get(in_group)
    return next((each for each, number in members.items() if number == rank), None)


def counts_of_groups() -> dict[str, int]:
    """Return the operations begun of the default group and of the first `MAX_COUNTED` others, by the group's name."""
    default = _default_group()
    own = {} if default is None else {str(_c10d()._world.pg_names.get(default, "")): collectives_begun(default)}
    return own | dict(collectives_by_group())


def collectives_by_group() -> list[tuple[str, int]]:
    """Return names and collectives begun of the first `MAX_COUNTED` groups of this rank, without the default one."""
    if (c10d := _c10d()) is None:
        return []
    default, names = c10d._world.default_pg, list(c10d._world.pg_names.items())
    counted = itertools.islice(((group, name) for group, name in names if group is not default), MAX_COUNTED)
    return [(name, collectives_begun(group)) for group, name in counted]


def collectives_begun(group: Any) -> int:
    """Return how many collectives the group has begun; 0 when torch does not report it."""
    try:
        return 0 if group is None else int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError):
        return 0


def rank_and_size() -> tuple[int, int] | None:
    """Return rank and size of the default group; None where there is none."""
    default = _default_group()
    return None if default is None else (default.rank(), default.size())


def flight_status() -> dict[tuple[str, str], bool] | None:
    """Return whether operations are pending, by recorder and number of the group in this process; in 0.1 ms.

    torch counts what was enqueued and what was completed. Operations that end out of order may leave a group as
    pending that is not. A group that was aborted stays pending. None where this torch does not tell.
    """
    found = dict[tuple[str, str], bool]()
    dumps = flight_dumps()
    for recorder, dump in dumps.items():
        status = pickle.loads(dump(False, False, False)).get("pg_status", {})
        for number, counts in status.items():
            pending = counts["last_enqueued_collective"] > counts["last_completed_collective"]
            found[recorder, str(number)] = pending
    return found if dumps else None


def flight_dumps() -> dict[str, Callable[[bool, bool, bool], bytes]]:
    """Return the functions that dump a recorder: with the operations, with stack traces, the active ones alone."""
    names = {"nccl": "_dump_nccl_trace", "cpu": "_dump_fr_trace"}
    bindings = sys.modules.get("torch._C._distributed_c10d")
    found = {recorder: getattr(bindings, name, None) for recorder, name in names.items()}
    return {recorder: dump for recorder, dump in found.items() if dump is not None}
