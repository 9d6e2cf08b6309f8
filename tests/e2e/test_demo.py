"""The demo in its short form: every scheduled fault has its restart, and nothing is left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nvrx_core.events import timeline
from tests.harness.process.job import LIVE_TEMPLATE, Template
from tests.harness.process.launch import FORKING_DEMO, ForkedProcess

DEMO = Path(__file__).parents[2] / "examples" / "inprocess" / "demo.py"
LIMIT = 240
"""Seconds within which even a busy machine is through with it."""
SVG = "{http://www.w3.org/2000/svg}"
COLUMNS = 100
CTRL_C = "\x03"


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    """That of ranks with optimizers: it forks a demo, and the demo its ranks."""
    with closing(Template(LIVE_TEMPLATE)) as template:
        yield template


def environment_of(folder: Path) -> dict[str, str]:
    """That of a demo, whose processes all name the folder in theirs."""
    return {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(sys.path), "DEMO": str(folder)}


def run_demo(template: Template, folder: Path, *options: str) -> tuple[int, str, str]:
    """Runs the demo; its exit code, its stdout, and its stderr."""
    command = [str(DEMO), "--ranks", "2", "--output", str(folder), *options]
    with ForkedProcess(template, FORKING_DEMO, command, environment_of(folder)) as demo:
        try:
            shown, errors = demo.communicate(timeout=LIMIT)
        finally:
            demo.kill()
    return demo.returncode, shown, errors


def processes_of(folder: Path) -> list[str]:
    """The command lines of processes that name the folder, in them or in their environment."""
    found = (Path(process.path) for process in os.scandir("/proc") if process.name.isdigit())
    read_all = ((read(path / "cmdline"), read(path / "environ")) for path in found)
    return [command.replace("\0", " ") for command, environ in read_all if str(folder) in command + environ]


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize(
    "others", [("--no-torchrun",), pytest.param((), marks=pytest.mark.nightly)], ids=["nvrx", "torchrun, too"]
)
def test_every_scheduled_fault_is_followed_by_its_restart(
    template: Template, tmp_path: Path, others: tuple[str, ...]
) -> None:
    code, shown, errors = run_demo(template, tmp_path, "--quick", *others)
    told = shown + errors
    assert code == 0, told
    restarts = timeline.restarts(timeline.read(tmp_path / "nvrx" / "records"))
    assert len(restarts) >= 4, told
    lost = [rank for restart in restarts for rank in restart.lost]
    assert lost[0] == 0, told
    assert len(lost) == 2, told
    assert "160/160" in told
    assert set(re.findall(r" (\d+) steps? repeated", told)) == {"0"}, told
    journals = (tmp_path / "nvrx" / "records").glob("journal-*.jsonl")
    lines = [json.loads(line) for journal in journals for line in journal.read_text().splitlines()]
    steps = [line["step"] for line in lines if line["event"] == "step"]
    assert len(steps) == len(set(steps)), told
    assert re.search(r"SIGKILL +0 .* → spare \d", told)
    assert re.search(r"hang in recv\(\) .* 2 s \+ [\d.]+ m?s", told)
    assert re.search(r"hang, GIL held .* 4 s \+ [\d.]+ m?s", told)
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= COLUMNS, told
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    "others", [(), pytest.param(("--no-torchrun",), marks=pytest.mark.nightly)], ids=["torchrun, too", "nvrx"]
)
def test_the_runs_are_compared_in_the_table_and_in_the_pictures(
    template: Template, tmp_path: Path, others: tuple[str, ...]
) -> None:
    """Where a spare takes the rank of one that is lost, a fault changes no bit of the weights."""
    drawn = tmp_path / "images" / "demo.svg"
    faults = ("--faults", "stop:0@12", "--spares", "1", "--steps", "24")
    code, shown, errors = run_demo(template, tmp_path, *faults, *others, "--svg", str(drawn))
    told = shown + errors
    assert code == 0, told
    weights = dict(re.findall(r"^  (undisturbed|nvrx|torchrun) .*  ([0-9a-f]{12})\b", told, re.MULTILINE))
    assert {weights["undisturbed"]} == {weights["nvrx"]}, told
    unseen = "" if others else r"  hung, \d.* 0 / \d+"
    assert re.search(rf"^  SIGSTOP .* → spare 2{unseen}", told, re.MULTILINE), told
    runs = ElementTree.parse(drawn.with_stem("demo-runs"))
    drawn_runs = {line.get("class") for line in runs.iter(f"{SVG}polyline")}
    assert drawn_runs == {"undisturbed", "nvrx", *(() if others else ("torchrun",))}
    texts = [element.text or "" for element in runs.iter(f"{SVG}text")]
    assert any(text.startswith("SIGSTOP: ") for text in texts)
    assert any(text.startswith("SIGSTOP, then killed: ") for text in texts) == (not others)  # torchrun does not see it
    terminal = ElementTree.parse(drawn)
    assert any("SHA-256" in "".join(line.itertext()) for line in terminal.iter(f"{SVG}text"))
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "moment"),
    [
        (("--faults", "none"), "First undisturbed"),
        pytest.param(("--faults", "none", "--no-undisturbed"), "steps/s", marks=pytest.mark.nightly),
        (("--faults", "hang_recv:0@5", "--steps", "20", "--no-undisturbed"), "torchrun"),
    ],
    ids=["starting", "training", "torchrun"],
)
def test_an_interrupted_demo_leaves_no_process_behind(options: tuple[str, ...], moment: str, tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--ranks", "2", "--spares", "0", *options, "--output", str(tmp_path)]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as demo:
        assert demo.stdout is not None
        line = next((line for line in demo.stdout if moment in line), "")
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=LIMIT)
    assert demo.returncode == 130, line + rest
    assert "Ended by SIGINT" in rest
    assert processes_of(tmp_path) == []


class Viewer:
    """Watches `--play` on a terminal of its own, and presses keys."""

    def __init__(self, folder: Path) -> None:
        self._terminal, child = pty.openpty()
        command = [sys.executable, str(DEMO), "--play", "--ranks", "2", "--spares", "1", "--output", str(folder)]
        with_terminal = ["setsid", "--ctty", *command]  # its Ctrl-C reaches the demo as a signal
        self.demo = subprocess.Popen(with_terminal, stdin=child, stdout=child, stderr=child)
        os.close(child)
        self.seen = self._unread = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Waits until something new is shown; what is shown up to its end counts as seen."""
        until = time.monotonic() + LIMIT
        while (match := re.search(pattern, self._unread)) is None:
            assert time.monotonic() < until, f"no {pattern} in: {self.seen}"
            if select.select([self._terminal], [], [], 1.0)[0]:
                self._unread += self._read()
        self._unread = self._unread[match.end() :]
        return match

    def press(self, key: str) -> None:
        os.write(self._terminal, key.encode())

    def end(self) -> int:
        """Reads to the end; the exit code."""
        with suppress(OSError):  # a terminal whose last process has closed it
            while self._read():
                pass
        return self.demo.wait(LIMIT)

    def close(self) -> None:
        self.demo.kill()
        self.demo.wait()
        os.close(self._terminal)

    def _read(self) -> str:
        shown = re.sub(r"\x1b\[[?\d]*[a-zA-Z]", "", os.read(self._terminal, 65536).decode(errors="replace"))
        self.seen += shown
        return shown


