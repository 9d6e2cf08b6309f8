"""Environment variables; only this file of the core reads or writes them.

Every iteration runs with the RANK and WORLD_SIZE of its assignment. In iteration 0 all other variables are those of the
process. In a later iteration MASTER_ADDR and MASTER_PORT point to a store that the wrapper hosts on the new rank 0, so
that a plain `init_process_group()` uses it for its rendezvous.
"""

from __future__ import annotations

import functools
import math
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from nvrx_core.parsing import MAX_PORT, parse_endpoint

__all__ = [
    "check_variables",
    "cpp_log_level",
    "error_file",
    "events_directory",
    "flight_record_directory",
    "flight_recorder_is_on",
    "full_tracebacks",
    "has_master",
    "has_ranks",
    "job_name",
    "launcher_socket",
    "local_rank",
    "master",
    "missing_variables",
    "model_key_file",
    "nccl_variables",
    "rank_and_world_size",
    "rank_monitor_socket",
    "rank_of_launcher",
    "restarts_all_ranks",
    "restored",
    "runtime_directories",
    "set_master",
    "set_ranks",
    "started_by_torchrun",
    "store_endpoint",
    "store_listens_within",
    "variables",
    "visible_gpu",
    "with_environment_as_now",
]

RANK_MONITOR_SOCKET: Final = "FT_RANK_MONITOR_IPC_SOCKET"
"""Names where a rank monitor listens for its rank."""
LAUNCHER_SOCKET: Final = "FT_LAUNCHER_IPC_SOCKET"
"""Names where the launcher listens for requests of a rank."""

_MANAGED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
T = TypeVar("T")


def job_name() -> str:
    """Return the job of this process: `NVRX_JOB_ID`, else `TORCHELASTIC_RUN_ID`, else "job"."""
    return os.environ.get("NVRX_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID") or "job"


def model_key_file() -> str:
    """Return the file with the key of the language model that explains failures, "" for none."""
    return os.environ.get("LLM_API_KEY_FILE", "")


def restarts_all_ranks() -> bool:
    """Return whether a launcher restarts all ranks when one has exited, as torch elastic's agents do."""
    return "TORCHELASTIC_RESTART_COUNT" in os.environ


def started_by_torchrun() -> bool:
    """Return whether torchrun, or another of torch elastic's agents, has started this process, and not ft_launcher."""
    return "TORCHELASTIC_RUN_ID" in os.environ and launcher_socket() is None


def has_ranks() -> bool:
    """Return whether RANK and WORLD_SIZE are set; without them a process is a job of one rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def missing_variables() -> list[str]:
    """Return those of the variables that a launcher sets for a rank and that are not set."""
    return [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]


def rank_and_world_size() -> tuple[int, int]:
    """Return RANK and WORLD_SIZE; (0, 1) when neither is set.

    Raises:
        ValueError: when one is missing, not a number, or out of range.
    """
    given = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    if len(given) == 1:
        raise ValueError(
            f"environment: {given[0]}={os.environ[given[0]]!r} is set alone; set RANK and WORLD_SIZE, or neither"
        )
    rank, world_size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if world_size < 1:
        raise ValueError(f"environment: WORLD_SIZE={world_size} is below 1; write WORLD_SIZE=1 for a job of one rank")
    if not 0 <= rank < world_size:
        raise ValueError(
            f"environment: RANK={rank} is not in the range 0 <= RANK < WORLD_SIZE={world_size}; the ranks of a job of "
            f"{world_size} are 0 to {world_size - 1}"
        )
    return rank, world_size


def rank_of_launcher(default: int | None = None) -> int:
    """Return the rank that a launcher has given this process: RANK, else that of SLURM, Open MPI or PMI.

    Raises:
        RuntimeError: when none is set, and there is no default.
    """
    return _first_number(("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"), default)


def world_size_of_launcher(default: int) -> int:
    """Return WORLD_SIZE, as a launcher has set it; the default where it is not set."""
    return _first_number(("WORLD_SIZE",), default)


def local_rank() -> int:
    """Return this process's number on its host: LOCAL_RANK, else that of SLURM, Open MPI or MPICH; 0 for none."""
    return _first_number(("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"), 0)


def visible_gpu(local_rank: int) -> str:
    """Return the number or UUID of a local rank's GPU: its entry of `CUDA_VISIBLE_DEVICES`, else its own number."""
    visible = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return visible[local_rank] if visible[0] and local_rank < len(visible) else str(local_rank)


def rank_monitor_socket() -> str | None:
    """Return `FT_RANK_MONITOR_IPC_SOCKET`, None when it is not set."""
    return os.environ.get(RANK_MONITOR_SOCKET) or None


def launcher_socket() -> str | None:
    """Return `FT_LAUNCHER_IPC_SOCKET`, None when it is not set."""
    return os.environ.get(LAUNCHER_SOCKET) or None


def runtime_directories() -> tuple[str, ...]:
    """Return where the directory of this user's sockets may be, the first choice first.

    `NVRX_RUNTIME_DIR` alone if it is set, else `nvrx` in `XDG_RUNTIME_DIR`, `nvrx-<uid>` in `TMPDIR`, and in /tmp.
    """
    if own := os.environ.get("NVRX_RUNTIME_DIR"):
        return (own,)
    shared, mine = os.environ.get("XDG_RUNTIME_DIR"), f"nvrx-{os.getuid()}"
    found = [os.path.join(shared, "nvrx")] if shared else []
    return (*found, os.path.join(os.environ.get("TMPDIR") or "/tmp", mine), os.path.join("/tmp", mine))


