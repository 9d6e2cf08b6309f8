"""P13: an exception in the middle of an epoch of a Lightning training, until both ranks have done their next step.

    python tests/benchmarks/lightning_restart.py [--jobs N]

The training is that of `examples/lightning/demo.py`: DDP over gloo, from the newest checkpoint on, under ft_launcher.
"""

from __future__ import annotations

import argparse
import io
import pathlib
import sys
import tempfile

from report import machine_lines, shown_values

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "lightning"))

from demo import run
from demo_parts.terminal import Terminal

STEPS, FAULTS = 240, {str(step): [step // 30 % 2, "exception"] for step in range(35, 240, 30)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=3, help=f"each with {len(FAULTS)} exceptions (default: 3)")
    jobs = parser.parse_args().jobs
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(jobs):
            history = run(pathlib.Path(folder, str(number)), STEPS, FAULTS, Terminal(io.StringIO()))
            took += [each.seconds * 1e3 for each in history.recoveries]
    print("\n".join(machine_lines(None)))
    print("\n| # | what | nvrx | goal |\n|---|---|---|---|")
    what = "exception in a Lightning epoch to the next step on both ranks"
    print(f"| P13 | {what} | {shown_values(took, 'ms')} | <= 300 ms |")
    print(f"{len(took)} of {jobs * len(FAULTS)} exceptions were followed by a restart")


if __name__ == "__main__":
    main()
