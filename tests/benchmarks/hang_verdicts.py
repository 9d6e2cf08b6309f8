"""Hangs (P17): from the soft timeout to the line that names rank and place, and how often they are right.

    python tests/benchmarks/hang_verdicts.py [--hangs 40] [--shapes lock holds_gil ...] [--soft 0.5]

Four ranks hang in one shape after another, and restart; the shapes are those of `tests/process/test_hang_verdicts.py`.
The time runs from the moment at which the timeout of the rank that is reported first has expired.

    python tests/benchmarks/hang_verdicts.py --monitors [--hangs 24] [--shapes lock early ...]

The same under rank monitors: two ranks, each under a launcher of its own, with the shapes of
`tests/process/test_hang_verdicts_of_monitors.py` and a heartbeat timeout of 1.5 s.

    python tests/benchmarks/hang_verdicts.py --nodes 1000 [--ranks-per-node 8] [--hangs 5]

What one verdict under rank monitors costs the store and the coordinator's launcher, for a job of so many nodes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import re
import statistics
import sys
import tempfile
from contextlib import closing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from hang_crowd import measure
from scale import cpu_of

from nvrx_core.process.children import become_subreaper
from tests.harness.process.job import Job, Template
from tests.harness.process.launch import Launch, events_of, rendezvous_options
from tests.harness.process.workers.hang_shapes import SHAPES, WORLD
from tests.harness.process.workers.plan import Plan

MODULE = "tests.harness.process.workers.hang_shapes"
MONITORS = ("lock", "early", "stopped", "holds_gil", "loader", "in_section", "new_group", "subgroup", "alike")
TIMEOUT = 1.5
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
    tell("soft timeout", names, seconds, named=named, right=right)


def tell(what: str, names: list[str], seconds: list[float], *, named: int, right: int) -> None:
    worst = max(seconds) if len(seconds) < 100 else statistics.quantiles(seconds, n=100)[-1]
    print(f"{named} lines of {len(names)} hangs, the right ranks in {right}")
    print(f"| P17 | {what} to the line | {statistics.median(seconds) * 1e3:.0f} ms, p99 {worst * 1e3:.0f} ms |")


def play_monitors(names: list[str]) -> None:
    options = (
        *rendezvous_options(), "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", str(len(names)),
        "--ft-initial-rank-heartbeat-timeout", "60", "--ft-rank-heartbeat-timeout", str(TIMEOUT),
        "--ft-rank-section-timeouts", f"step:{TIMEOUT}",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place, closing(Template()) as template:
        folder = pathlib.Path(place)
        jobs = [
            Launch(folder, ",".join(names), *options, worker="hangs_of_monitors.py", template=template)
            for _ in range(2)
        ]
        for job in jobs:
            job.finish(60.0 + 30 * len(names))
            job.close()
        report_monitors(folder, names)


def report_monitors(folder: pathlib.Path, names: list[str]) -> None:
    """Report the time to the line of the launcher that judges; the event of a hung rank says since when."""
    seconds, right, named = list[float](), 0, 0
    for cycle, name in enumerate(names):
        hung, verdicts = (
            [each for each in events_of(folder, event) if each["iteration"] == cycle]
            for event in ("rank_hung", "hang_verdict")
        )
        if not hung or len(verdicts) != 1:
            print(f"{name}: {len(verdicts)} lines")
            continue
        named += 1
        if verdicts[0]["ranks"] == ([] if name == "alike" else [1]):
            right += 1
        else:
            print(f"{name}: {verdicts[0]['sentence']}")
        overdue = re.search(r"for ([\d.]+) s \(timeout ([\d.]+) s\)", hung[0]["reason"])
        assert overdue is not None
        expired = hung[0]["monotonic"] - float(overdue[1]) + float(overdue[2])
        seconds.append(verdicts[-1]["monotonic"] - expired)
    tell("rank monitor's timeout", names, seconds, named=named, right=right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hangs", type=int, default=40, help="how many (default: 40)")
    parser.add_argument("--shapes", nargs="+", default=[], metavar="SHAPE")
    parser.add_argument("--soft", type=float, default=0.5, help="soft timeout in seconds (default: 0.5)")
    parser.add_argument("--monitors", action="store_true", help="under launchers and rank monitors")
    parser.add_argument("--nodes", type=int, help="play the launchers of so many nodes")
    parser.add_argument("--ranks-per-node", type=int, default=8, help="with --nodes (default: 8)")
    options = parser.parse_args()
    if options.nodes:
        measure(options.nodes, options.ranks_per_node, options.hangs, cpu_of)
        return
    become_subreaper()  # the ranks are forked by a template
    shapes = list(SHAPES) if options.shapes == ["all"] else options.shapes
    hangs = itertools.islice(itertools.cycle(shapes or (MONITORS if options.monitors else DEFAULT)), options.hangs)
    if options.monitors:
        play_monitors(list(hangs))
    else:
        play(list(hangs), options.soft)


if __name__ == "__main__":
    main()
