"""P14: an exception in a step of an unmodified Megatron-LM, until both ranks are in `pretrain` again, for each tree.

    python tests/benchmarks/megatron_lm.py FOLDER [--also FOLDER] [--restarts N]

FOLDER has checkouts of Megatron-LM, one below the other; `--also` names a folder with packages that they import. The
training is that of `tests/e2e/megatron/test_megatron_lm.py`: TP=2 on CPU over gloo, a checkpoint after each step. A
restart counts from the injector's stamp to the slower rank.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from launch import become_subreaper
from report import machine_lines, shown_values

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.harness.megatron.job import MegatronLMJob
from tests.harness.megatron.plan import Plan
from tests.harness.process.job import Template

STEPS_BETWEEN = 2
"""Steps that each iteration completes; the third fails."""
LIMIT = 240.0
HEAD = "| tree | restarts | fault to `pretrain` | fault to `initialize_megatron` | goal |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Times:
    """Milliseconds from the fault to the slower rank's entry, for each restart of one tree."""

    pretrain: list[float]
    initialize: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="with checkouts of Megatron-LM")
    parser.add_argument("--also", type=pathlib.Path, action="append", default=[], help="packages that they import")
    parser.add_argument("--restarts", type=int, default=8, help="of each tree (default: 8)")
    given = parser.parse_args()
    trees = sorted(script.parent for script in given.folder.glob("*/pretrain_gpt.py"))
    if not trees:
        parser.error(f"no folder in {given.folder} has a pretrain_gpt.py")
    become_subreaper()
    template = Template()
    try:
        print(HEAD)
        for tree in trees:
            print(row(tree.name, measured(template, [tree, *given.also], given.restarts), given.restarts), flush=True)
    finally:
        template.close()
    print("\n".join(machine_lines(None)))


def measured(template: Template, path: Sequence[pathlib.Path], restarts: int) -> Times:
    """Runs one job of so many restarts."""
    with tempfile.TemporaryDirectory() as folder:
        job = MegatronLMJob(template, pathlib.Path(folder), Plan(), world=2)
        steps, calls = STEPS_BETWEEN * (restarts + 1), range(3, 3 * (restarts + 1), 3)
        words = ("--inprocess-restart", "--train-iters", str(steps), "--save-interval", "1")
        faults = ",".join(f"1:{call}=exception" for call in calls)
        try:
            job.train(":".join(map(str, path)), *words, faults=faults).finish(LIMIT)
            return times_of(job)
        finally:
            template.sweep()
            job.clear()


def times_of(job: MegatronLMJob) -> Times:
    """Returns the times between each fault and what both ranks have recorded of the iteration after it."""
    injections = sorted(line["at"] for line in job.lines("fault_injected"))

    def taken(what: str) -> list[float]:
        numbers = range(1, len(injections) + 1)
        entries = [[line["at"] for line in job.lines(what, iteration=number)] for number in numbers]
        both = [(at, max(each)) for at, each in zip(injections, entries, strict=True) if len(each) == job.world]
        return [(entered - injected) * 1e3 for injected, entered in both]

    return Times(taken("pretrain"), taken("enter"))


def row(tree: str, times: Times, restarts: int) -> str:
    """Writes one tree's row."""
    shown = (shown_values(values, "ms") for values in (times.pretrain, times.initialize))
    return f"| {tree} | {len(times.pretrain)} of {restarts} | {' | '.join(shown)} | <= 150 ms |"


if __name__ == "__main__":
    main()
