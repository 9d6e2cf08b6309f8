"""Launchers check their node: an unhealthy one takes no part, says why, and a spare takes its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_core.process.children import children_of
from tests.harness.health.daemon import PARTS, daemon, needs_fuse
from tests.harness.process.host import eventually
from tests.harness.process.launch import Launch, Start, rendezvous_options


@pytest.fixture
def start(launcher: Start) -> Start:
    """Starts launchers of a job of two nodes; a third one is a spare. Only `killed_then_gated` has a later cycle."""
    options = (*rendezvous_options(), "--nnodes", "2:3", "--max-restarts", "1")
    return lambda case, *more, **environment: launcher(case, *options, *more, **environment)


@pytest.fixture
def nic(tmp_path: Path) -> Path:
    """The state of a NIC's link, which is active."""
    state = tmp_path / "mlx5_0" / "state"
    state.parent.mkdir()
    state.write_text("4: ACTIVE\n")
    return state


def watching(state: Path, *options: str) -> tuple[str, ...]:
    """The options of a launcher that looks at this link all the time."""
    template = str(state.parent.parent / "{nic}" / "state")
    return ("--ft-link-state-path-template", template, "--ft-node-health-check-interval", "0.1", *options)


def has_ended(job: Launch, code: int = 1) -> str:
    """Wait for the end of a launcher; returns its log."""
    found, log = job.finish()
    assert found == code, log
    return log


def test_an_unhealthy_node_does_not_join_and_a_spare_takes_its_place(start: Start, tmp_path: Path) -> None:
    first = start("done")
    first.await_log("host the rendezvous")
    told = tmp_path / "told"
    command = f"sh -c 'echo $NVRX_EXCLUDED_NODE: $NVRX_EXCLUDE_REASON > {told}'"
    log = has_ended(start("done", "--ft-storage-healthcheck-path", f"{tmp_path}/gone", "--ft-on-exclude", command))
    lines = [line for line in log.splitlines() if "unhealthy" in line and "ERROR" in line]
    reason = f"storage {tmp_path}/gone: No such file or directory"
    assert [line.partition("] ")[2] for line in lines[:1]] == [
        f"this node is unhealthy and takes no part in the job: {reason}"
    ]
    assert told.read_text() == f"{os.uname().nodename}: {os.uname().nodename} is unhealthy: {reason}\n"
    second = start("done", "--ft-storage-healthcheck-path", str(tmp_path))
    for job in (first, second):
        has_ended(job, 0)


