"""The launcher's options, each declared once, and validated. Pure.

A wrong value is a `ConfigurationError` that names the option, what was given, and what to write.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.parsing import parse_endpoint
from nvrx_launcher.declared_options import (
    OPTIONAL_INTEGER,
    OPTIONAL_TEXT,
    SECONDS,
    TEXT,
    OptionForm,
    flag,
    option,
    values_of,
    wrong,
)
from nvrx_launcher.host_list import expected_hosts
from nvrx_launcher.log_options import LogOptions
from nvrx_launcher.rank_order import DEFAULT_ORDER, infrastructure_rank, rank_sources
from nvrx_launcher.rendezvous_settings import RendezvousSettings, backend_named

__all__ = ["LaunchOptions", "NodeRange", "StreamChoice", "Streams"]

DEFAULT_PORT: Final = 29500
MAX_RUN_ID: Final = 1000
SHUTDOWN_TIMEOUT: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
STOP_SLACK: Final = 10.0
"""Seconds for messages in both directions, and for a busy machine."""
COMMAND: Final = 1000
"""Characters of a command that are compared as they are; the rest by a digest."""
DEVICES: Final = "CUDA_VISIBLE_DEVICES"
COUNTED: Final = ("auto", "cpu", "gpu", "xpu")
GPUS_PER_NUMA: Final = "NVRX_GPUS_PER_NUMA"
STREAMS: Final = {"0": (False, False), "1": (True, False), "2": (False, True), "3": (True, True)}


@dataclass(frozen=True)
class NodeRange:
    """How many nodes take part."""

    least: int
    most: int

    def __str__(self) -> str:
        """Return it as --nnodes has it."""
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True)
class Streams:
    """Which streams of a worker are meant."""

    stdout: bool = False
    stderr: bool = False


@dataclass(frozen=True)
class StreamChoice:
    """Which streams of which workers are meant.

    Attributes:
        by_rank: those of the workers that are named, by local rank.
        others: those of each other worker.
    """

    by_rank: Mapping[int, Streams]
    others: Streams

    def __getitem__(self, local_rank: int) -> Streams:
        """Return those of a worker."""
        return self.by_rank.get(local_rank, self.others)

    @property
    def is_any(self) -> bool:
        """Whether any stream is meant."""
        return any(each.stdout or each.stderr for each in (self.others, *self.by_rank.values()))

    def of_workers(self, workers: int) -> dict[int, Streams]:
        """Return those of each of so many workers, by local rank."""
        return dict.fromkeys(range(workers), self.others) | dict(self.by_rank)


def _nodes(option: str, text: str) -> NodeRange:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < least <= most:
        raise wrong(option, f"{text!r} is no number of nodes", "write 2, or 2:4 for 2 to 4 nodes")
    return NodeRange(least, most)


def _workers(option: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise wrong(option, f"{text!r} is no positive number", "write one, or auto, cpu, gpu or xpu")
    return int(text)


def _run_id(option: str, text: str) -> str:
    if not text.isprintable() or len(text) > MAX_RUN_ID:
        problem = f"{text[:40]!r}... has {len(text)} characters, or some that cannot be printed"
        raise wrong(option, problem, f"write up to {MAX_RUN_ID} characters, without line breaks")
    return text


def _restarts(option: str, count: int) -> int:
    if count < 0:
        raise wrong(option, f"{count} is negative", "0 means no restart")
    return count


def _interval(option: str, seconds: float) -> float:
    if not 0 < seconds < float("inf"):
        raise wrong(option, f"{seconds:g} is no duration", "write seconds above 0")
    return seconds


def _streams(option: str, text: str) -> StreamChoice:
    """Read "3", or "0:1,1:3" by local rank, as torchrun does."""
    if text in STREAMS:
        return StreamChoice({}, Streams(*STREAMS[text]))
    by_rank = dict[int, Streams]()
    for part in text.split(","):
        found = re.fullmatch(r"(\d+):([0-3])", part)
        if not found:
            raise wrong(option, f"{text!r} names no streams", "write 0, 1, 2 or 3 for all, or as in 0:3,1:1")
        by_rank[int(found[1])] = Streams(*STREAMS[found[2]])
    return StreamChoice(by_rank, Streams())


def _ranks(option: str, text: str) -> frozenset[int]:
    if text and not re.fullmatch(r"\d+(,\d+)*", text):
        raise wrong(option, f"{text!r} are no local ranks", "write them as in 0,2")
    return frozenset(map(int, filter(None, text.split(","))))


def _address(text: str) -> str:
    """Return an address that may be in brackets, as an IPv6 address is in an endpoint."""
    return text.removeprefix("[").removesuffix("]")


_STREAMS: Final = OptionForm(str, _streams)
_FILTERS: Final = OptionForm[Sequence[str], tuple[str, ...]](
    lambda text: [each.replace("\0", ",") for each in text.replace(",,", "\0").split(",")],
    lambda _, texts: tuple(texts),
)
"""Texts with commas between them; two commas stand for one inside a text."""
_OPTIONAL_SECONDS: Final = OptionForm[float | None, float | None](
    float, lambda name, value: None if value is None else SECONDS.read(name, value)
)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The job and this node's part in it.

    Attributes:
        script, arguments: what the workers run.
        job_name: the job's name in the store of in-process restart.
        endpoint: host and port of the rendezvous.
        order: this node's rank by --node-rank, or by the infrastructure; -1 for none.
        rendezvous: the settings of the rendezvous.
        logs: per-cycle logs.
        gpus_per_numa: GPUs of a NUMA node, where workers are bound by their number; None: they are not.
        expected_hosts: the job's hosts, where Slurm has named them.

    The others are options, and are described where they are declared. One that is None is not given.
    """

    nnodes: NodeRange = option(
        "1:1", OptionForm(str, _nodes), "Number of nodes, or the range of nodes as <minimum_nodes>:<maximum_nodes>.",
        is_jobs=True,
    )  # fmt: skip
    workers: int = option(
        "1", OptionForm(str, _workers), "Number of workers per node; auto, cpu, gpu and xpu count what the node has.",
        name="nproc-per-node",
    )  # fmt: skip
    rdzv_backend: str = option(
        "c10d", OptionForm(str, lambda _, text: backend_named(text)),
        "Rendezvous backend: c10d, etcd-v2, static, torch's etcd, or one that is registered.", is_jobs=True,
    )  # fmt: skip
    endpoint_text: str = option(
        "", TEXT, "Rendezvous endpoint, as <host>:<port>; an IPv6 address in brackets.", name="rdzv-endpoint"
    )
    run_id: str = option("none", OptionForm(str, _run_id), "Name of the job, up to 1000 characters.", name="rdzv-id")
    rdzv_conf: str = option("", TEXT, "Further rendezvous settings, as <key1>=<value1>,<key2>=<value2>.")
    standalone: bool = flag("Start a job of one node, with a rendezvous of its own.")
    max_restarts: int = option(
        0, OptionForm(int, _restarts), "How often the workers are restarted before the job fails.", is_jobs=True
    )
    monitor_interval: float = option(
        0.1, OptionForm(float, _interval),
        "Seconds between two questions to a rendezvous handler that is not nvrx's; no effect elsewhere.",
    )  # fmt: skip
    start_method: str = option(
        "spawn", TEXT, "How workers that are functions are started; no difference for a script.",
        choices=("spawn", "fork", "forkserver"),
    )  # fmt: skip
    event_log_handler: str = option("null", TEXT, "Name of a registered handler of torch elastic's events.")
    role: str = option("default", TEXT, "Role of the workers.")
    module: bool = flag("The script is a module, as for python -m.", short="m")
    no_python: bool = flag("The script is a program that is not run by Python.")
    run_path: bool = flag("Run the script with runpy.run_path in the worker's interpreter.")
    log_dir: str | None = option(None, OPTIONAL_TEXT, "Folder for log files.")
    redirects: StreamChoice = option(
        "0", _STREAMS, "Streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both.", short="r"
    )
    tee: StreamChoice = option(
        "0", _STREAMS, "Streams that go to files and to the console; numbers as for --redirects.", short="t"
    )
    local_ranks_filter: frozenset[int] = option(
        "", OptionForm(str, _ranks), "Local ranks whose output goes to the console, as in 0,2; all by default."
    )
    duplicate_stdout_filters: tuple[str, ...] = option(
        (), _FILTERS, "Texts with commas between them, ,, for a comma; lines of a --tee of stdout with one of them go "
        "to filtered_stdout.log as well.",
    )  # fmt: skip
    duplicate_stderr_filters: tuple[str, ...] = option((), _FILTERS, "The same for stderr and filtered_stderr.log.")
    node_rank: int | None = option(
        None, OPTIONAL_INTEGER, "Rank of this node with static; else its place among the nodes."
    )
    master_addr: str = option(
        "127.0.0.1", OptionForm(str, lambda _, text: _address(text)),
        "Address of the first node, where no rendezvous endpoint is given.",
    )  # fmt: skip
    master_port: int | None = option(
        None, OPTIONAL_INTEGER, "Port on the first node, where no rendezvous endpoint is given."
    )
    local_addr: str | None = option(
        None, OptionForm[str | None, str | None](str, lambda _, text: text and _address(text)), "Address of this node."
    )
    logs_specs: str | None = option(
        None, OPTIONAL_TEXT, "Name of a torchrun.logs_specs entry point, which says where logs go."
    )
    numa_binding: str | None = option(
        None, OPTIONAL_TEXT, "Bind each worker to processors near the GPU of its local rank, as torch does.",
        choices=("node", "socket", "exclusive", "core-complex"),
    )  # fmt: skip
    signals: tuple[str, ...] = option(
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT", OptionForm(str, lambda _, text: tuple(filter(None, text.split(",")))),
        "Signals that the launcher passes on to its workers.", name="signals-to-handle",
    )  # fmt: skip
    shutdown_timeout: float | None = option(
        None, _OPTIONAL_SECONDS, "As --workers-stop-timeout, which it replaces where it is given."
    )
    virtual_local_rank: bool = flag("Each worker sees LOCAL_RANK 0 and one device.")
    term_timeout: float = option(
        25.0, SECONDS, "Seconds from a signal that is passed on to a worker's SIGKILL; a second signal leaves 2 s, a "
        "third none.", is_torchruns=False,
    )  # fmt: skip
    workers_stop_timeout: float = option(
        15.0, SECONDS, "Seconds from a worker's SIGTERM to its SIGKILL, for a restart.", is_torchruns=False
    )
    workers_kill_timeout: float = option(
        30.0, SECONDS, "Seconds from a worker's SIGKILL after which its node leaves the job, if the worker is still "
        "there.", is_torchruns=False,
    )  # fmt: skip
    restart_policy: str = option(
        "any-failed", TEXT,
        "When workers are restarted: when any has failed, or when fewer nodes than the minimum are healthy.",
        choices=("any-failed", "min-healthy"), is_torchruns=False, is_jobs=True,
    )  # fmt: skip
    rank_order: tuple[str, ...] = option(
        DEFAULT_ORDER, OptionForm(str, lambda _, text: rank_sources(text)),
        "What orders the ranks of nodes without --node-rank, the first that a node has: slurm-procid, group-rank, "
        "cross-slurm-procid, array, topology, nodename, with commas between them; else the names of hosts.",
        name="ft-rank-order", is_torchruns=False,
    )  # fmt: skip
    script: str
    arguments: tuple[str, ...]
    job_name: str
    endpoint: tuple[str, int]
    order: int
    rendezvous: RendezvousSettings
    logs: LogOptions
    gpus_per_numa: int | None
    expected_hosts: tuple[str, ...]

    @property
    def min_nodes(self) -> int:
        """How many nodes must take part."""
        return self.nnodes.least

    @property
    def max_nodes(self) -> int:
        """How many nodes may take part."""
        return self.nnodes.most

    @property
    def has_fixed_ranks(self) -> bool:
        """Whether each node has the rank that --node-rank gives it, as in torchrun's static rendezvous."""
        return self.rdzv_backend == "static"

    @property
    def backend(self) -> str:
        """What serves the rendezvous: static is c10d with fixed ranks."""
        return "c10d" if self.has_fixed_ranks else self.rdzv_backend

    @property
    def hosts_rendezvous(self) -> bool:
        """Whether a launcher of the job hosts the rendezvous, as far as this one is told."""
        is_ruled_out = self.rendezvous.is_host is False and not self.has_fixed_ranks
        return self.max_nodes == 1 or (self.backend == "c10d" and not is_ruled_out)

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
        values = values_of(cls, _spelled_out(given, count_devices, environ))
        nodes, workers, backend = values["nnodes"], values["workers"], values["rdzv_backend"]
        rendezvous, node_rank = RendezvousSettings.of(values["rdzv_conf"], backend), values["node_rank"]
        if backend == "static":
            backend, node_rank = "c10d", _fixed_rank(node_rank or 0, nodes)
            rendezvous = replace(rendezvous, is_host=node_rank == 0)
        if values["module"] and values["no_python"]:
            raise wrong("--no-python", "given together with --module", "give one of them")
        order, devices = infrastructure_rank(values["rank_order"], environ), environ.get(DEVICES)
        if values["virtual_local_rank"] and devices is not None and len(devices.split(",")) < workers:
            problem = f"there are {workers} workers, and {DEVICES} is {devices!r}"
            raise wrong("--virtual-local-rank", problem, "name a device for each worker")
        return cls(
            **values, script=given.training_script, arguments=tuple(given.training_script_args),
            job_name=environ.get("NVRX_JOB_ID") or values["run_id"],
            endpoint=_endpoint(given, is_one_node=nodes.most == 1) if backend == "c10d" else ("", 0),
            order=order if node_rank is None else node_rank, rendezvous=rendezvous,
            logs=LogOptions.of(given, nodes.most, backend), gpus_per_numa=_gpus_per_numa(given, environ),
            expected_hosts=expected_hosts(environ),
        )  # fmt: skip


