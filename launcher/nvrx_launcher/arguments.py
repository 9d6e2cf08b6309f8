"""The command line: torchrun's options, ours, and those of the fault tolerance settings. Imports no torch.

An option that is not given has the value of its variable, PET_ and its name, as torchrun has it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.settings.spelling import nearest
from nvrx_launcher.exit_codes import USAGE
from nvrx_launcher.rank_order import DEFAULT_ORDER

__all__ = ["OPTIONS", "Option", "explained", "parse_arguments", "parser", "read_arguments"]


@dataclass(frozen=True)
class Option:
    """One option of the command line, which is not a setting of fault tolerance.

    Attributes:
        name: with dashes; underscores are accepted as well.
        help: one sentence.
        default: its value when neither option nor variable is given.
        kind: reads a text; None for a flag without a value.
        short: its one-letter form.
        choices: what it can be; None for anything.
        is_torchruns: torchrun has it, too.
    """

    name: str
    help: str
    default: Any = None
    kind: Any = str
    short: str = ""
    choices: tuple[str, ...] | None = None
    is_torchruns: bool = True

    @property
    def dest(self) -> str:
        """The name of the parsed value, and of its variable in lower case, after PET_."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The variable that gives its value where it is not on the command line."""
        return f"PET_{self.dest.upper()}"


def _texts(given: str) -> list[str]:
    """Split texts at commas; two commas stand for one inside a text."""
    return [text.replace("\0", ",") for text in given.replace(",,", "\0").split(",")]


def _flag(name: str, help: str, short: str = "") -> Option:
    return Option(name, help, default=False, kind=None, short=short)


