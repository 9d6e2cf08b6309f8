"""The command line: torchrun's options as torchrun has them, wrong ones with a line that says what to write."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from nvrx_launcher.arguments import OPTIONS, parse_arguments
from nvrx_launcher.cli import main
from nvrx_launcher.options import LaunchOptions, Streams
from torch.distributed.run import get_args_parser

from nvrx_core.errors import ConfigurationError

ROOT = Path(__file__).parents[3]
TORCHRUN = {action.dest: action for action in get_args_parser()._actions}
OURS = {option.dest: option for option in OPTIONS if option.is_torchruns}
WITHOUT_TORCH = """\
import sys
from nvrx_launcher.cli import main
try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules
"""
WITHOUT_VARIABLE = {"logs_specs", "numa_binding"}
"""Options for which torchrun reads no variable."""
DIFFERENT = {"rdzv_backend", "node_rank"}
"""Options whose default is another one: a rendezvous is c10d's unless another one is asked for, and a rank is given."""


def test_every_option_of_torchrun_is_there():
    assert set(TORCHRUN) - {"help", "training_script", "training_script_args"} == set(OURS)


@pytest.mark.parametrize("name", sorted(OURS))
def test_an_option_is_what_it_is_in_torchrun(name):
    ours, theirs = OURS[name], TORCHRUN[name]
    spellings = {f"--{ours.name}", f"--{ours.dest}", *([f"-{ours.short}"] if ours.short else [])}
    assert set(theirs.option_strings) <= spellings
    assert ours.choices is None or list(ours.choices) == list(theirs.choices)
    default = list(ours.default) if isinstance(ours.default, tuple) else ours.default
    assert name in DIFFERENT or default == (theirs.default or default if theirs.nargs == 0 else theirs.default)


def options(*argv, environ=None):
    return LaunchOptions.of(parse_arguments([*argv, "train.py"], environ or {})[0], lambda _: 4, environ or {})