@contextmanager
def viewer(folder: Path) -> Iterator[Viewer]:
    watching = Viewer(folder)
    try:
        yield watching
    finally:
        watching.close()


def pids(text: str) -> dict[str, int]:
    return {name: int(pid) for name, pid in re.findall(r"(rank \d+|spare): (\d+)", text)}


def test_the_viewer_kills_and_stops_processes_and_the_training_goes_on(tmp_path: Path) -> None:
    line = r"rank 0: \d+ +rank 1: \d+[^\r\n]*[\r\n]"
    with viewer(tmp_path) as watching:
        first = pids(watching.wait_for(line)[0])
        watching.wait_for("q or Ctrl-C")
        os.kill(first["rank 0"], signal.SIGKILL)
        second = pids(watching.wait_for(rf"spare 2 is rank 0[^§]*?{line}")[0])
        assert second == {"rank 0": first["spare"], "rank 1": first["rank 1"]}
        os.kill(second["rank 1"], signal.SIGSTOP)
        third = pids(watching.wait_for(r"process 1 is lost[^§]*?rank 0: \d+[\r\n]")[0])
        assert third == {"rank 0": second["rank 0"]}
        watching.press(CTRL_C)
        assert watching.end() == 0, watching.seen
    assert "2 restarts; every process has been ended" in watching.seen
    assert processes_of(tmp_path) == []


@pytest.mark.nightly
def test_q_ends_the_play_in_order(tmp_path: Path) -> None:
    with viewer(tmp_path) as watching:
        watching.wait_for("steps/s")
        watching.press("q")
        assert watching.end() == 0, watching.seen
    assert "0 restarts; every process has been ended" in watching.seen
    assert processes_of(tmp_path) == []


def test_no_process_is_left_of_a_killed_demo(tmp_path: Path) -> None:
    with viewer(tmp_path) as watching:
        watching.wait_for("are starting|in reserve")
        watching.demo.kill()
        watching.demo.wait()
        until = time.monotonic() + LIMIT
        while left := processes_of(tmp_path):
            assert time.monotonic() < until, left
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--faults", "boom"], "'boom' is no kind of fault; there are exception,"),
        (["--faults", "kill@"], "'kill@' is not KIND[:RANK][@STEP]"),
        (["--faults", ""], "'' is not KIND[:RANK][@STEP]"),
        (["--faults", "kill@0"], "kill at step 0: choose one of steps 1 to 399"),
        (["--faults", "kill@400"], "choose one of steps 1 to 399"),
        (["--faults", "kill@160", "--quick"], "choose one of steps 1 to 159"),
        (["--faults", "exception@7,hang_recv@7"], "two faults at one step"),
        (["--faults", "kill:4"], "kill at step 200: there are ranks 0 to 3 by then"),
        (["--faults", "kill:1,exception:3", "--spares", "0"], "there are ranks 0 to 2 by then"),
        (["--faults", "kill,stop", "--ranks", "2", "--spares", "0"], "kill, stop end 2 processes, and there are 2"),
        (["--ranks", "1"], "'1' is no whole number from 2 to 16"),
        (["--ranks", "four"], "'four' is no whole number from 2 to 16"),
        (["--spares", "9"], "'9' is no whole number from 0 to 8"),
        (["--steps", "-5"], "argument --steps"),
        (["--steps", "1e3"], "'1e3' is no whole number from 20"),
        (["--seed", "0.5"], "'0.5' is no whole number from 0"),
        (["--output", __file__], "cannot be made a folder"),
        (["--svg", f"{__file__}/demo.svg"], "cannot be made a folder"),
        (["--play", "--svg", "demo.svg"], "it draws the runs of the schedule"),
        (["--fault", "kill"], "unrecognized arguments: --fault kill"),
    ],
)
def test_options_that_cannot_be_met_are_refused_before_anything_starts(options: list[str], message: str) -> None:
    command, environment = [sys.executable, str(DEMO), *options], {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
