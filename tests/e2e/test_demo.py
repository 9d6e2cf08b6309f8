"""The demo in its short form: every scheduled fault has its restart, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nvrx_core.events import timeline

DEMO = Path(__file__).parents[2] / "examples" / "inprocess" / "demo.py"
LIMIT = 240
"""Seconds within which even a busy machine is through with it."""


def run_demo(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(DEMO), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)


def processes_of(folder: Path) -> list[str]:
    """The command lines that name the folder: each rank's does, and its monitor's."""
    found = (Path(process.path, "cmdline") for process in os.scandir("/proc") if process.name.isdigit())
    return [text for line in found if str(folder) in (text := read(line).replace("\0", " "))]


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_every_scheduled_fault_is_followed_by_its_restart(tmp_path: Path) -> None:
    done = run_demo("--quick", "--output", str(tmp_path))
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    restarts = timeline.restarts(timeline.read(tmp_path / "disturbed" / "records"))
    assert len(restarts) >= 4, told
    lost = [rank for restart in restarts for rank in restart.lost]
    assert lost[0] == 0, told
    assert len(lost) == 2, told
    assert "160/160" in told
    assert processes_of(tmp_path) == []


def test_the_picture_shows_the_loss_and_every_fault(tmp_path: Path) -> None:
    done = run_demo("--faults", "exception:1@12,kill:0@20", "--ranks", "2", "--steps", "30", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    picture = ElementTree.parse(tmp_path / "loss.svg")
    texts = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith("exception, rank 1: restart") for text in texts)
    assert any(text.startswith("kill, rank 0: restart") for text in texts)
    lines = list(picture.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 4  # undisturbed, and three stretches between two faults


def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--faults", "none", "--no-reference", "--output", str(tmp_path)]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as demo:
        assert demo.stdout is not None
        line = next((line for line in demo.stdout if "steps/s" in line), "")  # the training is under way
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=LIMIT)
    assert demo.returncode == 130, line + rest
    assert "Ended by SIGINT" in rest
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--faults", "boom"], "'boom' is no kind of fault; there are exception,"),
        (["--faults", "kill@"], "'kill@' is not KIND[:RANK][@STEP]"),
        (["--faults", ""], "'' is not KIND[:RANK][@STEP]"),
        (["--faults", "kill@0"], "kill at step 0: it can strike steps 1 to 1199"),
        (["--faults", "kill@1200"], "it can strike steps 1 to 1199"),
        (["--faults", "kill@160", "--quick"], "it can strike steps 1 to 159"),
        (["--faults", "exception@7,hang_recv@7"], "two faults at one step"),
        (["--faults", "kill:4"], "rank 4 is none of those there by then, [0, 1, 2, 3]"),
        (["--faults", "kill:1,exception:1"], "rank 1 is none of those there by then, [0, 2, 3]"),
        (["--faults", "kill,stop", "--ranks", "2"], "kill, stop end 2 ranks or more, and there are 2"),
        (["--ranks", "1"], "'1' is no whole number from 2 to 16"),
        (["--ranks", "four"], "'four' is no whole number from 2 to 16"),
        (["--steps", "-5"], "argument --steps"),
        (["--steps", "1e3"], "'1e3' is no whole number from 20"),
        (["--seed", "0.5"], "'0.5' is no whole number from 0"),
        (["--output", __file__], "cannot be made a folder"),
        (["--fault", "kill"], "unrecognized arguments: --fault kill"),
    ],
)
def test_options_that_cannot_be_met_are_refused_before_anything_starts(options: list[str], message: str) -> None:
    done = run_demo(*options)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
