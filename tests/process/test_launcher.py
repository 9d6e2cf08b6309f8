"""ft_launcher on one node, with real workers: restarts, signals, logs, and nothing that outlives it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.process.host import alive, eventually
from tests.harness.process.launch import Start, left_in

WITHIN = 1.0
"""Seconds that what a killed launcher has started may outlive it; a tenth to a third of it, on a busy machine."""


def test_a_killed_worker_is_restarted_with_all_others(launcher: Start) -> None:
    job = launcher("killed", "--max-restarts", "2")
    code, log = job.finish()
    assert code == 0
    starts = sorted((each["cycle"], each["rank"]) for each in job.events if each["event"] == "start")
    assert set(starts) >= {(0, 1), (1, 0), (1, 1)}
    assert "rank 1 (local rank 1, pid " in log
    assert log.count("was ended by SIGKILL") == 1, "one line for one fault"
    assert "cycle 0 ends here: workers are sent SIGTERM" in log


def test_a_job_fails_when_its_restarts_are_spent(launcher: Start) -> None:
    code, log = launcher("fails", "--max-restarts", "1").finish()
    assert code == 1
    assert "has failed with exit code 3, after 1 restarts" in log
    assert log.count("has failed with exit code 3") == 3, "one line for each fault, and one for the end"
    assert "the next cycle is" not in log


def test_a_job_fails_when_the_restarts_of_a_window_are_spent(launcher: Start) -> None:
    code, log = launcher("fails", "--max-restarts", "9", "--ft-max-restarts-in-window", "2").finish()
    assert code == 1
    assert "after 2 restarts within 600 s" in log
    assert "the next cycle is 1 s away" in log


def test_a_hung_worker_is_ended_by_its_monitor_and_restarted(launcher: Start) -> None:
    job = launcher("hangs", "--max-restarts", "1", "--ft-rank-section-timeouts", "step:1")
    code, log = job.finish()
    assert code == 0
    assert "rank 1" in log
    assert "is hung: section 'step' open for 1." in log
    assert len(re.findall(r"was ended by SIGKILL, hung: section 'step' open for 1\.", log)) == 1
    assert log.count("was ended by SIGKILL") == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_is_passed_on_and_ends_the_job(launcher: Start, signum: int) -> None:
    job = launcher("waits")
    job.read(2, "start")
    job.process.send_signal(signum)
    code, _ = job.finish()
    assert code == 128 + signum
    assert eventually(lambda: not any(map(alive, job.pids())), 10.0)


def test_what_ignores_the_signal_is_killed(launcher: Start) -> None:
    job = launcher("family", "--term-timeout", "0.3")
    job.read(2, "family")
    job.process.send_signal(signal.SIGTERM)
    code, log = job.finish()
    assert code == 128 + signal.SIGTERM
    assert "did not end in time and are killed" in log
    assert eventually(lambda: not any(map(alive, job.pids())), 10.0)


@pytest.mark.parametrize("further", [1, 2])
def test_further_signals_shorten_the_time_of_what_ignores_them(launcher: Start, further: int) -> None:
    job = launcher("family", "--term-timeout", "600")
    job.read(2, "family")
    job.process.send_signal(signal.SIGTERM)
    for _ in range(further):
        job.await_log("SIGTERM")
        job.log = ""
        job.process.send_signal(signal.SIGTERM)
    code, _ = job.finish()
    assert code == 128 + signal.SIGTERM
    assert eventually(lambda: not any(map(alive, job.pids())), 10.0)


def test_nothing_outlives_a_launcher_that_is_killed(launcher: Start) -> None:
    job = launcher("family")
    job.read(2, "family")
    job.process.kill()
    assert eventually(lambda: not any(map(alive, job.pids())), WITHIN)
    assert eventually(lambda: not left_in(job.folder), WITHIN)


def test_a_rank_can_ask_that_the_job_ends(launcher: Start) -> None:
    code, log = launcher("asks", "--max-restarts", "3").finish()
    assert code == 93
    assert "rank 0 has asked for ShutdownWorkload: the loss is not finite" in log


def test_output_goes_where_it_is_asked_to_go(launcher: Start, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    job = launcher("prints", "--log-dir", str(logs), "-r", "2", "-t", "1", "--local-ranks-filter", "1")
    out, errors = job.process.communicate(timeout=60)
    assert job.process.returncode == 0
    assert "to stderr" not in errors
    console = out.splitlines()
    assert "[default1]:to stdout" in console
    assert not [line for line in console if line.startswith("[default0]")]
    assert any(line.startswith("[default1]:no end") for line in console)
    (run,) = logs.iterdir()
    for rank in ("0", "1"):
        assert (run / "attempt_0" / rank / "stdout.log").read_text().splitlines()[1] == "to stdout"
        assert (run / "attempt_0" / rank / "stderr.log").read_text() == "to stderr\n"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--signals-to-handle", "SIGFOO", "x.py"], 2, "--signals-to-handle: 'SIGFOO' is no signal"),
        (["--no-python", "no_such_program"], 1, "No such file or directory: 'no_such_program'"),
        (["--numa-binding", "node", "--no-python", "true"], 2, "--numa-binding: node: "),
        (
            ["--logs-specs", "none", "x.py"],
            2,
            "--logs-specs: there is no entry point 'none' in the group torchrun.logs",
        ),
        (["--event-log-handler", "none", "x.py"], 2, "--event-log-handler: torch elastic has no handler 'none'"),
    ],
)
def test_what_it_cannot_do_it_says_in_a_line(tmp_path: Path, argv: list[str], code: int, message: str) -> None:
    ours = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "NVRX_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "nvrx_launcher", *argv]
    done = subprocess.run(command, env=ours, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("launcher", [["-m", "nvrx_launcher"], ["-m", "nvrx_launcher.cli"]])
def test_a_script_that_is_not_there_fails_as_python_does(launcher: list[str], tmp_path: Path) -> None:
    if launcher[1].endswith("cli"):
        launcher = ["-c", "from nvrx_launcher.cli import run; run()"]
    ours = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "NVRX_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *launcher, "no_such.py"], env=ours, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "can't open file" in done.stderr


def test_a_rank_that_a_wrapped_call_goes_on_without_is_not_missed(launcher: Start, tmp_path: Path) -> None:
    """Rank 0 is the target: the store of in-process restart lives beside the launcher."""
    job = launcher("0", worker="launcher_wrapped.py")
    job.await_log("in-process restart continues without rank 0")
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    assert [each["iteration"] for each in job.events if each["event"] == "done"] == [1]


def test_a_wrapped_call_that_is_over_at_once_without_a_rank_is_not_run_again(launcher: Start, tmp_path: Path) -> None:
    """The launcher asks about rank 0 when the others have completed, or while they do."""
    (tmp_path / "gate").touch()
    code, log = launcher("0", "--max-restarts", "1", worker="launcher_wrapped.py").finish()
    assert code == 0, log
    assert "in-process restart continues without rank 0" in log
    assert "cycle 1" not in log


def test_the_job_is_restarted_when_a_wrapped_call_loses_all_its_ranks(launcher: Start) -> None:
    job = launcher("0,1", "--max-restarts", "1", "--ft-inprocess-grace", "2", worker="launcher_wrapped.py")
    code, log = job.finish()
    assert code == 1, log
    assert {each["cycle"] for each in job.events if each["event"] == "enter"} == {0, 1}


def test_a_killed_call_of_an_earlier_cycle_does_not_stand_for_a_call_that_goes_on(
    launcher: Start,
) -> None:
    options = ("--max-restarts", "1", "--ft-inprocess-grace", "0.5")
    code, log = launcher("-", *options, worker="launcher_killed_call.py").finish()
    assert code == 1, log
    assert "goes on in process" not in log


@pytest.mark.parametrize(("case", "code_of_rank"), [("exits", 17), ("gives_up", 1)])
def test_ranks_that_all_leave_a_wrapped_call_are_not_waited_for(launcher: Start, case: str, code_of_rank: int) -> None:
    job = launcher(case, "--max-restarts", "1", "--ft-inprocess-grace", "600", worker="launcher_left_call.py")
    code, log = job.finish()
    assert code == 1, log
    assert re.search(rf"has failed with exit code {code_of_rank}\b.*, after 1 restarts", log), log
    assert {each["cycle"] for each in job.events if each["event"] == "enter"} == {0, 1}


USAGE = "that is not retried, unless --ft-retry-usage-errors is true"


@pytest.mark.parametrize(
    ("case", "options", "cycles", "is_said"),
    [
        ("all", (), 1, True),
        ("all", ("--ft-retry-usage-errors", "true", "--ft-restart-backoff", "none"), 4, False),
        ("late", ("--ft-restart-backoff", "none"), 4, False),
    ],
    ids=["all", "retried", "late"],
)
def test_arguments_that_all_ranks_refuse_are_not_retried(
    launcher: Start, case: str, options: tuple[str, ...], cycles: int, is_said: bool
) -> None:
    job = launcher(case, "--max-restarts", "3", *options, worker="launcher_usage.py")
    code, log = job.finish()
    assert code == 1, log
    assert (USAGE in log) == is_said, log
    assert ("; action stop, " in log) == is_said, log
    assert {each["cycle"] for each in job.events} == set(range(cycles))


def test_arguments_that_one_rank_refuses_are_retried(launcher: Start) -> None:
    job = launcher("once", "--max-restarts", "1", worker="launcher_usage.py")
    code, log = job.finish()
    assert code == 0, log
    assert {each["cycle"] for each in job.events} == {0, 1}


@pytest.mark.parametrize(
    ("source", "is_retried"),
    [
        ("if True:\n    import beside\n", False),
        ("from os import no_such_name\n", False),
        ("x = (1,\n", False),
        ("raise ValueError\n", True),
    ],
)
def test_a_script_that_cannot_start_is_not_retried(
    launcher: Start, tmp_path: Path, source: str, is_retried: bool
) -> None:
    (tmp_path / "beside.py").write_text("import no_such_module\n")
    (tmp_path / "train.py").write_text(source)
    code, log = launcher("", "--max-restarts", "1", worker=str(tmp_path / "train.py")).finish()
    assert code == 1, log
    assert (USAGE in log, "after 1 restarts" in log) == (not is_retried, is_retried), log
