"""Fits with faults at drawn instants, beside the same fits without: what they may differ in, and what they may not.

    python -m tests.harness.lightning.campaign --faults 1000
    python -m tests.harness.lightning.campaign --variant sharded --seed 17 --jobs 1 --keep /tmp/there

prints each violation with the variant and the seed with which it is drawn again (instants differ by the load of the
machine), and a figure at the end.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness import instants
from tests.harness.lightning.account import how_it_ended, rows_of, trained_on, what_counted, what_is_shown
from tests.harness.lightning.setting import Setting
from tests.harness.process.job import Job

__all__ = ["VARIANTS", "Campaign", "Variant"]

FALLEN_BACK = re.compile("this restart does not go on from memory, but from a checkpoint: (.*)")
LOST_STEP = "no rank has"
NOT_COPIED = "the state of the Trainer cannot be copied: Injected"
"""The instant was in the copy, which takes exceptions for those of a `state_dict`."""
NOT_LOADED = "cannot be loaded, an older one is used"
"""The instant was in the load of a checkpoint."""
NO_RANDOM_STATES = "this rank has no random states for the checkpoint"
"""It has taken the place of a lost one, and a checkpoint was loaded: dropout, and with it each bit, may differ."""
Row = dict[str, str]


@dataclass(frozen=True)
class Variant:
    """A kind of training, and the faults that it has.

    Attributes:
        setting: of the fit.
        world: the ranks.
        kinds: of the faults.
        least: no rank is killed with so few left.
        repeats: the batches that a restart may do again: those since the last optimizer step.
        falls_back: what a line may say of a restart that does not go on from memory.
        whole: the number of ranks that train stays as it is.
    """

    setting: Setting
    world: int = 2
    kinds: tuple[str, ...] = ("exception", "exception", "exception", "exception", "hang")
    least: int = 1
    repeats: int = 1
    falls_back: tuple[str, ...] = ()
    whole: bool = True

    @property
    def kills(self) -> bool:
        return "kill" in self.kinds


OPTIONS = {"resume": "memory", "soft_timeout": 1.5, "hard_timeout": 30, "wrapper": {"no_progress_limit": None}}
DDP = Setting(
    checkpoint={"every_n_train_steps": 4, "save_top_k": -1}, options=OPTIONS, dropout=0.2, batch_norm=True,
    validate=True, epoch_metrics=True, loggers=("csv",), trainer={"max_epochs": 4},
)  # fmt: skip
FIXED = {**OPTIONS, "find_unused_parameters": True}
"""With more than two ranks, sums depend on DDP's buckets, which it rebuilds after the first batch of an attempt."""
SHARDED = dataclasses.replace(DDP, strategy="InProcessModelParallelStrategy", batch_norm=False)
KILLS = ("exception", "kill", "kill")
LOST_IN_HOOKS = "a rank was lost before the batch"
VARIANTS = {
    "ddp": Variant(DDP),
    "three ranks": Variant(dataclasses.replace(DDP, samples=120, options=FIXED), world=3),
    "sharded": Variant(SHARDED, falls_back=(LOST_STEP,)),
    "accumulation": Variant(
        dataclasses.replace(DDP, trainer={"max_epochs": 4, "accumulate_grad_batches": 3, "val_check_interval": 4}),
        repeats=3,
    ),
    "amp": Variant(dataclasses.replace(DDP, amp=True)),
    "a loader with a state": Variant(
        dataclasses.replace(DDP, data="continued", trainer={"max_epochs": 4, "val_check_interval": 5})
    ),
    "persistent workers": Variant(
        dataclasses.replace(DDP, warmup=True, loader={"num_workers": 2, "persistent_workers": True})
    ),
    "plateau": Variant(dataclasses.replace(DDP, plateau="val_loss", best=True, early_stopping=True)),
    "reserves": Variant(
        dataclasses.replace(DDP, active=2, epoch_metrics=False), world=5, kinds=KILLS, least=2,
        falls_back=(LOST_IN_HOOKS, LOST_STEP),
    ),
    "sharded, with reserves": Variant(
        dataclasses.replace(SHARDED, active=2, epoch_metrics=False), world=4, kinds=KILLS, least=2,
        falls_back=(LOST_IN_HOOKS, LOST_STEP),
    ),
    "fewer ranks": Variant(
        dataclasses.replace(DDP, batch_norm=False, samples=120, epoch_metrics=False), world=4, kinds=KILLS, least=2,
        falls_back=(LOST_IN_HOOKS, LOST_STEP), whole=False,
    ),
}  # fmt: skip


