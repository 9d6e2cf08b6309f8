"""Health checks by real processes: the command, its program, hangs that nothing ends, a fake NVML, a real service."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvrx_core.health.__main__ import main
from nvrx_core.health.result import HealthReport, Status
from nvrx_core.health.runner import HealthRunner, check_node
from nvrx_core.health.settings import HealthSettings
from nvrx_core.process.children import children_of, descendants_of
from nvrx_core.process.waiting import readable
from tests.harness import nvhcd_stubs
from tests.harness.health.daemon import DAEMON, PARTS, daemon, needs_fuse, write_check
from tests.harness.health.odd_service import KINDS
from tests.harness.process.host import alive, eventually, stop

ROOT = Path(__file__).parents[2]
Result = tuple[int, dict[str, Any]]


def command(*options: str, prefix: tuple[str, ...] = (), **environment: str) -> Result:
    """Run nvrx-health; returns its exit code and its report."""
    line = [*prefix, sys.executable, "-m", "nvrx_core.health", "--json", *options]
    done = subprocess.run(line, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def nvml(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of a process that finds these GPUs in NVML."""

    def environment(*gpus: dict[str, Any], **more: Any) -> dict[str, str]:
        file = tmp_path / "nvml.json"
        file.write_text(json.dumps({"gpus": gpus} | more))
        path = os.pathsep.join([str(PARTS / "nvml"), os.environ.get("PYTHONPATH", "")])
        return {"NVRX_TEST_NVML": str(file), "PYTHONPATH": path}

    return environment


def of(report: dict[str, Any], check: str) -> list[tuple[str, str, str]]:
    return [(each["subject"], each["status"], each["reason"]) for each in report["results"] if each["check"] == check]


def test_healthy_gpus_are_reported_one_by_one(nvml):
    gpu = {"action": 0, "rows": [0, 1, 1, 0], "sram": 0, "links": [1] * 18}
    code, report = command("--only", "gpu,nvlink", **nvml(gpu, gpu | {"rows": [0, 0, 0, 0]}))
    assert (code, report["status"]) == (0, "healthy")
    reason = "no recovery is asked for"
    assert of(report, "gpu") == [
        ("GPU 0 (0000:10:00.0)", "healthy", f"{reason}; a memory row is remapped at the next reset"),
        ("GPU 1 (0000:11:00.0)", "healthy", reason),
    ]
    assert [each[1:] for each in of(report, "nvlink")] == [("healthy", "18 of 18 links are active")] * 2


@pytest.mark.parametrize(
    ("gpu", "status"),
    [
        ({"action": 4}, "unhealthy"),
        ({"rows": [0, 0, 0, 1]}, "unhealthy"),
        ({"sram": 1}, "unhealthy"),
        ({"error": 15}, "unhealthy"),
        ({"error": 16}, "unhealthy"),
        ({"error": 999}, "unknown"),
        ({}, "healthy"),
    ],
)
def test_one_gpu_decides_about_the_node(nvml, gpu, status):
    code, report = command("--only", "gpu", **nvml({"action": 0}, gpu))
    assert [each[1] for each in of(report, "gpu")] == ["healthy", status]
    assert code == (status == "unhealthy")


@pytest.mark.parametrize("error", [9, 12])
def test_a_node_without_nvml_is_unknown_even_if_checks_are_strict(nvml, error):
    code, report = command("--only", "gpu,nvlink", "--ft-health-strict", "true", **nvml(error=error))
    assert (code, report["status"]) == (0, "unknown")


def test_a_driver_call_that_never_returns_is_bounded_and_costs_no_other_result(nvml):
    """The other GPUs are reported, and so are the other checks."""
    began = time.monotonic()
    code, report = command(
        "--only", "gpu,storage", "--ft-storage-healthcheck-path", "/", "--ft-health-check-timeout", "2",
        **nvml({"action": 0}, {"hangs": True}),
    )  # fmt: skip
    assert time.monotonic() - began < 20
    (whole, unknown, reason), (first, healthy, _) = of(report, "gpu")
    assert (whole, unknown, first, healthy) == ("", "unknown", "GPU 0 (0000:10:00.0)", "healthy")
    assert reason.startswith("it has not returned within 2")
    assert [each[1] for each in of(report, "storage")] == ["healthy"]
    assert code == 0
    assert command("--only", "gpu", "--ft-health-check-timeout", "1", "--ft-health-strict", "1",
                   **nvml({"hangs": True}))[0] == 1  # fmt: skip


