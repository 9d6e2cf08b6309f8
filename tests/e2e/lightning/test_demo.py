"""The demo with Lightning: every fault has its restart, and the weights are those of the undisturbed run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.harness.process.launch import FORKING_DEMO, ForkedProcess

DEMO = Path(__file__).parents[3] / "examples" / "lightning" / "demo.py"
LIMIT = 240


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(sys.path)}


def run_demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEMO), *options]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False)


def test_the_weights_after_three_faults_are_the_same_bits(lightning_template, tmp_path):
    command = [str(DEMO), "--steps", "80", "--output", str(tmp_path)]
    with ForkedProcess(lightning_template, FORKING_DEMO, command, environment()) as demo:
        try:
            out, errors = demo.communicate(timeout=LIMIT)
        finally:
            demo.kill()
    logs = "".join(log.read_text() for log in sorted(tmp_path.rglob("*.log")))
    assert demo.returncode == 0, out + errors + logs
    assert len(re.findall(r"✗ step \d+, rank \d: ", out)) == 3
    assert len(re.findall(r"later both ranks have done step \d+, 0 steps repeated$", out, re.MULTILINE)) == 3
    assert "\n  the same bits\n" in out
    assert re.search(r"the same bits after each fault \(5 faults in \d+ s\)$", out, re.MULTILINE)


def test_wrong_options_end_with_code_2(tmp_path):
    unknown = run_demo("--faults", "meteor", "--output", str(tmp_path))
    assert unknown.returncode == 2
    assert "no fault meteor; there are exception, kill, hang" in unknown.stderr
    few = run_demo("--steps", "50")
    assert few.returncode == 2
    assert "50 are too few for 3 faults" in few.stderr