@dataclass
class Campaign(instants.Campaign):
    """Fits from memory."""

    VARIANTS = VARIANTS
    TEMPLATE = Path(__file__).with_name("template.py")
    WORKER = "tests.harness.lightning.workers.drawn_faults"
    LIMIT = 150
    fallbacks: Counter[str] = field(default_factory=Counter)

    def environment(self, name: str, seed: int, faults: int) -> Mapping[str, str]:
        variant = VARIANTS[name]
        plan = {"seed": seed, "faults": faults, "kinds": variant.kinds, "least": variant.least}
        return {**variant.setting.written(), "NVRX_TEST_DRAWN": json.dumps(plan)}

    def count(self, job: Job) -> None:
        self.counts["processes aborted at their exit"] += sum(code == -signal.SIGABRT for code in job.codes.values())
        self.fallbacks.update(re.sub(r"\d+", "N", reason) for reason in fallen_back(job))

    def examine(self, name: str, job: Job, faults: int) -> Iterator[str]:
        """Compare with the same fit under Lightning's own strategy, without faults."""
        variant = VARIANTS[name]
        setting = dataclasses.replace(variant.setting, active=0, strategy=variant.setting.plain().strategy)
        twin = self.twin(name, variant.setting.active or variant.world, setting.written())
        # Not by their codes: see `violations`.
        assert len(twin.lines("fitted", error=None)) == twin.world, "".join(map(twin.errors, range(twin.world)))
        yield from violations(variant, job, twin, fallen_back(job))

    def figure(self) -> str:
        fallbacks = "".join(f"\n  {count} x {reason}" for reason, count in self.fallbacks.most_common())
        return f"{super().figure()}; {self.fallbacks.total()} restarts from a checkpoint{fallbacks}"


def fallen_back(job: Job) -> list[str]:
    """Return why restarts have not gone on from memory."""
    return [reason for rank in range(job.world) for reason in FALLEN_BACK.findall(job.errors(rank))]


def violations(variant: Variant, job: Job, twin: Job, fallen: Sequence[str]) -> Iterator[str]:
    """Tell in what a fit with faults differs from its twin, and must not."""
    killed = {line["initial_rank"] for line in job.lines("fault", kind="kill")}
    ended = {line["initial_rank"] for line in job.lines("fitted", error=None)}
    codes = {rank: -signal.SIGKILL if rank in killed else 0 for rank in job.codes}
    # Torch may abort a process at its exit, with threads of groups that still run; without nvrx, too.
    codes |= {rank: code for rank, code in job.codes.items() if code == -signal.SIGABRT and rank in ended}
    if told := instants.ended_otherwise(job, codes):
        yield told
        return
    for reason in fallen:
        if not any(known in reason for known in (NOT_COPIED, *variant.falls_back)):
            yield f"a restart has fallen back: {reason}"
    yield from _steps(variant, job, falls_back=bool(fallen))
    if variant.whole:
        yield from _differences(variant, job, twin, falls_back=bool(fallen))
    else:
        if len({weights for _, _, weights, _ in how_it_ended(job).values()}) != 1:
            yield "the weights of the ranks differ"
        for epoch, seen in trained_on(job).items():
            if len(seen) != variant.setting.samples:
                yield f"epoch {epoch} has seen {len(seen)} samples"


def _steps(variant: Variant, job: Job, *, falls_back: bool) -> Iterator[str]:
    """Tell of optimizer steps and batches that were done again."""
    if falls_back:
        return
    for rank in range(variant.world):
        done = [line["step"] for line in job.lines("stepped", initial_rank=rank)]
        if done != sorted(done):
            yield f"rank {rank} has taken optimizer steps back: {done}"
    seen: dict[tuple[int, int, int], int] = {}
    again: Counter[tuple[int, int]] = Counter()
    for line in job.lines("seen"):
        batch = line["rank"], line["epoch"], line["batch"]
        if batch in seen:
            again[line["rank"], line["attempt"]] += 1
        seen[batch] = line["attempt"]
    for (rank, attempt), count in again.items():
        if variant.whole and count > variant.repeats:
            yield f"attempt {attempt} repeats {count} batches on rank {rank}"


