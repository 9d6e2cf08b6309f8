"""The command line: torchrun's options as torchrun has them, wrong ones with a line that says what to write."""

from __future__ import annotations

import subprocess
import sys

import pytest
from nvrx_launcher.arguments import OPTIONS, not_implemented, parse_arguments
from nvrx_launcher.cli import main
from nvrx_launcher.options import LaunchOptions, Streams
from torch.distributed.run import get_args_parser

from nvrx_core.errors import ConfigurationError

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
DIFFERENT = {"rdzv_backend"}
"""Options whose default is another one: a rendezvous is c10d's unless another one is asked for."""


def test_every_option_of_torchrun_is_there():
    assert set(TORCHRUN) - {"help", "training_script", "training_script_args"} == set(OURS)


@pytest.mark.parametrize("name", sorted(OURS))
def test_an_option_is_what_it_is_in_torchrun(name):
    ours, theirs = OURS[name], TORCHRUN[name]
    spellings = {f"--{ours.name}", f"--{ours.dest}", *([f"-{ours.short}"] if ours.short else [])}
    assert set(theirs.option_strings) <= spellings
    assert ours.choices is None or list(ours.choices) == list(theirs.choices)
    default = list(ours.default) if ours.many else ours.default
    assert name in DIFFERENT or default == (theirs.default or default if theirs.nargs == 0 else theirs.default)


def options(*argv, environ=None):
    return LaunchOptions.of(parse_arguments([*argv, "train.py"], environ or {})[0], lambda _: 4, environ or {})


def test_defaults_come_from_the_environment_and_options_win():
    environ = {"PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "7", "PET_MODULE": "1"}
    found = options("--max-restarts", "2", environ=environ)
    assert (found.workers, found.max_restarts, found.module) == (3, 2, True)


def test_the_store_has_the_name_that_the_ranks_use():
    assert options("--rdzv-id", "run").job_name == "run"
    assert options("--rdzv-id", "run", environ={"NVRX_JOB_ID": "mine"}).job_name == "mine"


def test_both_spellings_are_accepted():
    assert options("--nproc_per_node=2", "--max-restarts=1", "--workers_stop_timeout", "3").stop_timeout == 3.0


def test_streams_are_given_for_all_or_by_rank():
    found = options("--nproc-per-node", "2", "-r", "3", "-t", "1:2")
    assert found.redirects == {0: Streams(True, True), 1: Streams(True, True)}
    assert found.tee == {0: Streams(), 1: Streams(False, True)}


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
        (["-m", "--no-python"], "--no-python: given together with --module; give one of them"),
        (["-r", "4"], "--redirects: '4' names no streams; write 0, 1, 2 or 3 for all, or as in 0:3,1:1"),
        (["--local-ranks-filter", "a"], "--local-ranks-filter: 'a' are no local ranks; write them as in 0,2"),
        (["--term-timeout", "-1"], "--term-timeout: -1 is no duration; write a number of seconds, 0 or more"),
        (["--workers-stop-timeout", "inf"], "--workers-stop-timeout: inf is no duration"),
        (["--rdzv-backend", "etcd-v2"], "--rdzv-backend: 'etcd-v2' is not implemented yet; write c10d"),
    ],
)
def test_a_wrong_value_is_named_with_what_to_write(argv, message):
    with pytest.raises(ConfigurationError) as error:
        options(*argv)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "argv",
    [
        ["--start-method", "fork"],
        ["--event-log-handler", "console"],
        ["--logs-specs", "mine"],
        ["--numa-binding", "node"],
        ["--virtual-local-rank"],
        ["--duplicate-stdout-filters", "loss", "--"],
        ["--duplicate-stderr-filters", "loss", "--"],
        ["--node-rank", "1"],
        ["--monitor-interval", "5"],
        ["--restart-policy", "min-healthy"],
    ],
    ids=lambda argv: argv[0],
)
def test_an_option_without_effect_is_named(argv):
    assert not_implemented(parse_arguments([*argv, "train.py"], {})[0]) == argv[:1]


def test_a_default_that_is_given_is_not_named():
    environ = {"PET_MONITOR_INTERVAL": "0.1", "PET_NODE_RANK": "0", "PET_VIRTUAL_LOCAL_RANK": "0"}
    given = ["--start-method", "spawn", "--restart-policy", "any-failed", "train.py"]
    assert not_implemented(parse_arguments(given, environ)[0]) == []


def test_each_setting_is_explained_by_value_and_source(capsys):
    assert main(["--ft-explain", "--ft-inprocess-grace", "7", "train.py"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["inprocess_grace", "7.0", "--ft-inprocess-grace"] in lines


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-restart", "3", "train.py"], "unrecognized arguments: --max-restart"),
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
