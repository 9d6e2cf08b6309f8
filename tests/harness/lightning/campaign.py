"""Fits with faults at drawn instants, beside the same fits without: what they may differ in, and what they may not.

    python -m tests.harness.lightning.campaign --faults 1000
    python -m tests.harness.lightning.campaign --variant sharded --seed 17 --fits 1 --keep /tmp/there

prints each violation with the variant and the seed with which it is drawn again (instants differ by the load of the
machine), and a figure at the end.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import itertools
import json
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.lightning.account import how_it_ended, rows_of, trained_on, what_counted, what_is_shown
from tests.harness.lightning.setting import Setting
from tests.harness.process.history import history
from tests.harness.process.job import Job, Template
from tests.harness.process.workers.plan import Plan

__all__ = ["VARIANTS", "Campaign", "Variant"]

WORKER = "tests.harness.lightning.workers.drawn_faults"
FALLEN_BACK = re.compile("this restart does not go on from memory, but from a checkpoint: (.*)")
LOST_STEP = "no rank has"
NOT_COPIED = "the state of the Trainer cannot be copied: Injected"
"""The instant was in the copy, which takes exceptions for those of a `state_dict`."""
NOT_LOADED = "cannot be loaded, an older one is used"
"""The instant was in the load of a checkpoint."""
NO_RANDOM_STATES = "this rank has no random states for the checkpoint"
"""It has taken the place of a lost one, and a checkpoint was loaded: dropout, and with it each bit, may differ."""
LIMIT = 150
Row = dict[str, str]
PR_SET_CHILD_SUBREAPER = 36


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
class Campaign:
    """Runs fits, and counts what has happened.

    Args:
        template: of the ranks.
        folder: for the files of the fits; those of a fit without a violation are removed.
    """

    template: Template
    folder: Path
    faults: int = 0
    fits: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    aborted: int = 0  # at the exit of a process
    _twins: dict[str, Job] = field(default_factory=dict)

    def run(self, name: str, seed: int, faults: int) -> list[str]:
        """Run one fit.

        Returns:
            Its violations.
        """
        variant = VARIANTS[name]
        plan = {"seed": seed, "faults": faults, "kinds": variant.kinds, "least": variant.least}
        job = self._job(f"{name}-{seed}", variant.world)
        found: list[str] = []
        try:
            job.start(WORKER, **variant.setting.written(), NVRX_TEST_DRAWN=json.dumps(plan)).finish(LIMIT)
        except AssertionError as error:
            found = [f"{error}\n{history(job)}"]
        injected = job.lines("fault")
        fallen = [reason for rank in range(variant.world) for reason in FALLEN_BACK.findall(job.errors(rank))]
        self.fits, self.faults = self.fits + 1, self.faults + len(injected)
        self.aborted += sum(code == -signal.SIGABRT for code in job.codes.values())
        self.kinds.update(line["kind"] for line in injected)
        self.fallbacks.update(re.sub(r"\d+", "N", reason) for reason in fallen)
        found = found or list(violations(variant, job, self._twin(name), fallen))
        self.violations += [f"{name}, seed {seed}: {each} ({job.directory})" for each in found]
        if not found:
            shutil.rmtree(job.directory)
        return found

    def _job(self, name: str, world: int) -> Job:
        return Job(self.template, self.folder / name.replace(" ", "-").replace(",", ""), Plan(), world=world)

    def _twin(self, name: str) -> Job:
        """Return the same fit under Lightning's own strategy, without faults."""
        if name not in self._twins:
            variant = VARIANTS[name]
            setting = dataclasses.replace(variant.setting, active=0, strategy=variant.setting.plain().strategy)
            job = self._job(f"{name}-twin", variant.setting.active or variant.world)
            self._twins[name] = job.start(WORKER, **setting.written(), NVRX_TEST_DRAWN="{}").finish(LIMIT)
            # Not by their codes: see `violations`.
            assert len(job.lines("fitted", error=None)) == job.world, "".join(map(job.errors, range(job.world)))
        return self._twins[name]

    def figure(self) -> str:
        """Return what has happened, in lines."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        fallbacks = "".join(f"\n  {count} x {reason}" for reason, count in self.fallbacks.most_common())
        return (
            f"{self.faults} faults ({kinds}) in {self.fits} fits, {len(self.violations)} violations; "
            f"{self.aborted} processes aborted; {self.fallbacks.total()} restarts from a checkpoint{fallbacks}"
        )


def violations(variant: Variant, job: Job, twin: Job, fallen: Sequence[str]) -> Iterator[str]:
    """Tell in what a fit with faults differs from its twin, and must not."""
    killed = {line["initial_rank"] for line in job.lines("fault", kind="kill")}
    ended = {line["initial_rank"] for line in job.lines("fitted", error=None)}
    codes = {rank: -signal.SIGKILL if rank in killed else 0 for rank in job.codes}
    # Torch may abort a process at its exit, with threads of groups that still run; without nvrx, too.
    codes |= {rank: code for rank, code in job.codes.items() if code == -signal.SIGABRT and rank in ended}
    if job.codes != codes:
        rank = next(rank for rank, code in job.codes.items() if code != codes[rank])
        yield f"ranks have ended with {job.codes}: {job.errors(rank)[-3000:]}"
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="how many, over all fits")
    parser.add_argument("--fits", type=int, default=1 << 30, help="at most so many fits")
    parser.add_argument("--each", type=int, default=20, help="attempts of a fit that have faults")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS))
    parser.add_argument("--keep", type=Path, default=None, help="a folder for the files of fits with a violation")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="nvrx-campaign-"))
    names = given.variant or list(VARIANTS)
    per_variant: dict[str, int] = defaultdict(int)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the ranks are children of the template
    with closing(Template(Path(__file__).with_name("template.py"))) as template:
        campaign = Campaign(template, folder)
        for number in itertools.count():
            if campaign.faults >= given.faults or campaign.fits >= given.fits:
                break
            name = names[number % len(names)]
            before = campaign.faults
            found = campaign.run(name, given.seed + number // len(names), given.each)
            per_variant[name] += campaign.faults - before
            print(f"{name}, seed {given.seed + number // len(names)}: {campaign.faults - before} faults", flush=True)
            for each in found:
                print(f"  VIOLATION {each}", flush=True)
    print(dict(per_variant))
    print(campaign.figure())
    return 1 if campaign.violations else 0


if __name__ == "__main__":
    sys.exit(main())