def master() -> tuple[str, int]:
    """Return MASTER_ADDR and MASTER_PORT, by default 127.0.0.1 and 29500.

    Raises:
        ValueError: when the port is none, or leaves no room for the one after it.
    """
    port = _number("MASTER_PORT", 29500)
    if not 0 < port < MAX_PORT:
        raise ValueError(f"environment: MASTER_PORT={port} is not in the range 1 to 65534; write MASTER_PORT=29500")
    return os.environ.get("MASTER_ADDR", "127.0.0.1"), port


def check_variables() -> None:
    """Check the variables that a call reads.

    Raises:
        ValueError: when one is wrong, with what to write instead.
    """
    rank_and_world_size()
    master()
    store_endpoint()
    store_answers_within()
    store_listens_within()


def has_master() -> bool:
    """Return whether a launcher, or the user, has said where the ranks meet."""
    return "MASTER_ADDR" in os.environ


def store_endpoint() -> tuple[str, int] | None:
    """Return `NVRX_STORE_ENDPOINT` as host and port, None when it is not set.

    Raises:
        ValueError: when it is not `host:port`.
    """
    if not (text := os.environ.get("NVRX_STORE_ENDPOINT", "")):
        return None
    try:
        return parse_endpoint(text)
    except ValueError:
        raise ValueError(
            f"environment: NVRX_STORE_ENDPOINT={text!r} is not host:port with a port of 1 to 65535; "
            "write NVRX_STORE_ENDPOINT=node7:29501 or [fd00::7]:29501, without a scheme or a path"
        ) from None


def store_answers_within() -> float:
    """Return `NVRX_STORE_ANSWERS_WITHIN`: seconds that a store which accepted a connection has to answer; by default 7.

    Raises:
        ValueError: when it is no number above 0.
    """
    return _seconds("NVRX_STORE_ANSWERS_WITHIN", "7", "7, the default")


def store_listens_within() -> float:
    """Return `NVRX_STORE_LISTENS_WITHIN`: seconds in which a store must be there; by default any number (inf).

    A store that has listened since before its ranks were started, and refuses them, is gone.

    Raises:
        ValueError: when it is no number above 0.
    """
    return _seconds("NVRX_STORE_LISTENS_WITHIN", "inf", "30, or inf, the default", most=math.inf)


def _seconds(name: str, default: str, instead: str, *, most: float = sys.float_info.max) -> float:
    text = os.environ.get(name, default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= most:
        raise ValueError(f"environment: {name}={text!r} is no number of seconds above 0; write {instead}")
    return seconds


def events_directory() -> str | None:
    """Return `NVRX_EVENTS_DIR`, None when it is not set."""
    return os.environ.get("NVRX_EVENTS_DIR") or None


def flight_record_directory() -> str | None:
    """Return `NVRX_FR_TRACE_PATH`, None when it is not set."""
    return os.environ.get("NVRX_FR_TRACE_PATH") or None


def flight_recorder_is_on() -> bool:
    """Return whether torch's flight recorder is enabled; the first variable that is set decides, as in torch."""
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    size = next((os.environ[name] for name in names if name in os.environ), "")
    return size.isdigit() and int(size) > 0


def error_file() -> Path | None:
    """Return the file that the launcher of this process has given it for its exception; None without a launcher.

    `TORCHELASTIC_ERROR_FILE` is `<folder>/attempt_<n>/<local rank>/error.json`, of ft_launcher as of torchrun.
    """
    file = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    return file if file.name == "error.json" and file.parent.parent.name.startswith("attempt_") else None


def full_tracebacks() -> bool:
    """Return whether logged tracebacks have the frames of libraries as well: `NVRX_FULL_TRACEBACK` is 1."""
    return os.environ.get("NVRX_FULL_TRACEBACK") == "1"


def variables(prefix: str) -> dict[str, str]:
    """Return the variables whose names begin with `prefix` and that are not empty."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefix) and value}


def cpp_log_level() -> str | None:
    """Return `TORCH_CPP_LOG_LEVEL`, None when it is not set."""
    return os.environ.get("TORCH_CPP_LOG_LEVEL") or None


def nccl_variables() -> dict[str, str]:
    """Return the variables that the environment checks read."""
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
    """Let `env://` use the store at `address:port`, which is hosted for all ranks, the new rank 0 included."""
    os.environ["MASTER_ADDR"] = address
    os.environ["MASTER_PORT"] = str(port)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"


@contextmanager
def restored() -> Iterator[None]:
    """Restore the addresses on exit; RANK and WORLD_SIZE keep the values of the last iteration."""
    before = {name: os.environ.get(name) for name in _MANAGED[2:]}
    try:
        yield
    finally:
        _write(before)


def with_environment_as_now(factory: Callable[..., T]) -> Callable[..., T]:
    """Return a factory that always runs with RANK, WORLD_SIZE and the addresses of the present environment."""
    captured = _managed()

    @functools.wraps(factory, updated=())
    def called(*args: Any, **kwargs: Any) -> T:
        current = _managed()
        _write(captured)
        try:
            return factory(*args, **kwargs)
        finally:
            _write(current)

    return called


def _managed() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in _MANAGED}


def _write(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _first_number(names: Iterable[str], default: int | None) -> int:
    name = next((name for name in names if name in os.environ), None)
    if name is not None:
        return _number(name, 0)
    if default is None:
        raise RuntimeError(f"the rank is unknown: none of {', '.join(names)} is set, and there is no process group")
    return default


def _number(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        example = f"; write {name}={default}" if default > 1 else ""
        host = socket.gethostname()
        raise ValueError(f"environment: {name}={text!r} is not a whole number (host {host}){example}") from None
