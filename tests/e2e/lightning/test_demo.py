"""The demo with Lightning: every fault has its restart, and the weights are those of the undisturbed run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[3] / "examples" / "lightning" / "demo.py"
LIMIT = 240


def run_demo(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(DEMO), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_the_weights_after_three_faults_are_the_same_bits(tmp_path):
    done = run_demo("--steps", "80", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "with-faults" / "launcher.log").read_text()
    assert len(re.findall(r"✗ step \d+, rank \d: ", done.stdout)) == 3
    assert len(re.findall(r"later both ranks have done step \d+, 0 steps repeated$", done.stdout, re.MULTILINE)) == 3
    assert "\n  the same bits\n" in done.stdout
    assert re.search(r"the same bits after each fault \(5 faults in \d+ s\)$", done.stdout, re.MULTILINE)


def test_wrong_options_end_with_code_2(tmp_path):
    unknown = run_demo("--faults", "meteor", "--output", str(tmp_path))
    assert unknown.returncode == 2
    assert "no fault meteor; there are exception, kill, hang" in unknown.stderr
    few = run_demo("--steps", "50")
    assert few.returncode == 2
    assert "50 are too few for 3 faults" in few.stderr