@needs_fuse
def test_a_mount_that_never_answers_is_unhealthy_and_its_process_is_named_and_left(tmp_path):
    """Its process is in state D, and SIGKILL does not end it."""
    folder = tmp_path / "mount"
    folder.mkdir()
    silent = (sys.executable, str(PARTS / "silent_mount.py"), str(folder))
    began = time.monotonic()
    code, report = command(
        "--ft-storage-healthcheck-path", f"{folder},/", "--ft-health-check-timeout", "1", prefix=silent
    )
    assert time.monotonic() - began < 20
    assert code == 1
    (_, healthy, _), (subject, status, reason) = of(report, "storage")
    assert (healthy, subject, status) == ("healthy", str(folder), "unhealthy")
    assert "is left behind, in state D" in reason


@needs_fuse
def test_a_check_that_was_left_behind_is_not_started_again(tmp_path):
    folder = tmp_path / "mount"
    folder.mkdir()
    script = f"""
from nvrx_core.health.runner import HealthRunner
from nvrx_core.health.settings import HealthSettings
from nvrx_core.process.waiting import readable
runner = HealthRunner(HealthSettings(storage_healthcheck_path={str(folder)!r}, health_check_timeout=0.5))
for _ in range(2):
    fd = runner.start(["storage"])
    while (report := runner.poll()) is None:
        readable([fd], 20)
    print(report.results[0])
runner.close()
"""
    line = [sys.executable, str(PARTS / "silent_mount.py"), str(folder), sys.executable, "-c", script]
    first, second = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    pid = first.partition("its process ")[2].split()[0]
    assert f"its process {pid} of an earlier check has not returned yet, in state D" in second


@needs_fuse
def test_a_check_that_hangs_in_its_exit_is_left_behind_and_not_started_again(tmp_path):
    """The kernel closes its pipe first, and then waits for a driver: its results are known, its process is not over."""
    folder = tmp_path / "mount"
    folder.mkdir()
    script = f"""
import os
from nvrx_core.health import program
from nvrx_core.health.probes import Probe
from nvrx_core.health.result import CheckResult, Status

def run():
    yield CheckResult("gpu", "GPU 0", Status.HEALTHY, "fine")
    os.closerange(3, 1000)
    os.stat({str(folder)!r})

program.probes_of = lambda *_: [Probe("gpu", "", 0.5, Status.UNKNOWN, run)]
program.main([str(os.getppid())])
"""
    line = [sys.executable, str(PARTS / "silent_mount.py"), str(folder), sys.executable, "-c", script]
    request = json.dumps({"settings": {}, "checks": ["gpu"], "devices": []}) + "\n"
    done = subprocess.run(line, input=2 * request, capture_output=True, text=True, timeout=60, check=True)
    healthy, left, _, held, _ = [json.loads(each) for each in done.stdout.splitlines()]
    assert (healthy["subject"], healthy["status"]) == ("GPU 0", "healthy")
    assert (left["subject"], left["status"]) == ("", "unknown")
    assert "is left behind, in state D" in left["reason"]
    pid = left["reason"].partition("its process ")[2].split()[0]
    assert f"its process {pid} of an earlier check has not returned yet, in state D" in held["reason"]


@needs_fuse
def test_the_time_in_which_the_node_is_stopped_does_not_count(tmp_path):
    """As under `scontrol suspend`: the check has its whole time after it."""
    folder = tmp_path / "mount"
    folder.mkdir()
    line = [
        sys.executable, str(PARTS / "silent_mount.py"), str(folder), sys.executable, "-m", "nvrx_core.health", "--json",
        "--ft-storage-healthcheck-path", str(folder), "--ft-health-check-timeout", "3",
    ]  # fmt: skip
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as mount:
        assert eventually(lambda: any(runs(pid, "nvrx_core.health.program") for pid in descendants_of(mount.pid)), 30)
        program = next(pid for pid in descendants_of(mount.pid) if runs(pid, "nvrx_core.health.program"))
        assert eventually(lambda: children_of(program), 30)
        stop(program)
        time.sleep(6)
        os.kill(program, signal.SIGCONT)
        continued = time.monotonic()
        report = json.loads(mount.communicate(timeout=60)[0])
    assert time.monotonic() - continued > 2.9
    assert [each[1] for each in of(report, "storage")] == ["unhealthy"]


def checks(**settings: Any) -> HealthRunner:
    return HealthRunner(HealthSettings(storage_healthcheck_path="/,/proc", **settings))


def report_of(runner: HealthRunner, fd: int) -> HealthReport:
    while (report := runner.poll()) is None:
        assert readable([fd], 30) or runner.deadline <= time.monotonic()
    return report


