"""The launcher as a function: `elastic_launch(config, entrypoint)(*arguments)`, as torch's.

    from nvrx_launcher import LaunchConfig, elastic_launch

    results = elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=8), train)("data")
    results[0]  # what train("data") has returned on rank 0

torch's own `LaunchConfig` is accepted, too.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nvrx_launcher.agent import Agent
from nvrx_launcher.arguments import OPTIONS, read_arguments
from nvrx_launcher.console import Console
from nvrx_launcher.exit_codes import SIGNALLED
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.rendezvous_settings import backend_named
from nvrx_launcher.torch_questions import count_devices
from nvrx_launcher.workers.functions import FunctionStarter
from nvrx_launcher.workers.process_environment import inherited
from nvrx_launcher.workers.worker import Failure

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs
    from torch.numa.binding import NumaOptions

__all__ = ["JobFailedError", "LaunchConfig", "elastic_launch"]

PREFIX_TEMPLATE: Final = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


class JobFailedError(RuntimeError):
    """The job has failed, and not by a worker of this node.

    Attributes:
        code: what `ft_launcher` exits with.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self._reason = code, reason

    def __str__(self) -> str:
        return f"{self._reason} (code {self.code})"


@dataclass
class LaunchConfig:
    """The job; the fields of torch's `LaunchConfig`, and ours.

    Attributes:
        min_nodes, max_nodes: how many nodes take part.
        nproc_per_node: workers of this node.
        logs_specs: where logs go, torch's `LogsSpecs`; None: the console.
        run_id: the job's name; "" for a new one.
        role: the workers' role.
        rdzv_endpoint, rdzv_backend, rdzv_configs: as --rdzv-endpoint, --rdzv-backend and --rdzv-conf.
        rdzv_timeout: the `timeout` of rdzv_configs, seconds, in torch's older form; -1: as there.
        max_restarts: how often the workers are restarted.
        monitor_interval: as --monitor-interval.
        start_method: spawn, fork or forkserver, for a function.
        log_line_prefix_template: before each line of a stream that is teed.
        metrics_cfg: accepted, without effect.
        local_addr: the address of this node.
        event_log_handler: name of a handler of torch elastic's events.
        numa_options: torch's `NumaOptions`.
        signals_to_handle: names of the signals that are passed on, with commas between them.
        duplicate_stdout_filters, duplicate_stderr_filters: texts.
        virtual_local_rank: each worker sees LOCAL_RANK 0 and one device.
        shutdown_timeout: seconds from a worker's SIGTERM to its SIGKILL.
        fault_tolerance: settings of fault tolerance by name, such as {"rank_heartbeat_timeout": 60}.
        launcher_options: options of ft_launcher by name, such as {"workers_stop_timeout": 30}; they win over fields.
        node_rank: as --node-rank; for a static rendezvous also the `rank` of rdzv_configs, as torch has it.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "c10d"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: NumaOptions | None = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: Sequence[str] | None = None
    duplicate_stderr_filters: Sequence[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None
    fault_tolerance: Mapping[str, Any] = field(default_factory=dict)
    node_rank: int | None = None
    launcher_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take over the timeout in its older form."""
        if self.rdzv_timeout != -1:
            self.rdzv_configs = {**self.rdzv_configs, "timeout": self.rdzv_timeout}


