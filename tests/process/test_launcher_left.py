"""Nothing of a job outlives its launcher by more than a second, whatever ends the launcher and its guardians."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from nvrx_launcher.job_cgroup import JobCgroup

from tests.harness.process.host import alive, eventually, free_ports, stop, tagged
from tests.harness.process.launch import Launch, Start
from tests.harness.process.monitored import RUNTIME, environment_of

WITHIN = 1.0
"""Seconds after the end of a launcher."""
WITHOUT_CGROUP = ("unshare", "--mount", "sh", "-c", 'umount -a -t cgroup2; exec "$@"', "sh")
"""Runs a command where no cgroup of version 2 is mounted, as in most containers."""


@pytest.fixture
def start(launcher: Start) -> Start:
    def start(case: str, *options: str, **more: Any) -> Launch:
        return launcher(case, "--ft-warm-workers", "off", *options, worker="launcher_family.py", **more)

    return start


def guardians_of(launcher: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(each.endswith(b"guardian_program.py") for each in command) and str(launcher).encode() in command:
            found.append(int(name))
    return sorted(found)


def signal_all(pids: list[int], signum: int) -> None:
    for pid in pids:
        os.kill(pid, signum)


def is_over(job: Launch) -> bool:
    """Whether neither the launcher nor anything of its job is left, stopped processes included."""
    return not tagged(f"{job.folder}/run", RUNTIME) and not any(map(alive, job.pids()))


def kill(job: Launch) -> None:
    job.process.kill()


def terminate(job: Launch) -> None:
    job.process.send_signal(signal.SIGTERM)


def kill_guardian_first(job: Launch) -> None:
    """One guardian, then the launcher, before another one can have started."""
    signal_all([guardians_of(job.process.pid)[0], job.process.pid], signal.SIGKILL)


def stop_guardian_first(job: Launch) -> None:
    stop(guardians_of(job.process.pid)[0])
    job.process.kill()


def stop_guardians_and_terminate(job: Launch) -> None:
    stop(*guardians_of(job.process.pid))
    terminate(job)


ENDS: list[Callable[[Launch], None]] = [
    kill, terminate, kill_guardian_first, stop_guardian_first, stop_guardians_and_terminate
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_no_process_outlives_its_launcher(start: Start, end: Callable[[Launch], None], tmp_path: Path) -> None:
    """In any session, without an environment, in the group of a worker or as a daemon."""
    job = start("stays", "--term-timeout", "0.2")
    job.read(2, "ready")
    assert len(job.pids()) > 10
    end(job)
    job.process.wait(10.0)
    assert eventually(lambda: is_over(job), WITHIN), tagged(f"{job.folder}/run", RUNTIME)
    assert not list((tmp_path / "run").glob("launcher-*"))


@pytest.mark.parametrize(("case", "ends"), [("tagged", [kill, kill_guardian_first]), ("stays", [terminate])])
def test_without_a_cgroup_they_are_found_by_their_environment_or_below_the_launcher(
    start: Start, case: str, ends: list[Callable[[Launch], None]]
) -> None:
    for end in ends:
        job = start(case, "--term-timeout", "0.2", host=WITHOUT_CGROUP)
        job.read(2, "ready")
        end(job)
        job.process.wait(10.0)
        assert eventually(lambda job=job: is_over(job), WITHIN), tagged(f"{job.folder}/run", RUNTIME)


@pytest.mark.parametrize("host", [(), WITHOUT_CGROUP], ids=["cgroup", "no cgroup"])
def test_what_workers_of_a_launcher_in_a_worker_have_started_ends_with_the_outer_one(
    start: Start, host: tuple[str, ...]
) -> None:
    job = start("nested", host=host)
    job.read(1, "ready")
    job.process.kill()
    job.process.wait()
    assert eventually(lambda: is_over(job), WITHIN), tagged(f"{job.folder}/run", RUNTIME)


def test_a_guardian_that_is_killed_or_stopped_is_replaced(start: Start) -> None:
    job = start("tagged")
    job.read(2, "ready")
    first, second = guardians_of(job.process.pid)
    os.kill(first, signal.SIGKILL)
    job.await_log(f"guardian process {first} is lost: ended by SIGKILL; another one is started at once")
    stop(second)
    job.await_log(f"guardian process {second} is lost: it has not answered for 5 s")
    assert eventually(lambda: len(guardians_of(job.process.pid)) == 2, 20.0)
    assert not {first, second} & set(guardians_of(job.process.pid))
    job.process.kill()
    job.process.wait()
    assert eventually(lambda: is_over(job), WITHIN)


def test_launchers_that_start_side_by_side_leave_each_other_the_cgroup() -> None:
    """One that has made its own and has not moved in yet keeps it; an old empty one is a leftover."""
    first = JobCgroup.create(f"test-{uuid4().hex}")
    if first is None:
        pytest.skip("no cgroup of version 2 that this user may divide")
    second = JobCgroup.create(f"test-{uuid4().hex}")
    assert second is not None
    os.utime(second.path, (0.0, 0.0))
    third = JobCgroup.create(f"test-{uuid4().hex}")
    assert third is not None
    assert [each.path.is_dir() for each in (first, second, third)] == [True, False, True]
    for each in (first, third):
        each.path.rmdir()


def test_the_folder_of_a_launcher_that_was_killed_with_its_guardians_is_removed_by_the_next_one(
    start: Start, tmp_path: Path
) -> None:
    runs, killed = start("tagged"), start("tagged")
    for job in (runs, killed):
        job.read(2, "ready")
    signal_all([*guardians_of(killed.process.pid), killed.process.pid], signal.SIGKILL)
    killed.process.wait()
    signal_all([pid for pid in killed.pids() if alive(pid)], signal.SIGKILL)
    assert len(list((tmp_path / "run").glob("launcher-*"))) == 2
    code, log = start("short").finish()
    assert code == 0, log
    (folder,) = (tmp_path / "run").glob("launcher-*")
    assert (folder / "launcher.ipc").is_socket()
    assert runs.process.poll() is None


def test_a_call_of_elastic_launch_leaves_no_zombie(tmp_path: Path) -> None:
    code = """\