def test_a_program_is_kept_for_the_next_checks_and_replaced_when_it_is_lost():
    runner = checks()
    try:
        for _ in range(3):
            assert len(report_of(runner, runner.start(["storage"])).results) == 2
        (program,) = [pid for pid in children_of(os.getpid()) if runs(pid, "nvrx_core.health.program")]
        os.kill(program, signal.SIGKILL)
        lost = report_of(runner, runner.start(["storage"]))
        assert [each.reason for each in lost.results] == ["the program of the checks has ended"]
        assert lost.status(strict=False) is Status.UNKNOWN
        assert lost.status(strict=True) is Status.UNHEALTHY
        assert report_of(runner, runner.start(["storage"])).status(strict=True) is Status.HEALTHY
    finally:
        runner.close()


def test_a_program_that_is_stopped_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("nvrx_core.health.runner.ANSWERS_LATE", 1.0)
    runner = checks(health_check_timeout=1.0)
    try:
        report_of(runner, runner.start(["storage"]))
        (program,) = [pid for pid in children_of(os.getpid()) if runs(pid, "nvrx_core.health.program")]
        stop(program)
        fd, began = runner.start(["storage"]), time.monotonic()
        while (report := runner.poll()) is None:
            readable([fd], runner.deadline - time.monotonic())
        assert 2 < time.monotonic() - began < 10
        assert report.results[0].reason == f"the program of the checks (pid {program}) does not answer"
    finally:
        runner.close()


def test_no_process_of_the_checks_outlives_a_caller_that_is_killed(nvml):
    script = "from nvrx_core.health import __main__ as m; m.main(['--only', 'gpu'])"
    with subprocess.Popen([sys.executable, "-c", script], env=os.environ | nvml({"hangs": True})) as caller:
        below = list[int]()
        assert eventually(
            lambda: len(below) >= 1 or below.extend(p for c in children_of(caller.pid) for p in children_of(c)), 30
        )
        below += children_of(caller.pid)
        caller.kill()
    assert eventually(lambda: not any(map(alive, below)), 30)


def runs(pid: int, module: str) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        return module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


# The node's health service


ANSWERS = [
    ("""echo "{\\"fail_count\\": 0}" """, "healthy", "no check has failed"),
    ("""echo "{\\"fail_count\\": 2, \\"failed_checks\\": [\\"$1\\"]}" """, "unhealthy",
     "2 checks have failed: --no-slurm"),
    ("echo '{\"fail_count\": 0}'; exit 3", "unhealthy", "the check has failed with exit code 3: {\"fail_count\": 0}"),
    ("echo broken >&2; exit 1", "unhealthy", "the check has failed with exit code 1: broken"),
    ("echo fine", "unknown", "the answer cannot be read: 'fine' is no JSON object with a fail_count"),
    ("kill -9 $$", "unhealthy", "the check has failed with exit code -9"),
    ("sleep 60", "unhealthy", "the check has failed with exit code 124: no end within 1 s"),
]  # fmt: skip


def test_the_service_is_asked_and_believed(tmp_path):
    with daemon(tmp_path, "exit 0", timeout=1) as path:
        for check, status, reason in ANSWERS:
            write_check(tmp_path, check)
            code, report = command("--ft-node-health-check-endpoint", f"unix://{path}")
            assert of(report, "service")[0][1:] == (status, reason)
            assert code == (status == "unhealthy")
            if status == "unknown":
                assert command("--ft-node-health-check-endpoint", path, "--ft-health-strict", "true")[0] == 1


