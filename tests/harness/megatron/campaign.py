"""Trainings on megatron-core with faults at drawn points and instants, beside the same trainings without.

    python -m tests.harness.megatron.campaign --faults 1000
    python -m tests.harness.megatron.campaign --variant "tensor parallel" --seed 17 --jobs 1 --keep /tmp/there

prints each violation with the variant and the seed with which it is drawn again (instants differ by the load of the
machine), and a figure at the end.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness import instants
from tests.harness.megatron.plan import Plan
from tests.harness.process import live_campaign
from tests.harness.process.job import Job

__all__ = ["VARIANTS", "Campaign", "Variant"]

STEPS = 3
"""Of a training, for each iteration that has a fault."""
SWALLOWED = ("cannot be copied: Injected", "cannot be examined: Injected")
"""The instant was in code of a user or of Megatron, whose exceptions mean that nothing can be kept."""
SAME = ("weights", "state", "random", "python", "schedule", "scales", "groups")
NOT_SAID = ("was changed outside of commit()", "communicates with other ranks", "which have the same shard")


@dataclass(frozen=True)
class Variant:
    """A kind of training, and the faults that it has.

    Attributes:
        plan: of the training, besides its length.
        world: the ranks that are started.
        kinds: of the faults.
        active: how many ranks train; the others are spare.
    """

    plan: Mapping[str, Any]
    world: int = 2
    kinds: tuple[str, ...] = ("exception",) * 19 + ("hang",)
    active: int = 2

    @property
    def kills(self) -> bool:
        return "kill" in self.kinds


KILLS = ("exception",) * 4 + ("kill",) * 3
VARIANTS = {
    "tensor parallel": Variant({"tp": 2, "dropout": 0.1}),
    "data parallel": Variant({"dropout": 0.1}),
    "distributed optimizer": Variant({"distributed": True, "precision": "bf16"}),
    "pipeline": Variant({"pp": 2, "precision": "bf16", "dropout": 0.1}),
    "loss scaling": Variant({"tp": 2, "precision": "fp16", "dropout": 0.1}),
    "data parallel, with spare ranks": Variant({"dropout": 0.1}, world=6, kinds=KILLS),
    "tensor parallel, with spare ranks": Variant({"tp": 2, "dropout": 0.1}, world=5, kinds=KILLS),
    "distributed optimizer, with spare ranks": Variant({"distributed": True}, world=5, kinds=KILLS),
}


@dataclass
class Campaign(instants.Campaign):
    """Trainings on megatron-core."""

    VARIANTS = VARIANTS
    TEMPLATE = Path(__file__).with_name("template.py")
    WORKER = "tests.harness.megatron.drawn_faults"
    LIMIT = 240
    points: Counter[str] = field(default_factory=Counter)

    def environment(self, name: str, seed: int, faults: int) -> Mapping[str, str]:
        variant = VARIANTS[name]
        drawn = {"seed": f"{name} {seed}", "faults": faults, "kinds": variant.kinds, "least": variant.active}
        return {**self._training(name, variant.world, faults), "NVRX_TEST_DRAWN": json.dumps(drawn)}

    def _training(self, name: str, world: int, faults: int) -> dict[str, str]:
        variant = VARIANTS[name]
        plan = Plan(
            **variant.plan, steps=STEPS * faults, soft=4.0, hard=30.0,
            active=variant.active if world > variant.active else None,
        )  # fmt: skip
        return {**plan.environment(), "LOCAL_WORLD_SIZE": str(world), "TORCH_CPP_LOG_LEVEL": "error"}

    def count(self, job: Job) -> None:
        self.points.update(line["where"] for line in job.lines("fault") if " s after " not in line["where"])
        by_iteration = {line["iteration"]: line["step"] for line in job.lines("resumed") if line["iteration"]}
        self.counts["resumes"] += sum(step is not None for step in by_iteration.values())
        self.counts["begun anew"] += sum(step is None for step in by_iteration.values())

    def examine(self, name: str, job: Job, faults: int) -> Iterator[str]:
        trains = VARIANTS[name].active
        twin = self.twin(f"{name}-{faults}", trains, self._training(name, trains, faults))
        assert set(twin.codes.values()) == {0}, "".join(map(twin.errors, range(trains)))
        yield from violations(job, twin)

    def figure(self) -> str:
        return f"{super().figure()}\nat {len(self.points)} points: {dict(self.points.most_common())}"


def violations(job: Job, twin: Job) -> Iterator[str]:
    """Tell in what a training with faults is not what it has to be."""
    killed = {line["initial_rank"] for line in job.lines("fault", kind="kill")}
    codes = {rank: -signal.SIGKILL if rank in killed else 0 for rank in job.codes}
    if told := instants.ended_otherwise(job, codes):
        yield told
        return
    said = "".join(job.errors(rank) for rank in job.codes)
    yield from (f"a rank has said: {line}" for line in NOT_SAID if line in said)
    if not any(line in said for line in SWALLOWED):
        yield from (
            f"iteration {line['iteration']} keeps nothing: {line['refusal']}"
            for line in job.lines("resumed") if line["refusal"]
        )  # fmt: skip
        yield from live_campaign.resumes(job)
        yield from _repeated(job)
    ends, expected = ({line["rank"]: line for line in each.lines("end")} for each in (job, twin))
    if set(ends) != set(expected):
        yield f"ranks {sorted(ends)} have come to the end"
        return
    for rank, line in expected.items():
        for what in SAME:
            if (mine := ends[rank][what]) != line[what]:
                yield f"the {what} of rank {rank} is {mine} at the end, without faults {line[what]}"


def _repeated(job: Job) -> Iterator[str]:
    """Tell of steps that a process has done twice, without having begun anew."""
    for rank in range(job.world):
        last = -1
        lines = [*job.lines("step", initial_rank=rank), *job.lines("resumed", initial_rank=rank)]
        for line in sorted(lines, key=lambda line: line["at"]):
            if line["what"] == "resumed":
                last = -1 if line["step"] is None else last
            elif line["step"] <= last:
                yield f"process {rank} has done step {line['step']} after {last}"
            else:
                last = line["step"]


if __name__ == "__main__":
    sys.exit(instants.main(Campaign, __doc__, each=30))