import os
from nvrx_launcher import LaunchConfig, elastic_launch
def of_this_process():
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
for _ in range(2):
    elastic_launch(LaunchConfig(1, 1, 1), "true")()
    assert of_this_process() is None, of_this_process()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment_of(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_what_workers_have_left_is_killed_at_a_restart(start: Start, tmp_path: Path) -> None:
    """In any session, and without an environment."""
    job = start("fails_once", "--max-restarts", "1")
    job.read(2, "again", cycle=1)
    left = [each["child"] for each in job.events if each["event"] == "left"]
    assert len(left) >= 5
    assert eventually(lambda: not any(map(alive, left)), 5.0)
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    assert "have left" not in log, log


def test_what_is_killed_at_a_restart_is_named_where_that_is_asked_for(start: Start, tmp_path: Path) -> None:
    """In the group of a worker that has failed, and elsewhere."""
    job = start("fails_once", "--max-restarts", "1", "--ft-check-remaining-processes", "true")
    job.read(2, "again", cycle=1)
    left = {each["name"]: each["child"] for each in job.events if each["event"] == "left"}
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    named = " ".join(line for line in log.splitlines() if "have left processes" in line or "has left processes" in line)
    assert {name for name, pid in left.items() if f"pid {pid} (" not in named} == set(), (left, log)


def test_what_workers_that_are_done_have_left_is_named_and_has_time_to_end(start: Start) -> None:
    job = start("done", "--workers-stop-timeout", "2")
    left = {(each["name"], each["child"]) for each in job.read(5, "left")}
    code, log = job.finish()
    assert code == 0, log
    named = log.partition("are sent SIGTERM, and killed after 2 s: ")[2].partition("\n")[0]
    assert all(f"pid {pid} (" in named for _, pid in left), log
    killed = log.partition("did not end in time and is killed: ")[2].partition("\n")[0]
    assert all((f"pid {pid} (" in killed) == (name == "ignores") for name, pid in left), log


def test_what_ends_by_itself_soon_after_its_worker_is_not_named(start: Start) -> None:
    code, log = start("short").finish()
    assert code == 0, log
    assert "left" not in log, log


def test_what_a_worker_that_is_done_has_left_goes_on_printing(start: Start, tmp_path: Path) -> None:
    """Under `--tee`, where its streams are pipes that the launcher reads; it ends by itself, after its SIGTERM."""
    job = start("prints", "--tee", "3", "--workers-stop-timeout", "30", "--log-dir", str(tmp_path / "logs"))
    code, log = job.finish()
    assert code == 0, log
    assert "is killed" not in log, log
    parts = [f"part {number}\n" for number in range(20)]
    for local_rank in range(2):
        prefix = f"[default{local_rank}]:"
        assert [line for line in log.splitlines(True) if line.startswith(prefix)] == [prefix + each for each in parts]
        for name in ("stdout.log", "stderr.log"):
            (file,) = (tmp_path / "logs").glob(f"*/attempt_0/{local_rank}/{name}")
            assert file.read_text() == "".join(parts)


AS_PID_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Runs a command as the first process of a container."""


def children_of(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def launcher_of(job: Launch, host: tuple[str, ...]) -> int:
    if not host:
        return job.process.pid
    assert eventually(lambda: children_of(job.process.pid), 10.0)
    return children_of(job.process.pid)[0]


@pytest.mark.parametrize("host", [(), AS_PID_1], ids=["subreaper", "pid 1"])
def test_orphans_are_reaped(start: Start, host: tuple[str, ...]) -> None:
    job = start("orphans", host=host)
    job.read(2, "ready")
    pid = launcher_of(job, host)
    assert eventually(lambda: all(map(alive, children_of(pid))), 5.0)
    os.kill(pid, signal.SIGTERM)
    assert job.process.wait(20) == 128 + signal.SIGTERM
    job.events.clear()  # the pids in them are those of their namespace


@pytest.mark.parametrize("endpoint", ["192.0.2.1:29500", "127.0.0.1:{}"], ids=["connects", "waits for nodes"])
@pytest.mark.parametrize("host", [(), AS_PID_1], ids=["", "pid 1"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_launcher_that_waits_for_its_job(
    start: Start, host: tuple[str, ...], signum: int, endpoint: str
) -> None:
    where = ("--nnodes", "2", "--rdzv-endpoint", endpoint.format(free_ports()), "--rdzv-id", "job")
    job = start("short", *where, "--ft-log-format", "json", host=host)
    pid = launcher_of(job, host)
    assert eventually(lambda: guardians_of(1 if host else pid), 20.0)
    if "127" in endpoint:
        job.await_log("host the rendezvous at")
    os.kill(pid, signum)
    code, log = job.finish(20.0)
    assert code == 128 + signum, log
    said = [json.loads(line) for line in log.splitlines()]
    assert [each["job"] for each in said if "ends with code" in each["message"]] == ["job"], log


def test_a_process_of_the_shell_that_became_the_launcher_is_left_alone(start: Start) -> None:
    """As the tee of `exec ft_launcher ... > >(tee log)`."""
    job = start(
        "short",
        host=(
            "sh",
            "-c",
            'env -i sleep 600 >&- 2>&- & printf \'{"event": "left", "cycle": 0, "theirs": %d}\\n\' $!; exec "$@"',
            "sh",
        ),
    )
    (left,) = job.read(1, "left")
    code, log = job.finish()
    assert code == 0, log
    assert alive(left["theirs"])
    os.kill(left["theirs"], signal.SIGKILL)
