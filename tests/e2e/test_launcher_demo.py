"""The launcher's demo in a short form: each fault is followed by its restart, in the cheapest layer that can."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nvrx_core.events import timeline
from tests.harness.process.job import LIVE_TEMPLATE, Template
from tests.harness.process.launch import FORKING_DEMO, ForkedProcess

DEMO = Path(__file__).parents[2] / "examples" / "launcher" / "demo.py"
LIMIT = 240


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    """That of workers with optimizers: it forks the demo, the demo its launchers, and these all but standby workers."""
    with closing(Template(LIVE_TEMPLATE)) as template:
        yield template


def run_demo(template: Template, folder: Path, *options: str) -> tuple[int, str]:
    """Runs the demo; its exit code, and what it says."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NVRX_")}
    environment |= {"PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [str(DEMO), "--output", str(folder), *options]
    with ForkedProcess(template, FORKING_DEMO, command, environment, stderr=subprocess.STDOUT) as demo:
        try:
            told, _ = demo.communicate(timeout=LIMIT)
        finally:
            demo.kill()
    return demo.returncode, told


def test_a_restart_is_made_of_standbys_when_they_are_ready(template: Template, tmp_path: Path) -> None:
    options = ("--steps", "18", "--no-torchrun", "--no-wrapper", "--wait", "100")
    code, told = run_demo(template, tmp_path, "--faults", "exception", *options)
    assert code == 0, told
    happened = r"^  (· all standby|✗ step \d+|✓ .* 4 new processes, of which 4 were standby)"
    assert [found[0] for found in re.findall(happened, told, re.MULTILINE)] == list("·✗✓"), told
    assert re.search(r"exception +[\d.]+ m?s, started ", told), told
    assert re.search(r"^  ft_launcher .*  [0-9a-f]{12}\b", told, re.MULTILINE), told


@pytest.mark.nightly
def test_the_cheapest_layer_takes_each_fault(template: Template, tmp_path: Path) -> None:
    """An exception restarts in process under the wrapper; a lost node is replaced by the one that waits.

    What takes new processes happens when the standby workers are ready, the first fault too, and is made of them.
    """
    options = ("--steps", "18", "--no-torchrun", "--wait", "100")
    code, told = run_demo(template, tmp_path, "--faults", "exception,node", *options)
    assert code == 0, told
    first, second = told.partition("What each fault cost:")[0].split("with Wrapper:")
    happened = r"^  (· all standby|✗ step \d+|✓ .* 4 new processes, of which 4 were standby|✓ .* in process)"
    marks = [[found[0] for found in re.findall(happened, run, re.MULTILINE)] for run in (first, second)]
    assert marks == [list("·✗✓·✗✓"), list("✗✓·✗✓")], told
    assert not re.search(r"\bcold\b, \d", told), told
    assert re.search(r"exception +[\d.]+ m?s, started .* +[\d.]+ m?s, in process", told), told
    assert re.search(r"node lost +[\d.]+ s, started [\d.]+ s", told), told
    logs = re.findall(r"/ft_launcher/logs/train_cycle(\d)\.log", told.partition("What all workers printed")[2])
    assert len(logs) >= 3, told
    assert logs == [str(cycle) for cycle in range(len(logs))], told
    weights = re.findall(r"^  (?:ft_launcher|with Wrapper) .*  ([0-9a-f]{12})\b", told, re.MULTILINE)
    assert len(set(weights)) == 1, told
    assert len(weights) == 2, told
    history = timeline.render(timeline.read(tmp_path / "with-wrapper" / "records"))
    assert "restart 0 -> 1: EXCEPTION on rank 1" in history
    assert "cycle 0 -> 1: " in history


def test_a_fault_that_there_is_not_ends_the_demo_with_code_2(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--faults", "flood", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2
    assert "no fault flood; there are exception, kill" in done.stderr
