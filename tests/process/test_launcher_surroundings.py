"""What surrounds a launched job: lost monitors, strangers, wrong clocks, limits, what an earlier job has left."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.harness.process.few_processes import FIRST_USER, few_processes
from tests.harness.process.host import eventually, memory_cgroup, stop
from tests.harness.process.hostile import ask_launcher, inundate
from tests.harness.process.launch import WORKERS, Launch, Start, events_of, left_in, rendezvous_options
from tests.harness.process.monitored import RUNTIME, environment_of, monitors_of

QUICK = ("--ft-rank-section-timeouts", "step:0.7", "--ft-rank-heartbeat-timeout", "1")
WRONG_CLOCK = Path(__file__).parents[1] / "harness" / "process" / "wrong_clock"
HOUR = 3600


@pytest.fixture
def start(launcher: Start) -> Start:
    def start(case: str, *options: str, worker: str = "launcher_faults.py", **more: Any) -> Launch:
        return launcher(case, *options, worker=worker, **more)

    return start


def test_lost_monitors_are_replaced_and_later_hangs_are_found(start: Start, tmp_path: Path) -> None:
    """One is killed, one stopped, a fork server killed; then a rank and its monitor at once; then a rank hangs."""
    job = start("1:gate,1:gate", "--max-restarts", "2", *QUICK)
    job.read(2, "start")
    job.read(1, "fault_injected")
    assert eventually(lambda: len(monitors_of(job.process.pid)) == 4, 20)
    servers, monitors = (monitors_of(job.process.pid)[part] for part in (slice(2), slice(2, 4)))
    os.kill(monitors[0], signal.SIGKILL)
    stop(monitors[1])
    assert eventually(lambda: not set(monitors) & set(monitors_of(job.process.pid)), 20)
    os.kill(servers[0], signal.SIGKILL)
    assert eventually(lambda: len(now := monitors_of(job.process.pid)) == 4 and servers[0] not in now, 20)
    assert job.process.poll() is None
    target = next(each["pid"] for each in job.events if (each["event"], each["rank"]) == ("start", 0))
    for pid in (target, monitors_of(job.process.pid)[2]):
        os.kill(pid, signal.SIGKILL)
    job.read(1, "fault_injected", 1)
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    assert "rank 0 (local rank 0, pid " in log
    hung = [line for line in log.splitlines() if " ERROR " in line and "section 'step' open" in line]
    assert len(hung) == 1, log
    assert "was ended by SIGKILL, hung: section 'step' open" in hung[0]


def test_a_monitor_that_is_killed_while_its_fork_server_is_stopped_is_replaced(start: Start, tmp_path: Path) -> None:
    """Within seconds; then its rank hangs."""
    job = start("1:gate", "--max-restarts", "1", *QUICK)
    job.read(1, "fault_injected")
    assert eventually(lambda: len(monitors_of(job.process.pid)) == 4, 20)
    (first, second), monitors = (monitors_of(job.process.pid)[part] for part in (slice(2), slice(2, 4)))
    stop(first, second)
    for pid in monitors:
        os.kill(pid, signal.SIGKILL)
    gone = {first, second, *monitors}
    assert eventually(lambda: len(now := monitors_of(job.process.pid)) == 4 and not gone & set(now), 30)
    assert job.process.poll() is None
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    assert "monitor does not answer, and was killed" in log
    assert "hung: section 'step' open" in log


LONG = "x" * 70


def test_a_long_tmpdir_is_replaced_by_a_shorter_folder(tmp_path: Path) -> None:
    folder = tmp_path / LONG
    folder.mkdir()
    environment = environment_of(tmp_path, TMPDIR=str(folder))
    del environment[RUNTIME]
    done = run(tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_too_long_for_sockets_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    done = run(tmp_path, env=environment_of(tmp_path, NVRX_RUNTIME_DIR=str(tmp_path / LONG)))
    assert done.returncode == 2
    assert "set NVRX_RUNTIME_DIR to a folder of at most 73 bytes, such as /tmp/nvrx-" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / LONG).exists()


@pytest.mark.parametrize("folder", ["file/events", "/proc"], ids=["below a file", "nobody may write to it"])
def test_an_events_folder_that_cannot_be_used_is_refused_before_anything_is_started(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path, env=environment_of(tmp_path, NVRX_EVENTS_DIR=str(tmp_path / folder)))
    assert done.returncode == 2
    assert f"environment: NVRX_EVENTS_DIR: '{tmp_path / folder}' is not a directory that can be made" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_worker_that_the_kernel_kills_for_memory_is_reported_as_such(start: Start, tmp_path: Path) -> None:
    """The whole job is in a cgroup, as in a container; the largest process is killed."""
    with memory_cgroup(256 << 20) as folder:
        into = ("sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh")
        job = start("takes_all_memory", "--max-restarts", "1", worker="launcher_hostile.py", host=into)
        code, log = job.finish()
        assert eventually(lambda: not (folder / "cgroup.procs").read_text(), 10.0)
    assert code == 0, log
    (failed,) = events_of(tmp_path, "worker_failed")
    assert failed["rank"] == 1
    assert failed["reason"].endswith("was ended by SIGKILL, and the kernel's OOM killer was active in its cgroup")


def test_malformed_messages_on_its_socket_do_not_disturb_a_launcher(start: Start, tmp_path: Path) -> None:
    job = start("1:gate", *QUICK, "--max-restarts", "1")
    job.read(1, "fault_injected")
    (path,) = (tmp_path / "run").glob("launcher-*/launcher.ipc")
    assert inundate(path, 2_000, seed=3, every=100, ask=ask_launcher) < 5.0
    assert job.process.poll() is None
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    assert "hung: section 'step' open" in log
    assert "Traceback" not in log


def test_wrong_clocks_change_nothing(start: Start, tmp_path: Path) -> None:
    """Those of two nodes differ by hours, and jump; a hang is found in its time, and nothing else is taken for one."""
    endpoint = (*rendezvous_options(), "--nnodes", "2")
    path = os.pathsep.join([str(WRONG_CLOCK), *sys.path])
    jobs = [
        start("1:hang_recv,2:kill", *endpoint, "--max-restarts", "2", *QUICK, NVRX_TEST_SKEW=skew, PYTHONPATH=path)
        for skew in (str(HOUR), str(-HOUR))
    ]
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert all("cycle 2: 2 nodes" in log and "cycle 3" not in log for _, log in ends), ends
    assert all("has not moved its lease" not in log for _, log in ends), ends


def test_a_rank_that_is_lost_between_store_and_group_costs_one_cycle(start: Start) -> None:
    job = start("1", "--max-restarts", "1", worker="launcher_meets.py")
    code, log = job.finish()
    assert code == 0, log
    assert [each["total"] for each in job.events if each["event"] == "done"] == [2.0, 2.0]
    assert {each["cycle"] for each in job.events if each["event"] == "done"} == {1}


def test_leftovers_of_a_killed_job_do_not_disturb_the_next_one(start: Start) -> None:
    """Its folder with sockets is there when the next job of the same name begins."""
    first = start("1:gate", "--rdzv-id", "same", *QUICK)
    first.read(1, "fault_injected")
    first.process.kill()
    first.process.wait()
    code, log = start("", "--rdzv-id", "same", *QUICK).finish()
    assert code == 0, log


def run(tmp_path: Path, *given: str, **how: object) -> subprocess.CompletedProcess[str]:
    script = str(WORKERS / "launcher_worker.py")
    command = [sys.executable, "-m", "nvrx_launcher", "--nproc-per-node", "2", *given, script, "done"]
    options = {"env": environment_of(tmp_path), "capture_output": True, "text": True, "timeout": 60, **how}
    return subprocess.run(command, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(("owner", "mode"), [(0, 0o777), (FIRST_USER, 0o700)])
def test_a_folder_of_others_or_that_they_can_enter_is_refused(tmp_path: Path, owner: int, mode: int) -> None:
    """Somebody else has made it before, under the name that the launcher uses."""
    folder = tmp_path / "run"
    folder.mkdir()
    os.chown(folder, owner or os.getuid(), -1)
    folder.chmod(mode)
    done = run(tmp_path)
    assert done.returncode == 1
    assert f"{folder}: not a folder that only this user can enter; set NVRX_RUNTIME_DIR to one" in done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("files", [8, 14, 20])
def test_too_few_files_are_an_error_in_one_line(tmp_path: Path, files: int) -> None:
    limit = (resource.RLIMIT_NOFILE, (files, files))
    done = run(tmp_path, preexec_fn=lambda: resource.setrlimit(*limit))
    assert done.returncode == 1, done.stderr
    assert "Too many open files" in done.stderr
    assert "Traceback" not in done.stderr
    assert eventually(lambda: not left_in(tmp_path), 10.0)


@pytest.mark.parametrize("processes", [1, 3, 5])
def test_too_few_processes_are_an_error_in_one_line(processes: int) -> None:
    """As a user of its own, who may enter none of root's folders: the kernel does not count root's processes.

    What cannot be started is the guardian, a monitor, or a worker.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o777)
        done = run(folder, preexec_fn=lambda: few_processes(processes))
        assert eventually(lambda: not left_in(folder), 10.0)
    assert done.returncode == 1, done.stderr
    assert "Resource temporarily unavailable: more processes are needed (ulimit -u)" in done.stderr
    assert "Traceback" not in done.stderr