def test_a_service_that_is_absent_or_was_killed_is_skipped(tmp_path):
    endpoint = f"{tmp_path}/s"
    for _ in range(2):
        code, report = command("--ft-node-health-check-endpoint", endpoint, "--ft-health-strict", "true")
        assert (code, of(report, "service")[0][1], report["results"][0]["is_absent"]) == (0, "unknown", True)
        assert of(report, "service")[0][2].startswith("skipped, ")
        with contextlib.closing(__import__("socket").socket(1)) as left:  # bound, and nobody listens
            if not os.path.exists(endpoint):
                left.bind(endpoint)


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_answer_is_unknown(tmp_path, kind):
    path = f"{tmp_path}/s"
    line = [sys.executable, str(PARTS / "odd_service.py"), path, kind]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            assert service.stdout.readline() == "listens\n"
            code, report = command("--ft-node-health-check-endpoint", path, "--ft-health-check-timeout", "2")
        finally:
            service.kill()
    assert (code, of(report, "service")[0][1]) == (0, "unknown")
    assert report["results"][0]["is_absent"] == (kind == "no gRPC"), report


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"socket_path": "localhost:50051"}, "socket_path: 'localhost:50051' is no Unix socket"),
        ({"socket_path": __file__}, "is another file, not a Unix socket"),
        ({"healthcheck_path": "/nowhere"}, "healthcheck_path: '/nowhere' is no program"),
        ({"timeout": "soon"}, "timeout: 'soon' is no number of seconds"),
        ({"log_level": "loud"}, "log_level: 'loud' is none of debug"),
        ({"sokcet": 1}, "there is no key sokcet"),
    ],
)
def test_a_wrong_configuration_of_the_daemon_ends_it_with_code_2(tmp_path, config, text):
    file = tmp_path / "nvhcd.yaml"
    file.write_text(json.dumps({"socket_path": f"{tmp_path}/s", "healthcheck_path": "/bin/true"} | config))
    line = [sys.executable, str(DAEMON), "-config", str(file)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert text in done.stderr


def test_a_second_daemon_does_not_take_the_socket(tmp_path):
    with daemon(tmp_path, "exit 0"):
        line = [sys.executable, str(DAEMON), "-config", f"{tmp_path}/nvhcd.yaml"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, "another daemon listens" in done.stderr) == (1, True)


@pytest.mark.parametrize(("code", "status"), [(0, "healthy"), (3, "unhealthy")])
def test_a_prolog_script_serves_as_the_check(tmp_path, code, status):
    prolog = tmp_path / "prolog.sh"
    prolog.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nexit {code}\n')
    prolog.chmod(0o755)
    wrapper = ROOT / "examples" / "health" / "prolog-healthcheck.sh"
    with daemon(tmp_path, f'PROLOG_SCRIPT={prolog} exec {wrapper} "$@"') as path:
        report = command("--ft-node-health-check-endpoint", path)[1]
    assert report["status"] == status
    assert (tmp_path / "arguments").read_text() == "--no-slurm\n"


# The command


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--only", "gpus"], "--only: there is no check 'gpus'; write some of gpu,nvlink,nic,storage,service"),
        (["--only", "storage"], "--only: storage has nothing to check; give --ft-storage-healthcheck-path"),
        (["--only", "service"], "--only: service has nothing to check; give --ft-node-health-check-endpoint"),
        (["--ft-node-health-check-endpoint", "node:50051"], "it must be an absolute path, or unix:// and one"),
        (["--ft-node-health-check-endpoint", __file__], "is no Unix socket"),
        (["--ft-storage-healthcheck-path", "data"], "it must be absolute, each of them"),
        (["--ft-link-state-path-template", "/sys/x"], "it must be one that has {nic} in it"),
        (["--ft-health-stirct", "true"], "did you mean --ft-health-strict?"),
        (["--jason"], "unknown argument --jason"),
        (["--ft-cfg-path", "/nowhere.yaml"], "/nowhere.yaml"),
    ],
)  # fmt: skip
def test_bad_input_is_a_line_and_code_2_before_anything_starts(options, text):
    line = [sys.executable, "-m", "nvrx_core.health", *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


def test_a_node_without_a_process_for_the_checks_is_unknown(monkeypatch, capsys):
    def start(*_: object) -> HealthReport:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("nvrx_core.health.__main__.check_node", start)
    assert main(["--only", "gpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert of(report, "health") == [("", "unknown", "the checks cannot be run: Resource temporarily unavailable")]


def test_the_table_has_a_line_for_each_result_and_the_outcome(tmp_path):
    line = [sys.executable, "-m", "nvrx_core.health", "--ft-storage-healthcheck-path", f"{tmp_path},{tmp_path}/gone"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    head, first, second, outcome = done.stdout.splitlines()
    assert done.returncode == 1
    assert head.split() == ["check", "what", "result", "reason"]
    assert (first.split()[:3], second.split()[:3]) == (
        ["storage", str(tmp_path), "healthy"], ["storage", f"{tmp_path}/gone", "unhealthy"],
    )  # fmt: skip
    assert outcome == "unhealthy: 1 failed"


def test_the_link_state_of_nics_is_found_by_the_template(tmp_path):
    state = tmp_path / "mlx5_0" / "state"
    state.parent.mkdir()
    state.write_text("4: ACTIVE\n")
    report = command("--ft-link-state-path-template", f"{tmp_path}/{{nic}}/state")[1]
    assert of(report, "nic") == [("mlx5_0", "healthy", "the link is ACTIVE")]


def test_lustre_and_nfs_are_no_condition(tmp_path):
    code, report = command("--ft-enable-dist-storage-healthcheck", "true", "--ft-health-strict", "true")
    assert (code, [each["subject"] for each in report["results"]]) == (0, ["Lustre"])


def test_checks_run_in_this_process_as_well():
    report = check_node(HealthSettings(storage_healthcheck_path="/"), ["storage"])
    assert report.status(strict=True) is Status.HEALTHY


def test_the_messages_of_the_service_are_those_of_its_description():
    assert nvhcd_stubs.stubs() == (ROOT / "nvrx_core" / "health" / "nvhcd_pb2.py").read_text(encoding="utf-8")
