"""Hangs (P17): from the soft timeout to the line that names rank and place, and how often they are right.

    python tests/benchmarks/hang_verdicts.py [--hangs 40] [--shapes lock holds_gil ...] [--soft 0.5]

Four ranks hang in one shape after another, and restart; the shapes are those of `tests/process/test_hang_verdicts.py`.
The time runs from the moment at which the timeout of the rank that is reported first has expired.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
import sys
import tempfile
from contextlib import closing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from nvrx_core.process.children import become_subreaper
from tests.harness.process.job import Job, Template
from tests.harness.process.workers.hang_shapes import SHAPES, WORLD
from tests.harness.process.workers.plan import Plan

MODULE = "tests.harness.process.workers.hang_shapes"
DEFAULT = ("lock", "sleep", "receive", "subgroups", "pipeline", "backward", "two_at_once")


def play(names: list[str], soft: float) -> Job:
    settings = json.dumps({"soft_timeout": soft, "hard_timeout": 15.0})
    with tempfile.TemporaryDirectory() as folder, closing(Template()) as template:
        job = Job(template, pathlib.Path(folder) / "job", Plan(), world=WORLD)
        job.start(MODULE, NVRX_TEST_HANGS=json.dumps(names), NVRX_TEST_SETTINGS=settings)
        job.finish(30 + 8 * len(names))
        report(job, names, soft)
    return job


def report(job: Job, names: list[str], soft: float) -> None:
    seconds, right, named = list[float](), 0, 0
    for iteration, name in enumerate(names):
        faults = [each for each in job.events("fault", iteration=iteration) if each["interruption"] == "SOFT_TIMEOUT"]
        verdicts = job.events("hang_verdict", iteration=iteration)
        if not faults or not verdicts:
            continue
        named += 1
        if tuple(verdicts[0]["ranks"]) == SHAPES[name].culprits:
            right += 1
        else:
            print(f"{name}: {verdicts[0]['sentence']}")
        seconds.append(verdicts[0]["monotonic"] - min(each["occurred"] for each in faults) - soft)
    worst = max(seconds) if len(seconds) < 100 else statistics.quantiles(seconds, n=100)[-1]
    print(f"{named} lines of {len(names)} hangs, the right ranks in {right}")
    print(f"| P17 | soft timeout to the line | {statistics.median(seconds) * 1e3:.0f} ms, p99 {worst * 1e3:.0f} ms |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hangs", type=int, default=40, help="how many (default: 40)")
    parser.add_argument("--shapes", nargs="+", default=list(DEFAULT), choices=[*SHAPES, "all"], metavar="SHAPE")
    parser.add_argument("--soft", type=float, default=0.5, help="soft timeout in seconds (default: 0.5)")
    options = parser.parse_args()
    become_subreaper()  # the ranks are forked by a template
    shapes = list(SHAPES) if options.shapes == ["all"] else options.shapes
    play(list(itertools.islice(itertools.cycle(shapes), options.hangs)), options.soft)


if __name__ == "__main__":
    main()