class elastic_launch:  # noqa: N801 - torch's name
    """Runs a function, or a program, on the workers of this node, and restarts them.

    Args:
        config: the job; a `LaunchConfig`, ours or torch's.
        entrypoint: the function, or the name of a program.
    """

    def __init__(self, config: Any, entrypoint: Callable[..., Any] | str) -> None:
        self._config, self._entrypoint = config, entrypoint

    def __call__(self, *arguments: Any) -> dict[int, Any]:
        """Run the job; returns what the function has returned, by rank; None for each worker that is a program.

        Raises:
            torch.distributed.elastic.multiprocessing.errors.ChildFailedError: when workers of this node have failed for
                the last time, with their exceptions.
            torch.distributed.elastic.multiprocessing.api.SignalException: when a signal has ended the job.
            JobFailedError: when it has failed otherwise.
            ConfigurationError: when a field is wrong.
        """
        logs = Path(tempfile.mkdtemp(prefix="ft_launcher_"))
        environ, template = inherited(), self._config.log_line_prefix_template
        if template:
            environ[PREFIX_TEMPLATE] = template
        starter, specs = None, self._config.logs_specs
        with ExitStack() as released, ExitStack() as cleanup, ExitStack() as failing:
            failing.callback(shutil.rmtree, logs, ignore_errors=True)
            options, settings = read_arguments(_command_line(self._config, self._entrypoint, arguments, logs), environ)
            launch_options = LaunchOptions.of(options, count_devices, environ)
            if not isinstance(self._entrypoint, str):
                starter = FunctionStarter(self._entrypoint, arguments, launch_options, logs)
            console = Console()
            cleanup.callback(console.close)
            agent = Agent(launch_options, settings, environ, cleanup, console=console, functions=starter, specs=specs)
            released.callback(agent.release)
            failing.pop_all()
            code = agent.run()
        if code:
            raise _error(code, agent.reason, agent.failures, _name(self._entrypoint))
        shutil.rmtree(logs, ignore_errors=True)
        return {rank: None if starter is None else starter.results.get(rank) for rank in agent.ranks}


def _command_line(config: Any, entrypoint: Callable[..., Any] | str, arguments: Sequence[Any], logs: Path) -> list[str]:
    """Return a configuration as the equivalent command line, so that both are read and checked by the same code.

    A field of `LaunchConfig` that is named as an option is that option, but for those that torch has in another form;
    `launcher_options` has any option. What else the object has is the user's own.
    """
    found = {each.name: getattr(config, each.name, None) for each in fields(LaunchConfig)}
    numa, conf, node_rank = found["numa_options"], dict(config.rdzv_configs), found["node_rank"]
    if backend_named(config.rdzv_backend or "") == "static" and node_rank in (None, conf.get("rank")):
        node_rank = conf.pop("rank", node_rank)  # where torch has it; another one than node_rank is refused
    values = found | {
        "nnodes": f"{config.min_nodes}:{config.max_nodes}", "rdzv_id": config.run_id or uuid.uuid4().hex,
        "rdzv_conf": ",".join(f"{key}={value}" for key, value in conf.items()), "node_rank": node_rank,
        "numa_binding": numa and numa.affinity_mode.value,
        "log_dir": str(logs), "logs_specs": None,  # they are given to the agent
    }  # fmt: skip
    more = {name.replace("-", "_"): value for name, value in (found["launcher_options"] or {}).items()}
    no_options = more.keys() - {each.dest for each in OPTIONS}  # refused where the command line is read
    given = [f"--{name}={more[name]}" for name in sorted(no_options)]
    for option in OPTIONS:
        value = more.get(option.dest, values.get(option.dest))
        if isinstance(value, Mapping):
            value = [f"{key}={each}" for key, each in value.items()]
        if isinstance(value, Iterable) and not isinstance(value, str):
            value = _listed(value)
        if option.form is None:
            given += [f"--{option.name}"] if value else []
        elif value not in (None, ""):
            given.append(f"--{option.name}={value}")
    for name, value in (found["fault_tolerance"] or {}).items():
        given.append(f"--ft-{name}={value}")
    if isinstance(entrypoint, str):
        return [*given, "--no-python", entrypoint, *map(str, arguments)]
    return [*given, "--no-python", _name(entrypoint)]


def _listed(values: Iterable[object]) -> str:
    return ",".join(str(value).replace(",", ",,") for value in values)


def _name(entrypoint: Callable[..., Any] | str) -> str:
    return entrypoint if isinstance(entrypoint, str) else getattr(entrypoint, "__qualname__", repr(entrypoint))


def _error(code: int, reason: str, failures: Sequence[Failure], name: str) -> Exception:
    """Return the exception that torch's launcher raises."""
    if code > SIGNALLED:
        from torch.distributed.elastic.multiprocessing.api import SignalException

        return SignalException(reason, signal.Signals(code - SIGNALLED))
    if not failures:
        return JobFailedError(code, reason)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    found = {each.rank: ProcessFailure(each.local_rank, each.pid, each.code, str(each.error_file)) for each in failures}
    return ChildFailedError(name, found)
