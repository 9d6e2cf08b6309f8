"""The environment: the one file of the core that reads or writes it.

Every iteration has RANK and WORLD_SIZE of its assignment. Iteration 0 finds everything else as the process did; a later
one has the address of a store that the wrapper hosts on the new rank 0, in which a plain `init_process_group()` meets.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

__all__ = [
    "events_directory",
    "flight_record_directory",
    "flight_recorder_is_on",
    "job_name",
    "master",
    "nccl_variables",
    "rank_and_world_size",
    "restarts_all_ranks",
    "restored",
    "set_master",
    "set_ranks",
    "store_endpoint",
    "with_environment_as_now",
]

_OURS: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
T = TypeVar("T")


def job_name() -> str:
    """Which job this process belongs to: `NVRX_JOB_ID`, else `TORCHELASTIC_RUN_ID`, else "job"."""
    return os.environ.get("NVRX_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID") or "job"


def restarts_all_ranks() -> bool:
    """Whether a launcher starts all ranks again when one has ended, as torch elastic's agents do."""
    return "TORCHELASTIC_RESTART_COUNT" in os.environ


def rank_and_world_size() -> tuple[int, int]:
    """RANK and WORLD_SIZE; (0, 1) when neither is set.

    Raises:
        ValueError: when one is missing, no number, or out of range.
    """
    given = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    if len(given) == 1:
        raise ValueError(
            f"environment: {given[0]}={os.environ[given[0]]!r} is set alone; set RANK and WORLD_SIZE, or neither"
        )
    rank, world_size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise ValueError(f"environment: RANK={rank} is not in the range 0 <= RANK < WORLD_SIZE={world_size}")
    return rank, world_size


def master() -> tuple[str, int]:
    """MASTER_ADDR and MASTER_PORT, by default 127.0.0.1 and 29500."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1"), _number("MASTER_PORT", 29500)


def store_endpoint() -> tuple[str, int] | None:
    """`NVRX_STORE_ENDPOINT` as host and port, None when it is not set.

    Raises:
        ValueError: when it is not `host:port`.
    """
    text = os.environ.get("NVRX_STORE_ENDPOINT", "")
    host, _, port = text.rpartition(":")
    if not text:
        return None
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"environment: NVRX_STORE_ENDPOINT={text!r} is not host:port with a port of 1 to 65535")
    return host.strip("[]"), int(port)


def events_directory() -> str | None:
    """`NVRX_EVENTS_DIR`, None when it is not set."""
    return os.environ.get("NVRX_EVENTS_DIR") or None


def flight_record_directory() -> str | None:
    """`NVRX_FR_TRACE_PATH`, None when it is not set."""
    return os.environ.get("NVRX_FR_TRACE_PATH") or None


def flight_recorder_is_on() -> bool:
    """Whether torch was told to keep a flight record; the first name that is set counts, as for torch."""
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    size = next((os.environ[name] for name in names if name in os.environ), "")
    return size.isdigit() and int(size) > 0


def nccl_variables() -> dict[str, str]:
    """The variables that the environment checks look at."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_CPP_LOG_LEVEL"))
    }


def set_ranks(rank: int | None, world_size: int | None) -> None:
    """Set RANK and WORLD_SIZE; None unsets."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)


def set_master(address: str, port: int) -> None:
    """Let `env://` meet at `address:port`, where a store is hosted for all ranks, the new rank 0 included."""
    os.environ["MASTER_ADDR"] = address
    os.environ["MASTER_PORT"] = str(port)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"


@contextmanager
def restored() -> Iterator[None]:
    """Put the addresses back at the end; RANK and WORLD_SIZE keep what the call left."""
    before = {name: os.environ.get(name) for name in _OURS[2:]}
    try:
        yield
    finally:
        _put(before)


def with_environment_as_now(factory: Callable[..., T]) -> Callable[..., T]:
    """The factory, which finds RANK, WORLD_SIZE and the addresses as they are now whenever it is called."""
    then = _ours()

    @functools.wraps(factory, updated=())
    def called(*args: Any, **kwargs: Any) -> T:
        now = _ours()
        _put(then)
        try:
            return factory(*args, **kwargs)
        finally:
            _put(now)

    return called


def _ours() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in _OURS}


def _put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _number(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"environment: {name}={text!r} is not a whole number (host {socket.gethostname()})") from None