def test_defaults_come_from_the_environment_and_options_win():
    environ = {"PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "7", "PET_MODULE": "1"}
    found = options("--max-restarts", "2", environ=environ)
    assert (found.workers, found.max_restarts, found.module) == (3, 2, True)


def test_every_option_is_used():
    text = "\n".join(path.read_text() for path in (ROOT / "launcher").rglob("*.py"))
    read = set(re.findall(r"(?:options|logs|self|given|values|found)(?:\.|\[\")(\w+)", text))
    assert {option.field for option in OPTIONS} <= read


VALUES = {
    "nnodes": "2", "nproc_per_node": "3", "rdzv_backend": "c10d", "rdzv_endpoint": "node0:1234", "rdzv_id": "mine",
    "rdzv_conf": "join_timeout=7", "standalone": "1", "max_restarts": "4", "monitor_interval": "0.5",
    "start_method": "fork", "event_log_handler": "console", "role": "trainer", "module": "1", "no_python": "1",
    "run_path": "1", "log_dir": "/logs", "redirects": "3", "tee": "0:1", "local_ranks_filter": "0,2",
    "duplicate_stdout_filters": "loss,a,,b", "duplicate_stderr_filters": "Error", "node_rank": "1",
    "master_addr": "node1", "master_port": "1235", "local_addr": "10.0.0.1", "logs_specs": "mine",
    "numa_binding": "node", "signals_to_handle": "SIGTERM,SIGUSR1", "shutdown_timeout": "9", "virtual_local_rank": "1",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(OURS))
def test_an_option_has_the_value_that_torchrun_gives_it(name, monkeypatch):
    """Typed, and by its variable where torchrun reads one."""
    flag, value = f"--{OURS[name].name}", VALUES[name]
    argv = [flag] if OURS[name].form is None else [flag, value]
    theirs = getattr(get_args_parser().parse_args([*argv, "train.py"]), name)
    assert getattr(parse_arguments([*argv, "train.py"], {})[0], name) == theirs
    assert getattr(parse_arguments(["train.py"], {f"PET_{name.upper()}": value})[0], name) == theirs
    monkeypatch.setenv(f"PET_{name.upper()}", value)
    assert name in WITHOUT_VARIABLE or getattr(get_args_parser().parse_args(["train.py"]), name) == theirs


def test_torchruns_variables_count_as_well():
    assert options(environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}).workers_stop_timeout == 7.0
    both = options("--shutdown-timeout", "3", environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"})
    assert both.workers_stop_timeout == 3.0
    assert options("--workers-stop-timeout", "5").workers_stop_timeout == 5.0


def test_there_may_be_more_devices_than_workers():
    devices = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    assert options("--virtual-local-rank", "--nproc-per-node", "2", environ=devices).virtual_local_rank


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        ([], {"PET_START_METHOD": "thread"}, "environment: PET_START_METHOD: 'thread' is not a choice; write one of"),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 'x' is no number of seconds"),
        ([], {"NVRX_GPUS_PER_NUMA": "0"}, "NVRX_GPUS_PER_NUMA: '0' is no number of GPUs; write one, as in 4"),
        (["--numa-binding", "node"], {"NVRX_GPUS_PER_NUMA": "4"}, "--numa-binding: given together with NVRX_GPUS_PER"),
        (
            ["--virtual-local-rank", "--nproc-per-node", "3"], {"CUDA_VISIBLE_DEVICES": "4,5"},
            "--virtual-local-rank: there are 3 workers, and CUDA_VISIBLE_DEVICES is '4,5'; name a device for each",
        ),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_named_with_what_to_write(argv, environ, message, capsys):
    with pytest.raises((ConfigurationError, SystemExit)) as error:
        options(*argv, environ=environ)
    assert message in str(error.value) + capsys.readouterr().err


def test_the_store_has_the_name_that_the_ranks_use():
    assert options("--rdzv-id", "run").job_name == "run"
    assert options("--rdzv-id", "run", environ={"NVRX_JOB_ID": "mine"}).job_name == "mine"


def test_a_node_has_both_timeouts_of_its_workers_and_a_margin_to_stop():
    assert options("--workers-stop-timeout", "5", "--workers-kill-timeout", "7").stops_within == 22.0


def test_commands_are_compared_with_how_they_are_run_and_long_ones_by_a_digest():
    assert options("-m").command == options("-m").compared_command == "-m train.py"
    assert options("--rdzv-conf", "same_command=0").compared_command == ""
    long = LaunchOptions.of(parse_arguments(["train.py", "x" * 2000], {})[0], lambda _: 1, {}).command
    assert long.startswith("train.py xxx")
    assert len(long) < 1100


def test_a_rendezvous_is_at_the_endpoint_or_the_address_of_the_first_node():
    assert options("--master-addr", "node1", "--master-port", "5").endpoint == ("node1", 5)
    assert options("--rdzv-endpoint", "[fd00::2]:7", "--nnodes", "2").endpoint == ("fd00::2", 7)
    assert options("--rdzv-endpoint", "node1:0").endpoint == ("node1", 29500)
    assert options("--nproc-per-node", "gpu").workers == 4


def test_both_spellings_are_accepted():
    assert options("--nproc_per_node=2", "--max-restarts=1", "--workers_stop_timeout", "3").workers_stop_timeout == 3.0


def test_streams_are_given_for_all_or_by_rank():
    found = options("--nproc-per-node", "2", "-r", "3", "-t", "1:2")
    assert found.redirects.of_workers(2) == {0: Streams(True, True), 1: Streams(True, True)}
    assert found.tee.of_workers(2) == {0: Streams(), 1: Streams(False, True)}
    assert (found.tee[0], found.tee[1]) == (Streams(), Streams(False, True))
    assert found.redirects.is_any
    assert not options().tee.is_any


def test_a_standalone_job_has_one_node_and_a_rendezvous_of_its_own():
    found = options("--standalone", "--nnodes", "x", "--rdzv-backend", "static", environ={"PET_NNODES": "3"})
    assert (found.min_nodes, found.max_nodes, found.rdzv_backend, found.has_fixed_ranks) == (1, 1, "c10d", False)


def test_what_follows_the_script_is_the_scripts():
    found = LaunchOptions.of(parse_arguments(["train.py", "--max-restarts", "9", "-m"], {})[0], lambda _: 1, {})
    assert (found.max_restarts, found.arguments) == (0, ("--max-restarts", "9", "-m"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nnodes", "x"], "command line: --nnodes: 'x' is no number of nodes; write 2, or 2:4 for 2 to 4 nodes"),
        (["--nnodes", "3:2"], "--nnodes: '3:2' is no number of nodes"),
        (["--nproc-per-node", "0"], "--nproc-per-node: '0' is no positive number; write one, or auto, cpu, gpu or xpu"),
        (["--max-restarts", "-1"], "--max-restarts: -1 is negative; 0 means no restart"),
        (["--rdzv-id", "a\nb"], "or some that cannot be printed; write up to 1000 characters, without line breaks"),
        (["--rdzv-endpoint", "node0:x"], "write it as in node0:29500 or [fd00::2]:29500"),
        (["-m", "--no-python"], "--no-python: given together with --module; give one of them"),
        (["-r", "4"], "--redirects: '4' names no streams; write 0, 1, 2 or 3 for all, or as in 0:3,1:1"),
        (["--local-ranks-filter", "a"], "--local-ranks-filter: 'a' are no local ranks; write them as in 0,2"),
        (["--term-timeout", "-1"], "--term-timeout: -1 is no duration; write a number of seconds, 0 or more"),
        (["--monitor-interval", "0"], "--monitor-interval: 0 is no duration; write seconds above 0"),
        (["--workers-stop-timeout", "inf"], "--workers-stop-timeout: inf is no duration"),
        (["--rdzv-backend", "static", "--nnodes", "1:2"], "--nnodes: 1:2 is a range; static needs one number; write 2"),
        (["--rdzv-backend", "static", "--node-rank", "1"], "--node-rank: 1 is no rank of 1 nodes; write 0 to 0"),
    ],
)
def test_a_wrong_value_is_named_with_what_to_write(argv, message):
    with pytest.raises(ConfigurationError) as error:
        options(*argv)
    assert message in str(error.value)


def test_a_static_rendezvous_is_ours_with_fixed_ranks_and_the_first_as_host():
    given = ("--rdzv-backend", "static", "--nnodes", "2")
    found = options(*given, "--node-rank", "1", "--master-addr", "node0", environ={"SLURM_PROCID": "7"})
    assert (found.backend, found.endpoint, found.order) == ("c10d", ("node0", 29500), 1)
    assert (found.has_fixed_ranks, found.rendezvous.is_host) == (True, False)
    first = options(*given, "--rdzv-endpoint", "node1:1")
    assert (first.endpoint, first.order, first.rendezvous.is_host) == (("node1", 1), 0, True)
    assert not options("--nnodes", "2", "--node-rank", "1").has_fixed_ranks
    assert found.hosts_rendezvous
    assert not options("--nnodes", "2", "--rdzv-conf", "is_host=0").hosts_rendezvous


def test_a_node_rank_that_is_given_orders_the_ranks():
    environ = {"SLURM_PROCID": "7"}
    assert options("--node-rank", "0", environ=environ).order == 0
    assert options(environ=environ).order == 7
    assert options().order == -1


@pytest.mark.parametrize(
    ("given", "backend"), [("nvrx-etcd-v2", "etcd-v2"), ("C10D", "c10d"), ("etcd", "etcd"), ("Mine", "Mine")]
)
def test_other_backends_are_those_that_are_registered_with_torch(given, backend):
    assert options("--rdzv-backend", given).rdzv_backend == backend


def test_each_value_is_explained_with_its_source(capsys, monkeypatch):
    monkeypatch.setenv("PET_MAX_RESTARTS", "4")
    argv = [
        "--ft-explain",
        "--ft-inprocess-grace",
        "7",
        "--nproc_per_node",
        "1",
        "-m",
        "-t",
        "3",
        "train.py",
        "--role",
        "x",
    ]
    assert main(argv) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in (
        ["inprocess_grace", "7.0", "--ft-inprocess-grace"], ["nproc_per_node", "1", "--nproc-per-node"],
        ["module", "true", "--module"], ["tee", "3", "--tee"], ["max_restarts", "4", "PET_MAX_RESTARTS"],
        ["role", "default", "default"], ["log_dir", "none", "default"],
        ["duplicate_stdout_filters", "none", "default"], ["safety_factor", "5.0", "default"],
    ):  # fmt: skip
        assert line in lines
    assert {each[0] for each in lines if each} >= {option.dest for option in OPTIONS}


@pytest.mark.parametrize("argv", [["--help"], ["--ft-explain", "--max-restarts", "3", "train.py"]])
def test_help_and_explanation_import_no_torch(argv):
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "max" in done.stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-restart", "3", "train.py"], "unrecognized arguments: --max-restart; did you mean --max-restarts?"),
        (["--max-restarts", "many", "train.py"], "argument --max-restarts/--max_restarts: invalid int value: 'many'"),
        ([], "the following arguments are required: training_script"),
        (["--ft-rank-heartbeat-timout", "3", "train.py"], "rank-heartbeat-timeout"),
        (["--ft-rank-heartbeat-timeout", "-3", "train.py"], "--ft-rank-heartbeat-timeout"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2_without_torch(argv, message):
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
