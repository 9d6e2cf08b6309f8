"""`make demo-megatron`: both shapes are broken twice, and their losses are those of the undisturbed run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "examples" / "megatron" / "demo.py"
LIMIT = 900


@pytest.mark.nightly
def test_the_losses_are_those_of_the_undisturbed_run() -> None:
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  equal at all 40 steps") == 2


def test_too_few_steps_are_refused() -> None:
    command = [sys.executable, str(DEMO), "--steps", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--steps must be at least 35" in done.stderr
