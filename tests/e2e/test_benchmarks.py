"""The benchmarks run to their ends in their smallest forms and have a sample of each figure; no figure is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 240


def run_benchmark(name: str, *options: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NVRX_")}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / folder) for folder in ("", "integrations", "launcher"))
    command = [sys.executable, str(ROOT / "tests" / "benchmarks" / name), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_calls_of_four_ranks() -> None:
    told = run_benchmark("bench.py", "--only", "P6,P12", "--quick")
    rows = [line for line in told.splitlines() if line.startswith("| P")]
    assert {row.split("|")[1].strip() for row in rows} == {"P6", "P12"}
    assert "n/a" not in told, told


def test_a_fault_told_to_many_ranks() -> None:
    figures = json.loads(run_benchmark("scale.py", "--ranks", "32", "--rounds", "1").splitlines()[-1])
    assert {"p10", "p10.event", "p10.decision", "p10.store", "p10.own", "p10.all", "p10.first", "p10.lease"} == set(
        figures
    )
    assert all(len(samples) == 1 for samples in figures.values())


def test_a_tree_of_many_ranks() -> None:
    assert json.loads(run_benchmark("tree.py", "--ranks", "64", "--calls", "2"))


def test_rank_monitors() -> None:
    told = run_benchmark("monitors.py", "--reps", "1")
    assert "| P7 |" in told
    assert "n/a" not in told, told