def _differences(variant: Variant, job: Job, twin: Job, *, falls_back: bool) -> Iterator[str]:
    """Tell what is not as in the twin."""
    ends = how_it_ended(twin)
    rows, expected = [row for row in rows_of(job) if "nvrx/restarts" not in row], rows_of(twin)
    ended = {rank: end for rank, end in how_it_ended(job).items() if rank in ends}
    step: tuple[str, ...] = ("rates", "optimizer")
    if variant.kills and falls_back and any(NO_RANDOM_STATES in job.errors(rank) for rank in job.codes):
        if len({end[2] for end in ended.values()}) != len({end[2] for end in ends.values()}):
            yield "the weights of the ranks differ"
        ended, ends = ({rank: (*end[:2], "", end[3]) for rank, end in each.items()} for each in (ended, ends))
        rows, expected = (
            [{name: value if name in ("step", "epoch") else "" for name, value in row.items()} for row in each]
            for each in (rows, expected)
        )
        step = ("rates",)
    if variant.kills:
        rows, expected = _without_lost_rows(rows, expected, len(job.lines("fault", kind="kill")))
    pairs: dict[str, tuple[Any, Any]] = {
        "the end": (ended, ends),
        "the samples of an epoch": (trained_on(job), trained_on(twin)),
        "the samples of a batch": (_samples(job), _samples(twin)),
        "the rows of the logger": (rows, expected),
        "the rates or the optimizer": (_counted(job, *step), _counted(twin, *step)),
    }
    if not falls_back and not variant.kills:  # else the callback has the state of another rank
        counts = "batches", "mean", "losses"
        pairs["the callback"] = _counted(job, *counts), _counted(twin, *counts)
    if not any(NOT_LOADED in job.errors(rank) for rank in job.codes):  # else those after an older one are saved again
        pairs["the checkpoints"] = _saved(job), _saved(twin)
    if not variant.kills:  # a lost rank's own part of the metrics is lost
        pairs["what was counted"] = what_counted(job), what_counted(twin)
        pairs["what is shown"] = what_is_shown(job), what_is_shown(twin)
    for what, (with_faults, without) in pairs.items():
        if with_faults != without:
            yield f"{what}: {_first(with_faults, without)}"


def _without_lost_rows(rows: list[Row], expected: list[Row], losses: int) -> tuple[list[Row], list[Row]]:
    """Leave out the rows that a rank has not written before it was killed: it alone has had the loss of its batch."""
    for row in list(expected):
        if losses and row not in rows and "loss" in row:
            expected, losses = [each for each in expected if each != row], losses - 1
    return rows, expected


def _first(one: Any, other: Any) -> str:
    """Return where two values differ first."""
    if isinstance(one, dict) and isinstance(other, dict):
        key = next(key for key in [*other, *one] if one.get(key, ...) != other.get(key, ...))
        return f"{key}: {_first(one.get(key), other.get(key))}"
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        number, pair = next(
            (number, pair) for number, pair in enumerate(itertools.zip_longest(one, other)) if pair[0] != pair[1]
        )
        return f"[{number}] {_first(*pair)}"
    return f"{one}, without faults {other}"


def _samples(job: Job) -> dict[tuple[int, int, int], list[int]]:
    """Return the samples of each batch of each rank, as it was trained on last."""
    return {(line["rank"], line["epoch"], line["batch"]): line["index"] for line in job.lines("seen")}


def _saved(job: Job) -> list[str]:
    return max(line["saved"] for line in job.lines("fitted"))


def _counted(job: Job, *names: str) -> dict[int, dict[str, Any]]:
    return {line["rank"]: {name: line[name] for name in names} for line in job.lines("counted")}


if __name__ == "__main__":
    sys.exit(instants.main(Campaign, __doc__, each=20))
