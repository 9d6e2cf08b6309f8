"""The options of a node's workers, besides those of the job: their logs, devices and processors. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nvrx_core.errors import ConfigurationError

__all__ = ["WorkerOptions"]

DEVICES: Final = "CUDA_VISIBLE_DEVICES"
GPUS_PER_NUMA: Final = "NVRX_GPUS_PER_NUMA"


@dataclass(frozen=True)
class WorkerOptions:
    """The setup of the workers of a node.

    Attributes:
        start_method: how a worker that is a function is started: spawn, fork or forkserver.
        logs_specs: name of an entry point of the group `torchrun.logs_specs`, which says where logs go; None: ours.
        event_log_handler: name of a handler of torch elastic's events; "null" for none.
        duplicate_stdout, duplicate_stderr: texts; a line with one of them goes to one more file.
        virtual_local_rank: each worker sees LOCAL_RANK 0 and one device.
        numa_binding: torch's way to bind a worker to the processors near its GPU; None: not.
        gpus_per_numa: GPUs of a NUMA node, where workers are bound by their number; None: they are not.
    """

    start_method: str = "spawn"
    logs_specs: str | None = None
    event_log_handler: str = "null"
    duplicate_stdout: tuple[str, ...] = ()
    duplicate_stderr: tuple[str, ...] = ()
    virtual_local_rank: bool = False
    numa_binding: str | None = None
    gpus_per_numa: int | None = None

    @classmethod
    def of(cls, given: argparse.Namespace, workers: int, environ: Mapping[str, str]) -> WorkerOptions:
        """Return those of a parsed command line.

        Raises:
            ConfigurationError: when a value is wrong, or contradicts another one.
        """
        if not 0 < given.monitor_interval < float("inf"):
            raise _wrong("--monitor-interval", f"{given.monitor_interval:g} is no duration", "write seconds above 0")
        if given.virtual_local_rank:
            _check_devices(workers, environ)
        return cls(
            given.start_method, given.logs_specs, given.event_log_handler,
            tuple(given.duplicate_stdout_filters), tuple(given.duplicate_stderr_filters),
            given.virtual_local_rank, given.numa_binding, _gpus_per_numa(given, environ),
        )  # fmt: skip


def _check_devices(workers: int, environ: Mapping[str, str]) -> None:
    devices = environ.get(DEVICES)
    if devices is not None and len(devices.split(",")) < workers:
        problem = f"there are {workers} workers, and {DEVICES} is {devices!r}"
        raise _wrong("--virtual-local-rank", problem, "name a device for each worker")


def _gpus_per_numa(given: argparse.Namespace, environ: Mapping[str, str]) -> int | None:
    text = environ.get(GPUS_PER_NUMA, "")
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigurationError("environment", GPUS_PER_NUMA, f"{text!r} is no number of GPUs", "write one, as in 4")
    if given.numa_binding:
        raise _wrong("--numa-binding", f"given together with {GPUS_PER_NUMA}", "give one of them")
    return int(text)


def _wrong(option: str, problem: str, advice: str) -> ConfigurationError:
    return ConfigurationError("command line", option, problem, advice)
