"""Trainings from memory with faults at drawn points and instants, beside the same trainings without: the oracle.

    python -m tests.harness.process.live_campaign --faults 1000
    python -m tests.harness.process.live_campaign --variant sharded --seed 17 --jobs 1 --keep /tmp/there

prints each violation with the variant and the seed with which it is drawn again (instants differ by the load of the
machine), and a figure at the end.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness import instants
from tests.harness.process.job import Job, Line

__all__ = ["VARIANTS", "Campaign", "Variant", "resumes"]

STEPS = 3
"""Of a training, for each iteration that has a fault."""
Stamp = tuple[int, int]


@dataclass(frozen=True)
class Variant:
    """A kind of training, and the faults that it has.

    Attributes:
        plan: of the worker, besides the seed and the number of faults.
        world: the ranks that are started.
        whole: the number of ranks that train stays as it is, so that the end is that of the undisturbed run.
    """

    plan: Mapping[str, Any]
    world: int
    whole: bool = True

    @property
    def kills(self) -> bool:
        return "kill" in self.plan["kinds"]

    @property
    def trains(self) -> int:
        """How many ranks train at the beginning."""
        return int(self.plan.get("active") or self.world)


MOSTLY = ["exception"] * 15 + ["hang"]
KILLS = ["exception"] * 6 + ["kill"] * 3
VARIANTS = {
    "replicas": Variant({"kinds": MOSTLY}, world=3),
    "sharded": Variant({"kind": "shards", "kinds": MOSTLY}, world=2),
    "mixed": Variant({"kind": "mixed", "kinds": MOSTLY}, world=4),
    "reserves": Variant({"kinds": [*KILLS, "hang"], "active": 3, "least": 3}, world=7),
    "mixed, with reserves": Variant({"kind": "mixed", "kinds": KILLS, "active": 4, "least": 4}, world=7),
    "sharded, with reserves": Variant({"kind": "shards", "kinds": KILLS, "active": 2, "least": 2}, world=5),
    "fewer replicas": Variant({"kinds": KILLS, "least": 2}, world=5, whole=False),
    "mixed, with fewer replicas": Variant(
        {"kind": "mixed", "kinds": KILLS, "teams": True, "least": 2}, world=6, whole=False
    ),
}


@dataclass
class Campaign(instants.Campaign):
    """Trainings from memory."""

    VARIANTS = VARIANTS
    TEMPLATE = Path(__file__).with_name("live_template.py")
    WORKER = "tests.harness.process.workers.live_faults"
    points: Counter[str] = field(default_factory=Counter)

    def environment(self, name: str, seed: int, faults: int) -> Mapping[str, str]:
        plan = {**VARIANTS[name].plan, "seed": f"{name} {seed}", "faults": faults, "steps": STEPS * faults}
        return {"NVRX_TEST_DRAWN": json.dumps(plan)}

    def count(self, job: Job) -> None:
        self.points.update(line["where"] for line in job.lines("fault") if " s after " not in line["where"])
        by_iteration = {line["iteration"]: line for line in job.lines("resumed")}
        self.counts["resumes"] += sum(line["step"] is not None for line in by_iteration.values())
        self.counts["resumes without an exchange"] += sum(
            line["step"] is not None and not line["exchanged"] for line in by_iteration.values()
        )
        self.counts["begun anew"] += sum(
            line["step"] is None and line["iteration"] > 0 for line in by_iteration.values()
        )
        self.counts["local states that nobody had"] += sum(len(line["fresh"]) for line in by_iteration.values())

    def examine(self, name: str, job: Job, faults: int) -> Iterator[str]:
        variant, steps, twin = VARIANTS[name], STEPS * faults, None
        if variant.whole:
            plan = {"kind": variant.plan.get("kind", "replicas"), "steps": steps}
            twin = self.twin(f"{name}-{steps}", variant.trains, {"NVRX_TEST_DRAWN": json.dumps(plan)})
            assert set(twin.codes.values()) == {0}, "".join(map(twin.errors, range(twin.world)))
        yield from violations(variant, job, twin, steps)

    def figure(self) -> str:
        return f"{super().figure()}\nat {len(self.points)} points: {dict(self.points.most_common())}"


def violations(variant: Variant, job: Job, twin: Job | None, steps: int) -> Iterator[str]:
    """Tell in what a training with faults is not what it has to be."""
    killed = {line["initial_rank"] for line in job.lines("fault", kind="kill")}
    codes = {rank: -signal.SIGKILL if rank in killed else 0 for rank in job.codes}
    if variant.plan.get("teams"):  # the others of a replica that has lost a rank are discarded
        discarded = {rank for rank in codes if {rank, rank ^ 1} & killed} - killed
        codes |= {
            rank: code for rank, code in job.codes.items() if rank in discarded and "RankDiscarded" in job.errors(rank)
        }
    if told := instants.ended_otherwise(job, codes):
        yield told
        return
    for line in ("was changed outside of commit()", "communicates with other ranks", "which have the same shard"):
        for rank in job.codes:
            if line in job.errors(rank):
                yield f"rank {rank} has said: {line}"
    yield from resumes(job)
    yield from _steps(job, steps)
    ends = {line["rank"]: line for line in job.lines("end")}
    if twin is not None and not any(line["fresh"] for line in job.lines("resumed")):
        for line in twin.lines("end"):
            for what in ("world", "weights", "local", "position", "rate"):
                if (mine := ends.get(line["rank"], {}).get(what)) != line[what]:
                    yield f"the {what} of rank {line['rank']} is {mine} at the end, without faults {line[what]}"
    weights = {
        (line["rank"] % 2 if variant.plan.get("kind") == "mixed" else 0, line["weights"]) for line in ends.values()
    }
    if variant.plan.get("kind") != "shards" and len(weights) != len({shard for shard, _ in weights}):
        yield f"replicas have ended with different weights: {weights}"
    if not ends or {line["world"] for line in ends.values()} != {len(ends)}:
        yield f"ranks {sorted(ends)} have come to the end"


def resumes(job: Job) -> Iterator[str]:
    """Tell of iterations that have not begun where what their ranks have held says, and of state torn by no fault."""
    holds, resumed = _by_iteration(job.lines("holds")), _by_iteration(job.lines("resumed"))
    faults = {(line["initial_rank"], line["iteration"]): bool(line["within"]) for line in job.lines("fault")}
    seen: dict[int, int] = {}
    needed = {tuple(line["needs"]) for lines in resumed.values() for line in lines}
    for iteration in sorted(holds):
        here = holds[iteration]
        for line in here:
            before = seen.get(line["initial_rank"])
            if line["torn"] and not any(
                faults.get((line["initial_rank"], each), False) for each in range(before or 0, iteration)
            ):
                yield f"iteration {iteration}: rank {line['rank']} holds a torn state, without a fault in its step"
            if not line["torn"]:
                seen[line["initial_rank"]] = iteration
        if iteration not in resumed:
            continue
        found = {line["step"] for line in resumed[iteration]}
        if len(found) > 1:
            yield f"iteration {iteration}: ranks have resumed with {found}"
        newest: Stamp | None = max((tuple(each["passed"]) for each in here if each["passed"]), default=None)
        at_newest = [each for each in here if newest is not None and _reaches(each, newest)]
        whole = needed <= {tuple(each["shard"]) for each in at_newest}
        expected = newest[1] + 1 if whole and newest is not None else None
        if found != {expected}:
            yield f"iteration {iteration} has resumed with {found}, not with {expected}: ranks have held {here}"


def _reaches(line: Line, newest: Stamp) -> bool:
    stamps = (line["version"], line["pending"], line["beginning"])
    return not line["torn"] and list(newest) in stamps


def _steps(job: Job, steps: int) -> Iterator[str]:
    """Tell of steps that a process has done twice, or nobody."""
    for rank in range(job.world):
        done: list[int] = []
        for line in sorted(
            [*job.lines("step", initial_rank=rank), *job.lines("resumed", initial_rank=rank)],
            key=lambda line: line["at"],
        ):
            if line["what"] == "resumed":
                done = [] if line["step"] is None else done
                continue
            if done and line["step"] <= done[-1]:
                yield f"process {rank} has done step {line['step']} after {done[-1]}"
            done.append(line["step"])
    if lost := set(range(steps)) - {line["step"] for line in job.lines("step")}:
        yield f"nobody has done the steps {sorted(lost)}"


def _by_iteration(lines: Sequence[Line]) -> dict[int, list[Line]]:
    found: dict[int, list[Line]] = {}
    for line in lines:
        found.setdefault(line["iteration"], []).append(line)
    return found


if __name__ == "__main__":
    sys.exit(instants.main(Campaign, __doc__, each=40))