HEARTBEAT = "ft.yaml:2: .*rank_heartbeat_timeout"
WRONG = {
    "broken": ("fault_tolerance: [", "ft.yaml"),
    "a name": ("fault_tolerance:\n  rank_heartbeat_timeuot: 3\n", HEARTBEAT),
    "a type": ("fault_tolerance:\n  rank_heartbeat_timeout: three\n", HEARTBEAT),
    "negative": ("fault_tolerance:\n  rank_heartbeat_timeout: -5\n", HEARTBEAT),
    "a signal": ("fault_tolerance:\n  rank_termination_signal: SIGFOO\n", "ft.yaml:2: .*rank_termination_signal"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_configuration_ends_the_launcher_before_anything_is_started(tmp_path: Path, case: str) -> None:
    text, expected = WRONG[case]
    (tmp_path / "ft.yaml").write_text(text)
    done = run(tmp_path, "--ft-cfg-path", str(tmp_path / "ft.yaml"))
    assert done.returncode == 2, done.stderr
    assert re.search(expected, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ft.yaml"]


def test_a_log_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path, "--log-dir", str(tmp_path / "file" / "logs"), "-r", "3")
    assert done.returncode == 1, done.stderr
    assert f"{tmp_path / 'file' / 'logs'}" in done.stderr
    assert "Traceback" not in done.stderr