def _spelled_out(
    given: argparse.Namespace, count_devices: Callable[[str], int], environ: Mapping[str, str]
) -> argparse.Namespace:
    """Return a command line without the options that stand for others, or for what this node has."""
    values = dict(vars(given))
    if given.standalone:
        values |= {"nnodes": "1", "rdzv_backend": "c10d"}
    if given.nproc_per_node in COUNTED:
        values["nproc_per_node"] = str(count_devices(given.nproc_per_node))
    if given.shutdown_timeout is not None:
        values["workers_stop_timeout"] = given.shutdown_timeout
    elif variable := environ.get(SHUTDOWN_TIMEOUT):
        if not variable.isdigit():
            problem = f"{variable!r} is no number of seconds"
            raise ConfigurationError("environment", SHUTDOWN_TIMEOUT, problem, "write 30")
        values["workers_stop_timeout"] = float(variable)
    return argparse.Namespace(**values)


def _endpoint(given: argparse.Namespace, *, is_one_node: bool) -> tuple[str, int]:
    if not given.rdzv_endpoint:
        return _address(given.master_addr), given.master_port or DEFAULT_PORT
    try:
        host, zero, rest = given.rdzv_endpoint.rpartition(":0")
        if is_one_node and zero and not rest:  # torchrun's way to write "any port"; one node needs none
            return parse_endpoint(host, DEFAULT_PORT)
        return parse_endpoint(given.rdzv_endpoint, DEFAULT_PORT)
    except ValueError as error:
        raise wrong("--rdzv-endpoint", str(error), "write it as in node0:29500 or [fd00::2]:29500") from None


def _fixed_rank(rank: int, nodes: NodeRange) -> int:
    if nodes.least != nodes.most:
        raise wrong("--nnodes", f"{nodes} is a range; static needs one number", f"write {nodes.most}")
    if not 0 <= rank < nodes.most:
        raise wrong("--node-rank", f"{rank} is no rank of {nodes.most} nodes", f"write 0 to {nodes.most - 1}")
    return rank


def _gpus_per_numa(given: argparse.Namespace, environ: Mapping[str, str]) -> int | None:
    text = environ.get(GPUS_PER_NUMA, "")
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigurationError("environment", GPUS_PER_NUMA, f"{text!r} is no number of GPUs", "write one, as in 4")
    if given.numa_binding:
        raise wrong("--numa-binding", f"given together with {GPUS_PER_NUMA}", "give one of them")
    return int(text)