OPTIONS: Final = (
    Option("nnodes", "Number of nodes, or the range of nodes as <minimum_nodes>:<maximum_nodes>.", "1:1"),
    Option("nproc-per-node", "Number of workers per node; auto, cpu, gpu and xpu count what the node has.", "1"),
    Option(
        "rdzv-backend", "Rendezvous backend: c10d, etcd-v2, static, torch's etcd, or one that is registered.",
        "c10d",
    ),
    Option("rdzv-endpoint", "Rendezvous endpoint, as <host>:<port>; an IPv6 address in brackets.", ""),
    Option("rdzv-id", "Name of the job, up to 1000 characters.", "none"),
    Option("rdzv-conf", "Further rendezvous settings, as <key1>=<value1>,<key2>=<value2>.", ""),
    _flag("standalone", "Start a job of one node, with a rendezvous of its own."),
    Option("max-restarts", "How often the workers are restarted before the job fails.", 0, int),
    Option(
        "monitor-interval",
        "Seconds between two questions to a rendezvous handler that is not nvrx's; no effect elsewhere.",
        0.1,
        float,
    ),
    Option(
        "start-method", "How workers that are functions are started; no difference for a script.", "spawn",
        choices=("spawn", "fork", "forkserver"),
    ),
    Option("event-log-handler", "Name of a registered handler of torch elastic's events.", "null"),
    Option("role", "Role of the workers.", "default"),
    _flag("module", "The script is a module, as for python -m.", "m"),
    _flag("no-python", "The script is a program that is not run by Python."),
    _flag("run-path", "Run the script with runpy.run_path in the worker's interpreter."),
    Option("log-dir", "Folder for log files.", None),
    Option("redirects", "Streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both.", "0", short="r"),
    Option("tee", "Streams that go to files and to the console; numbers as for --redirects.", "0", short="t"),
    Option("local-ranks-filter", "Local ranks whose output goes to the console, as in 0,2; all by default.", ""),
    Option(
        "duplicate-stdout-filters", "Texts with commas between them, ,, for a comma; lines of a --tee of stdout with "
        "one of them go to filtered_stdout.log as well.", (), _texts,
    ),
    Option(
        "duplicate-stderr-filters", "The same for stderr and filtered_stderr.log.", (), _texts,
    ),
    Option(
        "node-rank", "Rank of this node with static; else its place among the nodes.",
        None, int,
    ),
    Option("master-addr", "Address of the first node, where no rendezvous endpoint is given.", "127.0.0.1"),
    Option("master-port", "Port on the first node, where no rendezvous endpoint is given.", None, int),
    Option("local-addr", "Address of this node.", None),
    Option("logs-specs", "Name of a torchrun.logs_specs entry point, which says where logs go.", None),
    Option(
        "numa-binding", "Bind each worker to processors near the GPU of its local rank, as torch does.",
        choices=("node", "socket", "exclusive", "core-complex"),
    ),
    Option("signals-to-handle", "Signals that the launcher passes on to its workers.", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    Option("shutdown-timeout", "As --workers-stop-timeout, which it replaces where it is given.", None, float),
    _flag("virtual-local-rank", "Each worker sees LOCAL_RANK 0 and one device."),
    Option(
        "term-timeout", "Seconds from a signal that is passed on to a worker's SIGKILL; a second signal leaves 2 s, "
        "a third none.", 25.0, float, is_torchruns=False,
    ),
    Option(
        "workers-stop-timeout", "Seconds from a worker's SIGTERM to its SIGKILL, for a restart.", 15.0, float,
        is_torchruns=False,
    ),
    Option(
        "workers-kill-timeout", "Seconds from a worker's SIGKILL after which its node leaves the job, if the worker "
        "is still there.", 30.0, float, is_torchruns=False,
    ),
    Option(
        "restart-policy",
        "When workers are restarted: when any has failed, or when fewer nodes than the minimum are healthy.",
        "any-failed", choices=("any-failed", "min-healthy"), is_torchruns=False,
    ),
    Option(
        "ft-rank-order", "What orders the ranks of nodes without --node-rank, the first that a node has: slurm-procid, "
        "group-rank, cross-slurm-procid, array, topology, nodename, with commas between them; else the names of hosts.",
        DEFAULT_ORDER, is_torchruns=False,
    ),
    Option(
        "ft-per-cycle-applog-prefix", "Output of all workers goes to one file for each cycle: /logs/train.log makes "
        "/logs/train_cycle0.log, /logs/train_cycle1.log.", is_torchruns=False,
    ),
    Option(
        "ft-nvrx-logfile", "File for the log of all launchers, by the log server, which it turns on; they write to the "
        "console as well.", is_torchruns=False,
    ),
    Option(
        "ft-enable-log-server", "true: one process beside the rendezvous writes the per-cycle logs of all nodes; "
        "false: each node appends to them itself. Needs the extra grpc.", is_torchruns=False,
    ),
    Option(
        "ft-log-server-port", "Port of the log server; with leaves, their ports, and the one after them is the root's.",
        50051, int, is_torchruns=False,
    ),
    Option(
        "ft-log-aggregator-count", "Processes that collect logs: 1 for the root only, N for N leaves before it, 0 for "
        "a leaf for every 1536 nodes.", 0, int, is_torchruns=False,
    ),
    Option(
        "ft-log-leaf-max-queue-chunks", "Chunks that may wait in a leaf; -1: 256 for each of its nodes, 16384 at "
        "least, 1000000 at most.", -1, int, is_torchruns=False,
    ),
    Option(
        "ft-log-server-log-prefix", "Own logs of the log server go to files with this prefix, _root.log and "
        "_leaf_N.log; to the launcher's stderr by default.", is_torchruns=False,
    ),
    Option(
        "ft-log-server-graceful-shutdown-timeout", "Seconds for the lines that are left when the launcher ends.", 60.0,
        float, is_torchruns=False,
    ),
    Option(
        "ft-log-token-file", "File with the token that nodes must show to the log server, 16 to 1024 bytes, the same "
        "on all nodes; by default it follows from --rdzv-id.", is_torchruns=False,
    ),
    Option("ft-log-tls-certificate", "PEM file with the certificate of the log server.", is_torchruns=False),
    Option("ft-log-tls-key", "PEM file with its key.", is_torchruns=False),
    Option(
        "ft-log-tls-authority", "PEM file with the authority that has signed it: nodes use TLS.", is_torchruns=False
    ),
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message}; see {self.prog} --help\n")


class _RaisingParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError("launch", "configuration", message, "see LaunchConfig")


def parser(environ: Mapping[str, str], kind: type[argparse.ArgumentParser] = _Parser) -> argparse.ArgumentParser:
    """Return the parser; defaults come from PET_ variables."""
    built = kind(prog="ft_launcher", description="Start, watch and restart the workers of a node.", allow_abbrev=False)
    for option in OPTIONS:
        _add(built, option, environ.get(option.variable))
    ours = built.add_argument_group("fault tolerance")
    ours.add_argument(
        "--ft-explain", "--ft_explain", action="store_true", help="Print each setting, and where it is from."
    )
    FaultToleranceConfig.add_arguments(built)
    built.add_argument("training_script", help="The script, module or program that the workers run.")
    built.add_argument("training_script_args", nargs=argparse.REMAINDER, help="Its arguments.")
    return built


def parse_arguments(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[argparse.Namespace, FaultToleranceConfig]:
    """Read a command line; an error in it ends the process with exit code 2 and one line."""
    built = parser(environ)
    try:
        return _read(built, argv, environ)
    except ConfigurationError as error:
        print(f"{built.prog}: error: {error}", file=sys.stderr)
        sys.exit(USAGE)


def read_arguments(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[argparse.Namespace, FaultToleranceConfig]:
    """Read the command line of a program, without the variables of torchrun's options.

    Raises:
        ConfigurationError: for a mistake.
    """
    return _read(parser({}, _RaisingParser), argv, environ)


def _read(
    built: argparse.ArgumentParser, argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[argparse.Namespace, FaultToleranceConfig]:
    arguments, unknown = built.parse_known_args(argv)
    FaultToleranceConfig.refuse_unknown_flags(unknown)
    if unknown:
        meant = nearest(unknown[0], (name for option in OPTIONS for name in _names(option)))
        built.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {meant}?" if meant else ""))
    _check_choices(arguments)
    return arguments, FaultToleranceConfig.from_args(arguments, environ=environ)


def _check_choices(arguments: argparse.Namespace) -> None:
    """Raise ConfigurationError when a variable has none of an option's choices; argparse checks the command line."""
    for option in OPTIONS:
        value = getattr(arguments, option.dest)
        if option.choices is not None and value != option.default and value not in option.choices:
            problem, advice = f"{value!r} is not a choice", f"write one of {', '.join(option.choices)}"
            raise ConfigurationError("environment", option.variable, problem, advice)


def _names(option: Option) -> list[str]:
    short = [f"-{option.short}"] if option.short else []
    return [*short, *dict.fromkeys((f"--{option.name}", f"--{option.dest}"))]


def _add(built: argparse.ArgumentParser, option: Option, variable: str | None) -> None:
    names = _names(option)
    if option.kind is None:
        built.add_argument(*names, action="store_true", default=bool(variable and variable != "0"), help=option.help)
        return
    default = option.default if variable is None else variable
    built.add_argument(
        *names, type=option.kind, default=default, choices=option.choices, dest=option.dest,
        help=f"{option.help} (default: {option.default!r})".replace("%", "%%"),
    )  # fmt: skip


def explained(
    argv: Sequence[str], environ: Mapping[str, str], arguments: argparse.Namespace, config: FaultToleranceConfig
) -> list[str]:
    """Return the output of --ft-explain: a line for each option of the launcher and each setting of fault tolerance.

    Args:
        argv: the command line.
        environ: the environment.
        arguments: the options that were read from them.
        config: the settings that were read from them.
    """
    built, absent = parser({}), object()
    built.set_defaults(**{option.dest: absent for option in OPTIONS})
    typed = built.parse_known_args(argv)[0]

    def source(option: Option) -> str:
        if getattr(typed, option.dest) is not absent:
            return f"--{option.name}"
        return option.variable if option.variable in environ else "default"

    rows = [(each.dest, _shown(getattr(arguments, each.dest)), source(each)) for each in OPTIONS]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:{widths[0]}}  {value:{widths[1]}}  {source}" for name, value, source in rows]
    return [*lines, "", *config.table()]


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value) if value not in (None, "") else "none"
    return ",".join(map(str, value)) or "none"