def test_a_node_that_is_unhealthy_at_a_restart_is_replaced_by_the_spare(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    first = start("killed_then_gated")
    first.await_log("host the rendezvous")
    second = start("killed_then_gated", "--ft-storage-healthcheck-path", str(path))
    for job in (first, second):
        job.read(2, "start")
    third = start("killed_then_gated")
    third.await_log("spare")
    path.rmdir()
    (tmp_path / "kill").touch()
    assert "this node is unhealthy" in has_ended(second)
    for job in (first, third):
        job.read(2, "start", cycle=1)
    (tmp_path / "gate").touch()
    for job in (first, third):
        has_ended(job, 0)


@pytest.mark.parametrize("is_host", [False, True])
def test_a_node_that_becomes_unhealthy_during_training_is_excluded(start: Start, nic: Path, is_host: bool) -> None:
    """Three failed checks in a row exclude it; a launcher that hosts the rendezvous stays, without workers."""
    sick = watching(nic)
    first = start("restarted", *sick if is_host else ())
    first.await_log("host the rendezvous")
    second = start("restarted", *() if is_host else sick)
    for job in (first, second):
        job.read(2, "start")
    third = start("restarted")
    third.await_log("spare")
    nic.write_text("1: DOWN\n")
    excluded, other = (first, second) if is_host else (second, first)
    log = has_ended(excluded, 0 if is_host else 1)
    reason = "nic mlx5_0: link mlx5_0 active was 1 and is 0"
    for expected in (
        f"health of this node: check 1 of 3 that exclude this node: {reason}",
        f"health of this node: check 2 of 3 that exclude this node: {reason}",
        f"this node is unhealthy and takes no part in the job: {reason}",
    ):
        assert expected in log
    for job in (other, third):
        has_ended(job, 0)
    assert {each["cycle"] for each in third.events} == {1}


def test_a_transient_failure_changes_nothing(launcher: Start, nic: Path, tmp_path: Path) -> None:
    job = launcher("gated", *watching(nic, "--ft-health-check-failures", "100"))
    job.read(2, "start")
    nic.write_text("1: DOWN\n")
    job.await_log("check 2 of 100 that exclude this node")
    nic.write_text("4: ACTIVE\n")
    (tmp_path / "gate").touch()
    has_ended(job, 0)


def test_the_service_of_the_node_is_asked_before_it_joins(launcher: Start, tmp_path: Path) -> None:
    absent = launcher("done", "--ft-node-health-check-endpoint", f"unix://{tmp_path}/absent")
    log = has_ended(absent, 0)
    assert f"health of this node: unknown: service: skipped, {tmp_path}/absent: No such file" in log
    with daemon(tmp_path, """echo "{\\"fail_count\\": 1, \\"failed_checks\\": [\\"ib\\"]}" """) as path:
        log = has_ended(launcher("done", "--ft-node-health-check-endpoint", path))
    assert "takes no part in the job: service: 1 checks have failed: ib" in log


@needs_fuse
def test_a_mount_that_never_answers_keeps_a_node_out_and_does_not_hold_up_its_launcher(
    launcher: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    job = launcher(
        "done", "--ft-storage-healthcheck-path", str(folder), "--ft-health-check-timeout", "1",
        host=[sys.executable, str(PARTS / "silent_mount.py"), str(folder)],
    )  # fmt: skip
    assert "is left behind, in state D" in has_ended(job)


def test_the_program_of_the_checks_is_replaced_when_it_is_killed(launcher: Start, nic: Path, tmp_path: Path) -> None:
    job = launcher("gated", *watching(nic))
    job.read(2, "start")
    for _ in range(2):
        (program,) = programs(job.process.pid)
        os.kill(program, signal.SIGKILL)
        assert eventually(lambda: programs(job.process.pid) not in ([], [program]), 30)  # noqa: B023
    nic.write_text("1: DOWN\n")
    assert "this node is unhealthy" in has_ended(job)


def programs(launcher: int) -> list[int]:
    """The programs of a launcher's checks."""
    found = []
    for pid in children_of(launcher):
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and b"nvrx_core.health.program" in command.read_bytes():
            found.append(pid)
    return found


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--ft-node-health-check-endpoint", __file__), "is no Unix socket"),
        (("--ft-node-health-check-endpoint", "node:50051"), "it must be an absolute path, or unix:// and one"),
        (("--ft-on-exclude", "echo 'unfinished"), '--ft-on-exclude: "echo \'unfinished": No closing quotation'),
    ],
)
def test_bad_input_ends_the_launcher_before_anything_starts(
    launcher: Start, options: tuple[str, str], text: str
) -> None:
    log = has_ended(launcher("done", *options), 2)
    assert text in log


def test_a_command_of_an_exclusion_that_fails_does_not_hold_up_the_end(launcher: Start, tmp_path: Path) -> None:
    sick = ("--ft-storage-healthcheck-path", f"{tmp_path}/gone")
    log = has_ended(launcher("done", *sick, "--ft-on-exclude", "sh -c 'exit 3'"))
    assert "the command of --ft-on-exclude ended with exit code 3" in log
    log = has_ended(launcher("done", *sick, "--ft-on-exclude", "/nowhere/drain"))
    assert "the command of --ft-on-exclude cannot be run" in log


def test_the_command_of_an_exclusion_is_run_for_the_request_of_a_rank_as_well(launcher: Start, tmp_path: Path) -> None:
    told = tmp_path / "told"
    job = launcher("excludes", "--ft-on-exclude", f"sh -c 'echo $NVRX_EXCLUDE_REASON > {told}'", NVRX_TEST_EXCLUDED="1")
    has_ended(job)
    assert told.read_text() == "rank 0 has asked for ExcludeThisNode: a bad GPU\n"


def test_a_node_with_nothing_to_check_starts_no_program(launcher: Start, tmp_path: Path) -> None:
    job = launcher("gated")
    job.read(2, "start")
    assert programs(job.process.pid) == []
    (tmp_path / "gate").touch()
    has_ended(job, 0)


def test_the_example_drains_the_node(tmp_path: Path) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    scontrol.chmod(0o755)
    script = Path(__file__).parents[2] / "examples" / "health" / "drain.sh"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NVRX_EXCLUDED_NODE": "node7.cluster"}
    done = subprocess.run(
        [script], env=environment | {"NVRX_EXCLUDE_REASON": "a bad GPU"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["update", "nodename=node7", "state=drain", "reason=nvrx: a bad GPU"]
