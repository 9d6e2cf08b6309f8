"""Rank monitors, alone or beside NVRx 0.4.1 in one run: how late a hang is noticed, and what heartbeats cost.

    python tests/benchmarks/monitors.py [--peer PYTHON] [--reps N]

The columns take turns. A hang is noticed when the rank is dead: its monitor sends SIGKILL.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from report import machine_lines, shown_values

RANK = str(pathlib.Path(__file__).with_name("monitored_rank.py"))
TIMEOUT = 1.0
SECTIONS = {"rank_section_timeouts": {"step": TIMEOUT}}


def run(python: str, whose: str, config: dict[str, object], do: str) -> dict[str, float]:
    """Runs a rank; returns what it has measured, or how late its hang was noticed."""
    command = [python, RANK, whose, json.dumps(config), do]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as rank:
        assert rank.stdout is not None
        try:
            found: dict[str, float] = json.loads(rank.stdout.readline())
            return {"late": death_of(rank.pid) - found["hang"] - TIMEOUT} if do == "hang" else found
        finally:
            os.killpg(rank.pid, signal.SIGKILL)  # 0.4.1 leaves its monitor processes behind


def death_of(pid: int) -> float:
    """Waits for the end of a process; returns when it was noticed."""
    gone = os.pidfd_open(pid)
    select.select([gone], [], [], 30)
    noticed = time.monotonic()
    os.close(gone)
    return noticed


def columns(peer: str | None) -> Iterator[tuple[str, str, str, dict[str, object]]]:
    """Yields name, interpreter, whose, and settings."""
    yield "nvrx", sys.executable, "ours", SECTIONS
    if peer:
        yield "peer, defaults", peer, "peer", SECTIONS
        yield "peer, fastest", peer, "peer", {**SECTIONS, "workload_check_interval": 0.01}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter of an environment with nvidia-resiliency-ext")
    parser.add_argument("--reps", type=int, default=6, help="samples of each figure (default: 6)")
    options = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.reps):
        for name, python, whose, config in columns(options.peer):
            for do in ("calls", "step", "hang"):
                for key, value in run(python, whose, config, do).items():
                    results.setdefault(name, {}).setdefault(key if do != "step" else f"step {key}", []).append(value)
    print("\n".join(machine_lines(options.peer)))
    print_table(results)


ROWS = (
    ("P6", "section pair, back to back", "pair", 1.0, "us"),
    ("P6", "heartbeat, back to back", "heartbeat", 1.0, "us"),
    ("-", "step of 1 ms of work: with a heartbeat", "step heartbeat", 1e3, "ms"),
    ("-", "the same, with a section pair", "step pair", 1e3, "ms"),
    ("-", "the same, with nothing", "step bare", 1e3, "ms"),
    ("P7", "hang noticed after its timeout", "late", 1e3, "ms"),
    ("P11", "private memory of all processes of a monitor", "private", 1e-6, "MB"),
    ("P11", "start of a monitor", "start", 1e3, "ms"),
)


def print_table(results: dict[str, dict[str, list[float]]]) -> None:
    """Prints medians, least and most."""
    print("\n| # | what | " + " | ".join(results) + " |\n|---|---|" + "---|" * len(results))
    for key, text, name, factor, unit in ROWS:
        cells = [shown_values([value * factor for value in column.get(name, [])], unit) for column in results.values()]
        print(f"| {key} | {text} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
