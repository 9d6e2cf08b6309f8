"""Assigned rank and world size for Lightning's cluster environments; the only file that uses `os.environ`.

Lightning derives the rank from the local rank and the number of devices, which is wrong once a rank is lost. An
environment that follows the assignment returns the wrapper's rank and world size instead. The local rank never changes,
because it selects the device.

The assignment belongs to the process: a Trainer created after a fit that lost ranks starts with the remaining ranks.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from nvrx_core.process.proc import read_stat
from nvrx_lightning.subclassing import become

__all__ = [
    "agent_of",
    "assign",
    "assign_from_variables",
    "become_rank",
    "begin_verification",
    "earlier_ids",
    "follow_assignment",
    "for_verification",
    "free_ports",
    "job_ids",
    "publish",
    "reserve_ports",
    "restarted_ids",
    "verifies",
]

_assignment: Final[dict[str, tuple[int, int]]] = {}


def _following(kind: Any) -> type[Any]:
    """A subclass of a `ClusterEnvironment` that returns the assigned rank and world size, once assigned."""

    class AssignedRanks(kind):  # type: ignore[misc]
        def global_rank(self) -> Any:
            return _assigned(0, super().global_rank)

        def world_size(self) -> Any:
            return _assigned(1, super().world_size)

        def set_global_rank(self, rank: int) -> None:
            _unless_assigned(super().set_global_rank, rank)

        def set_world_size(self, size: int) -> None:
            _unless_assigned(super().set_world_size, size)

        @property
        def main_address(self) -> Any:
            return _master("MASTER_ADDR") or super().main_address

        @property
        def main_port(self) -> Any:
            return int(_master("MASTER_PORT") or super().main_port)

        def teardown(self) -> None:
            """Keep WORLD_SIZE, which Lightning deletes: the next attempt reads it."""
            _unless_assigned(super().teardown)

    return AssignedRanks


def _assigned(which: int, otherwise: Callable[[], int]) -> int:
    return _assignment["ranks"][which] if _assignment else otherwise()


def _unless_assigned(act: Callable[..., None], *arguments: int) -> None:
    if not _assignment:
        act(*arguments)


def _master(name: str) -> str | None:
    """The master address and port of the attempt's process group; None before the first attempt."""
    return os.environ.get(name) if _assignment else None


def follow_assignment(environment: Any) -> Any:
    """Make a cluster environment follow the assignment, and return it."""
    return become(environment, _following)


def assign(rank: int, world_size: int) -> None:
    """Assign the ranks of an iteration."""
    _assignment["ranks"] = rank, world_size


def assign_from_variables() -> None:
    """Adopt the RANK and WORLD_SIZE that a wrapped call has left: the rank among the surviving ranks."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        assign(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def publish(environment: Any) -> None:
    """Set the wrapper's variables from Lightning's cluster environment (SLURM, LSF, MPI or Lightning's own)."""
    rank, world_size = environment.global_rank(), environment.world_size()
    os.environ["MASTER_ADDR"] = str(environment.main_address)
    os.environ["MASTER_PORT"] = str(environment.main_port)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world_size)


def reserve_ports() -> None:
    """Choose MASTER_PORT for ranks that Lightning starts itself."""
    if "MASTER_PORT" not in os.environ:
        os.environ["MASTER_PORT"] = str(free_ports())


def free_ports() -> int:
    """Return a free port whose successor is free, too.

    It is none that the kernel may give to a connection before the port is used.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    for _ in range(100):
        port = random.SystemRandom().randrange(10_000, max(lowest, 20_000) - 1)
        with socket.socket() as first, socket.socket() as second, suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port
    raise RuntimeError("no two consecutive free ports: set MASTER_PORT")


def job_ids() -> dict[str, str]:
    """Return the ids of this job, each unique to one start of it and the same in its restarts, by who restarts it."""
    ids = {}
    if launch := os.environ.get("NVRX_LAUNCH_ID"):
        ids["the launcher"] = f"launch {launch}"
    elif (run := os.environ.get("TORCHELASTIC_RUN_ID")) is not None and (agent := agent_of(os.getppid())):
        ids["the launcher"] = f"run {run} of agent {agent}"
    if job := os.environ.get("SLURM_JOB_ID"):
        ids["Slurm"] = f"Slurm job {job}"
    return ids


def earlier_ids() -> dict[str, str]:
    """Return those of `job_ids` by which this job may have saved checkpoints before.

    An id of a launcher is unique to one start of it. Its count of restarts tells nothing: torchrun counts for each
    agent, and no change of membership. Under the id of a Slurm job, a script may start several trainings.
    """
    restarted = restarted_ids()
    return {who: each for who, each in job_ids().items() if who != "Slurm" or who in restarted}


def restarted_ids() -> dict[str, str]:
    """Return those of `job_ids` whose launcher or scheduler counts this start as a restart."""
    counts = {"the launcher": "TORCHELASTIC_RESTART_COUNT", "Slurm": "SLURM_RESTART_COUNT"}
    restarted = {who for who, name in counts.items() if (count := os.environ.get(name, "")).isdigit() and int(count)}
    return {who: each for who, each in job_ids().items() if who in restarted}


def agent_of(parent: int, proc: Path = Path("/proc")) -> str:
    """Return pid and start of torchrun's agent: the closest ancestor that was not started by an agent itself.

    Another start of the job under the same run id has another agent. In a container the agent may be process 1: the
    namespace of the pids and the start tell it from that of another container on the host.

    Args:
        parent: the pid of this process's parent.
        proc: the mounted proc file system.

    Returns:
        "" if the agent is not known: all jobs on the host would have the same id.
    """
    pid, namespace = parent, ""
    with suppress(OSError):  # a sandbox may lack it
        namespace = os.readlink(proc / "self/ns/pid")
    while pid > 0:
        try:
            is_worker = b"TORCHELASTIC_RESTART_COUNT=" in (proc / str(pid) / "environ").read_bytes()
            boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:  # it has ended, or is another user's
            return ""
        if (stat := read_stat(pid, proc=proc)) is None:
            return ""
        if not is_worker:
            return f"{boot}-{namespace}-{pid}-{stat.start}"
        pid = stat.parent
    return ""


_VERIFIES: Final = "NVRX_LIGHTNING_VERIFIES"
_OF_ANOTHER_JOB: Final = ("FAULT_TOL_", "FT_", "NVRX_", "PL_TRAINER_", "SLURM_", "TORCHELASTIC_")
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Else a computation at the import of the user's module starts threads, which a forked rank would lack."""


def for_verification(path: list[str]) -> dict[str, str]:
    """Return the environment of the process of a verification, which finds modules as this one does."""
    return {**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def begin_verification() -> None:
    """Make this process that of a verification: CPU only, one thread, and no part of the job that it was started in."""
    for name in [name for name in os.environ if name.startswith(_OF_ANOTHER_JOB)]:
        del os.environ[name]
    os.environ.update({**_ONE_THREAD, "CUDA_VISIBLE_DEVICES": "", _VERIFIES: "1", "WANDB_MODE": "offline"})


def verifies() -> bool:
    """Return whether this is a process of a verification."""
    return _VERIFIES in os.environ


def become_rank(rank: int, world_size: int, port: int) -> None:
    """Set the variables of a rank of one node; they are the defaults of a Trainer that leaves the devices out, too."""
    os.environ.update({
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size),
        "NODE_RANK": "0", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "PL_TRAINER_ACCELERATOR": "cpu", "PL_TRAINER_DEVICES": str(world_size),
    })  # fmt: skip
