"""The launcher's options, validated. Pure.

A wrong value is a `ConfigurationError` that names the option, what was given, and what to write.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.parsing import parse_endpoint
from nvrx_launcher.host_list import expected_hosts
from nvrx_launcher.log_options import LogOptions
from nvrx_launcher.rank_order import infrastructure_rank, rank_sources
from nvrx_launcher.rendezvous_settings import RendezvousSettings, backend_named

__all__ = ["LaunchOptions", "Streams"]

DEFAULT_PORT: Final = 29500
MAX_RUN_ID: Final = 1000
SHUTDOWN_TIMEOUT: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
STOP_SLACK: Final = 10.0
"""Seconds for messages in both directions, and for a busy machine."""
COMMAND: Final = 1000
"""Characters of a command that are compared as they are; the rest by a digest."""
DEVICES: Final = "CUDA_VISIBLE_DEVICES"
GPUS_PER_NUMA: Final = "NVRX_GPUS_PER_NUMA"
STREAMS: Final = {"0": (False, False), "1": (True, False), "2": (False, True), "3": (True, True)}


@dataclass(frozen=True)
class Streams:
    """Which streams of a worker are meant."""

    stdout: bool = False
    stderr: bool = False


@dataclass(frozen=True)
class LaunchOptions:
    """The job and this node's part in it.

    Attributes:
        min_nodes, max_nodes: how many nodes take part.
        workers: workers of this node.
        run_id: the job's name.
        job_name: its name in the store of in-process restart.
        max_restarts: how often the workers are restarted.
        role: the workers' role.
        script, arguments: what they run.
        module, no_python, run_path: how it is run.
        log_dir: folder for log files; None: a temporary one, when one is needed.
        redirects, tee: by local rank, which streams go to a file, or to a file and the console.
        local_ranks_filter: local ranks whose output goes to the console; empty: all.
        term_timeout: seconds from a signal that is passed on to a SIGKILL.
        workers_stop_timeout: seconds from a SIGTERM to a SIGKILL.
        workers_kill_timeout: seconds from a SIGKILL after which this node is given up if a worker survives it.
        signals: names of the signals that are passed on.
        master_addr: where the workers of one node meet.
        master_port: the port; None: a free one.
        endpoint: host and port of the rendezvous.
        endpoint_text: the same as given, for a backend that has several.
        local_addr: the address of this node; None: that of the interface that leads to the endpoint.
        order: this node's rank by --node-rank, or by the infrastructure; -1 for none.
        rdzv_backend: the rendezvous: one of ours, c10d or etcd-v2, or one that is registered with torch.
        has_fixed_ranks: each node has the rank that --node-rank gives it, as in torchrun's static rendezvous.
        monitor_interval: seconds between two looks at a rendezvous that tells nothing by itself.
        restart_policy: when workers are restarted.
        rendezvous: the settings of the rendezvous.
        logs: per-cycle logs.
        start_method: how a worker that is a function is started: spawn, fork or forkserver.
        logs_specs: name of an entry point of the group `torchrun.logs_specs`, which says where logs go; None: ours.
        event_log_handler: name of a handler of torch elastic's events; "null" for none.
        duplicate_stdout_filters, duplicate_stderr_filters: texts; a line with one of them goes to one more file.
        virtual_local_rank: each worker sees LOCAL_RANK 0 and one device.
        numa_binding: torch's way to bind a worker to the processors near its GPU; None: not.
        gpus_per_numa: GPUs of a NUMA node, where workers are bound by their number; None: they are not.
        expected_hosts: the job's hosts, where Slurm has named them.
    """

    min_nodes: int
    max_nodes: int
    workers: int
    run_id: str
    job_name: str
    max_restarts: int
    role: str
    script: str
    arguments: tuple[str, ...]
    module: bool
    no_python: bool
    run_path: bool
    log_dir: str | None
    redirects: Mapping[int, Streams]
    tee: Mapping[int, Streams]
    local_ranks_filter: frozenset[int]
    term_timeout: float
    workers_stop_timeout: float
    workers_kill_timeout: float
    signals: tuple[str, ...]
    master_addr: str
    master_port: int | None
    endpoint: tuple[str, int]
    endpoint_text: str
    local_addr: str | None
    order: int
    rdzv_backend: str
    has_fixed_ranks: bool
    monitor_interval: float
    restart_policy: str
    rendezvous: RendezvousSettings
    logs: LogOptions
    start_method: str = "spawn"
    logs_specs: str | None = None
    event_log_handler: str = "null"
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    virtual_local_rank: bool = False
    numa_binding: str | None = None
    gpus_per_numa: int | None = None
    expected_hosts: tuple[str, ...] = ()

    @property
    def hosts_rendezvous(self) -> bool:
        """Whether a launcher of the job hosts the rendezvous, as far as this one is told."""
        is_ruled_out = self.rendezvous.is_host is False and not self.has_fixed_ranks
        return self.max_nodes == 1 or (self.rdzv_backend == "c10d" and not is_ruled_out)

    @property
    def compared_command(self) -> str:
        """The same where it is compared with those of other nodes; else ""."""
        return "" if self.rendezvous.same_command is False else self.command

    @property
    def command(self) -> str:
        """What the workers run, as it is compared between nodes and shown."""
        kind = "-m " * self.module + "--no-python " * self.no_python + "--run-path " * self.run_path
        text = kind + shlex.join((self.script, *self.arguments))
        return text if len(text) <= COMMAND else f"{text[:COMMAND]}... {hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def stops_within(self) -> float:
        """Seconds within which this node has stopped its workers or has left; the coordinator gives it up later."""
        return self.workers_stop_timeout + self.workers_kill_timeout + STOP_SLACK

    @classmethod
    def of(
        cls, given: argparse.Namespace, count_devices: Callable[[str], int], environ: Mapping[str, str]
    ) -> LaunchOptions:
        """Return the options of a parsed command line.

        Args:
            given: the parsed command line.
            count_devices: counts what "auto", "cpu", "gpu" and "xpu" mean on this node.
            environ: the launcher's environment.

        Raises:
            ConfigurationError: when a value is wrong, or two contradict each other.
        """
        least, most = (1, 1) if given.standalone else _nodes(given.nnodes)
        backend = "c10d" if given.standalone else backend_named(given.rdzv_backend)
        rendezvous, node_rank = RendezvousSettings.of(given.rdzv_conf, backend), given.node_rank
        if has_fixed_ranks := backend == "static":
            backend, node_rank = "c10d", _fixed_rank(node_rank or 0, (least, most))
            rendezvous = replace(rendezvous, is_host=node_rank == 0)
        if given.module and given.no_python:
            raise _wrong("--no-python", "given together with --module", "give one of them")
        if given.max_restarts < 0:
            raise _wrong("--max-restarts", f"{given.max_restarts} is negative", "0 means no restart")
        if not given.rdzv_id.isprintable() or len(given.rdzv_id) > MAX_RUN_ID:
            problem = f"{given.rdzv_id[:40]!r}... has {len(given.rdzv_id)} characters, or some that cannot be printed"
            raise _wrong("--rdzv-id", problem, f"write up to {MAX_RUN_ID} characters, without line breaks")
        if not 0 < given.monitor_interval < float("inf"):
            raise _wrong("--monitor-interval", f"{given.monitor_interval:g} is no duration", "write seconds above 0")
        workers = _workers(given.nproc_per_node, count_devices)
        order = infrastructure_rank(rank_sources(given.ft_rank_order), environ)
        devices = environ.get(DEVICES)
        if given.virtual_local_rank and devices is not None and len(devices.split(",")) < workers:
            problem = f"there are {workers} workers, and {DEVICES} is {devices!r}"
            raise _wrong("--virtual-local-rank", problem, "name a device for each worker")
        return cls(
            min_nodes=least, max_nodes=most, workers=workers, run_id=given.rdzv_id,
            job_name=environ.get("NVRX_JOB_ID") or given.rdzv_id, max_restarts=given.max_restarts,
            role=given.role, script=given.training_script, arguments=tuple(given.training_script_args),
            module=given.module, no_python=given.no_python, run_path=given.run_path, log_dir=given.log_dir,
            redirects=_streams("--redirects", given.redirects, workers), tee=_streams("--tee", given.tee, workers),
            local_ranks_filter=_ranks(given.local_ranks_filter),
            term_timeout=_seconds("--term-timeout", given.term_timeout),
            workers_stop_timeout=_workers_stop_timeout(given, environ),
            workers_kill_timeout=_seconds("--workers-kill-timeout", given.workers_kill_timeout),
            signals=tuple(filter(None, given.signals_to_handle.split(","))), master_addr=_address(given.master_addr),
            master_port=given.master_port,
            endpoint=_endpoint(given, is_one_node=most == 1) if backend == "c10d" else ("", 0),
            endpoint_text=given.rdzv_endpoint, local_addr=given.local_addr and _address(given.local_addr),
            order=order if node_rank is None else node_rank,
            rdzv_backend=backend, has_fixed_ranks=has_fixed_ranks, monitor_interval=given.monitor_interval,
            restart_policy=given.restart_policy, rendezvous=rendezvous,
            logs=LogOptions.of(given, most, backend),
            start_method=given.start_method, logs_specs=given.logs_specs, event_log_handler=given.event_log_handler,
            duplicate_stdout_filters=tuple(given.duplicate_stdout_filters),
            duplicate_stderr_filters=tuple(given.duplicate_stderr_filters),
            virtual_local_rank=given.virtual_local_rank, numa_binding=given.numa_binding,
            gpus_per_numa=_gpus_per_numa(given, environ), expected_hosts=expected_hosts(environ),
        )  # fmt: skip


def _nodes(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < least <= most:
        raise _wrong("--nnodes", f"{text!r} is no number of nodes", "write 2, or 2:4 for 2 to 4 nodes")
    return least, most


def _endpoint(given: argparse.Namespace, *, is_one_node: bool) -> tuple[str, int]:
    if not given.rdzv_endpoint:
        return _address(given.master_addr), given.master_port or DEFAULT_PORT
    try:
        host, zero, rest = given.rdzv_endpoint.rpartition(":0")
        if is_one_node and zero and not rest:  # torchrun's way to write "any port"; one node needs none
            return parse_endpoint(host, DEFAULT_PORT)
        return parse_endpoint(given.rdzv_endpoint, DEFAULT_PORT)
    except ValueError as error:
        raise _wrong("--rdzv-endpoint", str(error), "write it as in node0:29500 or [fd00::2]:29500") from None


def _address(text: str) -> str:
    """Return an address that may be in brackets, as an IPv6 address is in an endpoint."""
    return text.removeprefix("[").removesuffix("]")


def _fixed_rank(rank: int, nodes: tuple[int, int]) -> int:
    if nodes[0] != nodes[1]:
        raise _wrong("--nnodes", f"{nodes[0]}:{nodes[1]} is a range; static needs one number", f"write {nodes[1]}")
    if not 0 <= rank < nodes[1]:
        raise _wrong("--node-rank", f"{rank} is no rank of {nodes[1]} nodes", f"write 0 to {nodes[1] - 1}")
    return rank


def _workers(text: str, count_devices: Callable[[str], int]) -> int:
    if text in ("auto", "cpu", "gpu", "xpu"):
        return count_devices(text)
    if not text.isdigit() or int(text) < 1:
        raise _wrong("--nproc-per-node", f"{text!r} is no positive number", "write one, or auto, cpu, gpu or xpu")
    return int(text)


def _streams(option: str, text: str, workers: int) -> dict[int, Streams]:
    """Read "3", or "0:1,1:3" by local rank, as torchrun does."""
    if text in STREAMS:
        return dict.fromkeys(range(workers), Streams(*STREAMS[text]))
    by_rank = dict.fromkeys(range(workers), Streams())
    for part in text.split(","):
        found = re.fullmatch(r"(\d+):([0-3])", part)
        if not found:
            raise _wrong(option, f"{text!r} names no streams", "write 0, 1, 2 or 3 for all, or as in 0:3,1:1")
        by_rank[int(found[1])] = Streams(*STREAMS[found[2]])
    return by_rank


def _ranks(text: str) -> frozenset[int]:
    if text and not re.fullmatch(r"\d+(,\d+)*", text):
        raise _wrong("--local-ranks-filter", f"{text!r} are no local ranks", "write them as in 0,2")
    return frozenset(map(int, filter(None, text.split(","))))


def _seconds(option: str, value: float) -> float:
    if not 0 <= value < float("inf"):
        raise _wrong(option, f"{value:g} is no duration", "write a number of seconds, 0 or more")
    return value


def _workers_stop_timeout(given: argparse.Namespace, environ: Mapping[str, str]) -> float:
    """Return what torchrun's option or its variable says, else our option."""
    if given.shutdown_timeout is not None:
        return _seconds("--shutdown-timeout", given.shutdown_timeout)
    if variable := environ.get(SHUTDOWN_TIMEOUT):
        if not variable.isdigit():
            raise ConfigurationError(
                "environment", SHUTDOWN_TIMEOUT, f"{variable!r} is no number of seconds", "write 30"
            )
        return float(variable)
    return _seconds("--workers-stop-timeout", given.workers_stop_timeout)


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
