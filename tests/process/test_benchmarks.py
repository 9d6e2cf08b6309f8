"""The benchmark of a restart at scale drives the shipped machines and operations: it has to follow them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCALE = Path(__file__).resolve().parents[1] / "benchmarks" / "scale.py"


def test_p10_measures_each_stage_of_a_restart() -> None:
    command = [sys.executable, str(SCALE), "--ranks", "8", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    samples = json.loads(done.stdout)
    assert {name: len(values) for name, values in samples.items()} == {
        "p10": 2, "p10.event": 2, "p10.decision": 2, "p10.store": 2, "p10.own": 2, "p10.all": 2, "p10.first": 1,
        "p10.lease": 1,
    }  # fmt: skip
    assert all(value > 0 for name, values in samples.items() for value in values if name != "p10.decision")
