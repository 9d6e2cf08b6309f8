"""The environment and the command of a worker, as torchrun has them."""

from __future__ import annotations

import pytest
from nvrx_launcher.arguments import parse_arguments
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.command import worker_command
from nvrx_launcher.workers.environment import PLACE, Placement, without_place, worker_environment

PLACEMENT = Placement(
    group_rank=1, group_world_size=2, first_rank=4, world_size=8, local_world_size=4,
    master_addr="node0", master_port=29500, agent_store=False, cycle=3,
)  # fmt: skip


def options(*argv):
    return LaunchOptions.of(parse_arguments(argv, {})[0], lambda kind: {"cpu": 2}[kind], {})


def environment(is_virtual=False, **inherited):
    more = ["--virtual-local-rank"] if is_virtual else []
    job = options(
        "--role", "trainer", "--rdzv-id", "job", "--max-restarts", "5", "--nproc-per-node", "4", *more, "x.py"
    )
    return worker_environment(PLACEMENT, 2, job, inherited=inherited)


@pytest.mark.parametrize(("visible", "device"), [({}, "2"), ({"CUDA_VISIBLE_DEVICES": "4, 5, 6, 7"}, "6")])
def test_a_virtual_local_rank_is_0_and_sees_its_device_alone(visible, device):
    found = environment(is_virtual=True, **visible)
    assert (found["LOCAL_RANK"], found["RANK"], found["CUDA_VISIBLE_DEVICES"]) == ("0", "6", device)
    assert "CUDA_VISIBLE_DEVICES" not in environment(**visible)


def test_a_worker_knows_its_place():
    assert environment() == {
        "LOCAL_RANK": "2", "RANK": "6", "GROUP_RANK": "1", "ROLE_RANK": "6", "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "node0", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_MAX_RESTARTS": "5", "TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def test_what_the_user_has_set_stays():
    found = environment(OMP_NUM_THREADS="7", TORCH_NCCL_ASYNC_ERROR_HANDLING="3")
    assert found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert "OMP_NUM_THREADS" not in found


def test_what_a_cycle_changes_can_be_left_out():
    found = environment(HOME="/home")
    rest = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1"}
    assert without_place(found | {"HOME": "/home"}) == rest | {"HOME": "/home"}
    assert set(found) <= PLACE | set(rest)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["train.py", "--lr", "1"], ["python", "-u", "train.py", "--lr", "1"]),
        (["-m", "pkg.train"], ["python", "-u", "-m", "pkg.train"]),
        (["--no-python", "bash", "-c", "echo ${local_rank}"], ["bash", "-c", "echo 2"]),
    ],
)
def test_a_worker_runs_what_was_asked_for(argv, command):
    assert worker_command(options(*argv), 2, "python") == command


def test_a_script_can_be_run_by_its_path():
    *start, script, argument = worker_command(options("--run-path", "train.py", "x"), 0, "python")
    assert start[:3] == ["python", "-u", "-c"]
    assert (script, argument) == ("train.py", "x")


@pytest.mark.parametrize(
    ("argv", "kind"), [(["train.py", "${local_rank}"], "script"), (["-m", "train.py", "2"], "module")]
)
@pytest.mark.parametrize(("exits", "end"), [(False, "returns"), (True, "exits")])
def test_a_script_is_run_by_a_program_that_leaves_its_exception(argv, kind, exits, end):
    command = worker_command(options(*argv), 2, "python", program="/worker_program.py", exits=exits)
    assert command == ["python", "-u", "/worker_program.py", "-", end, kind, "", "train.py", "2"]
