"""Where in the memory of its ranks a fit goes on after a fault, or why it needs a checkpoint; pure.

Each rank keeps states of its Trainer: at the vote of the last optimizer step, at the begin of a validation that follows
its batch, and before the next batch. All ranks go on from the last one that all have. A rank that a fault has
interrupted in a hook at the end of the batch has only the first one: then all call these hooks again.
"""

from __future__ import annotations

import enum
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from nvrx_core.inprocess.live.memory import Holding, Incomplete, Shard, Stamp, recover

__all__ = ["NOTHING", "BatchStage", "Choice", "Chosen", "Failure", "Failures", "Kept", "choose"]

NOTHING: Final = "no optimizer step was done before the fault"
Failure = tuple[str, str, str]
"""The type of an exception or the kind of an interruption, the user's line that led to it, and the one that raised."""


class BatchStage(enum.IntEnum):
    """Where in a batch with an optimizer step a state was copied, in order."""

    VOTE = 0
    VALIDATION = 1
    ENDED = 2


@dataclass(frozen=True)
class Kept:
    """What a rank tells the others of its memory.

    Attributes:
        holding: of parameters and optimizer state; None for nothing.
        shards: of all ranks, by rank, in the iteration in which it has voted last.
        states: those of its Trainer: the step, the stage, and whether it has drawn random numbers since the vote.
        needs_batch: whether a hook of the user's at the end of a batch uses it.
        refusal: why this rank keeps nothing; "" if it does.
        unkept: why a step's state cannot be used, by step.
        exhausted: the step from which attempts have failed too often; None if there is none.
        begun: the step from which the ended attempt went on in memory; None for a checkpoint, or if it had no part.
        saved: the newest checkpoints that it knows, and their steps: a rank that takes a place knows none.
    """

    holding: Holding | None = None
    shards: tuple[Shard, ...] = ()
    states: tuple[tuple[int, BatchStage, bool], ...] = ()
    needs_batch: bool = False
    refusal: str = ""
    unkept: tuple[tuple[int, str], ...] = ()
    exhausted: int | None = None
    begun: int | None = None
    saved: tuple[tuple[str, int], ...] = ()

    def written(self) -> str:
        """Return the form that a store keeps."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        holding = None if self.holding is None else vars(self.holding)
        shards = [[shard, len([*alike])] for shard, alike in itertools.groupby(self.shards)]  # one for all replicas
        return json.dumps({**fields, "holding": holding, "shards": shards})

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Return what a store has kept."""
        fields: dict[str, Any] = json.loads(text)
        if (holding := fields["holding"]) is not None:
            for name in ("pending", "passed", "beginning"):
                holding[name] = holding[name] and (Stamp(*holding[name][0]), holding[name][1])
            holding["version"] = holding["version"] and Stamp(*holding["version"])
            for name in ("shard", "needs"):
                holding[name] = tuple(holding[name])
            fields["holding"] = Holding(**holding)
        fields["shards"] = tuple(tuple(shard) for shard, count in fields["shards"] for _ in range(count))
        for name in ("saved", "unkept"):
            fields[name] = tuple(map(tuple, fields[name]))
        fields["states"] = tuple((step, BatchStage(stage), draws) for step, stage, draws in fields["states"])
        return cls(**fields)

    def stages(self, step: int) -> dict[BatchStage, bool]:
        """Return at which stages of a step it has a state, and whether it has drawn random numbers until there."""
        return {stage: draws for at, stage, draws in self.states if at == step}


@dataclass(frozen=True)
class Choice:
    """From which state all ranks go on.

    Attributes:
        step: the number of optimizer steps done.
        stage: of the batch of the last one.
        source: the lowest rank that has the state.
        lacking: the ranks that have it not: they take the places of lost ones.
    """

    step: int
    stage: BatchStage
    source: int
    lacking: tuple[int, ...]


@dataclass(frozen=True)
class Chosen:
    """What rank 0 tells the others of the choice.

    Attributes:
        found: the state from which all ranks go on, or why there is none.
        saved: the newest checkpoints that any rank knows, and their steps, those that are newest last.
    """

    found: Choice | str
    saved: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, kept: Sequence[Kept]) -> Self:
        """Choose by what all ranks have told, in their order."""
        saved = dict[str, int]()
        for each in kept:
            saved = {path: step for path, step in reversed(each.saved) if path not in saved} | saved
        return cls(choose(kept), tuple(saved.items()))

    def written(self) -> str:
        """Return the form that a store keeps."""
        return json.dumps([self.found if isinstance(self.found, str) else vars(self.found), self.saved])

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Return what a store has kept."""
        found, saved = json.loads(text)
        if not isinstance(found, str):
            found = Choice(found["step"], BatchStage(found["stage"]), found["source"], tuple(found["lacking"]))
        return cls(found, tuple(map(tuple, saved)))


class Failures:
    """The attempts in a row that have gone on from a step in memory and have ended alike.

    They are counted as the job does (`nvrx_core.fault.retry_limit`), except that it leaves out long attempts, too.

    Args:
        limit: so many failures in a row end the job (`no_progress_limit`); the last attempt before uses a checkpoint.
            None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit, self._count = limit, 0
        self._last: tuple[Failure, int | None, int | None] | None = None

    def ended(self, failure: Failure | None, batch: int | None, begun: int | None) -> int | None:
        """Note the end of an attempt.

        Args:
            failure: how it has ended; None where the rank that has failed cannot fail again.
            batch: the highest one that any rank has reported.
            begun: the optimizer step from which it went on in memory; None for a checkpoint.

        Returns:
            From which step the next attempt does not go on; None if it may from any.
        """
        if failure is None:
            self._count, self._last = 0, None
            return None
        last = failure, batch, begun
        self._count, self._last = 1 + self._count * (last == self._last), last
        is_last = self._limit is not None and self._count >= max(1, self._limit - 1)
        return begun if is_last else None


def choose(kept: Sequence[Kept]) -> Choice | str:
    """Return from which state all ranks go on; all compute the same.

    Args:
        kept: of all ranks, by rank.

    Returns:
        The state, or why there is none.
    """
    if refusal := next((each.refusal for each in kept if each.refusal), ""):
        return refusal
    holders = [each.holding for each in kept if each.holding is not None]
    newest = max((each.passed[0] for each in holders if each.passed is not None), default=None)
    unkept = {step: reason for each in kept for step, reason in each.unkept}
    if newest is None or newest.step in unkept:
        return _nothing(kept) if newest is None else unkept[newest.step]
    has_voted = [each for each in kept if each.holding is not None and each.holding.passed is not None]
    shards = next(each.shards for each in has_voted if each.holding.passed[0] == newest)  # type: ignore[union-attr,index]
    if len(set(shards)) > 1 and len(shards) != len(kept):
        return f"the parameters are sharded, and of {len(shards)} ranks {len(kept)} are left"
    needs = shards
    if len(set(shards)) == 1:  # as it is by now: a callback may have given the optimizer more parameters
        reached = (each.shard for each in holders if each.reaches(newest) and each.shard is not None)
        needs = (next(reached, shards[0]),) * len(kept)
    nothing = Holding(None, None, None, False, None, needs[0])
    found = recover([replace(each.holding or nothing, needs=need) for each, need in zip(kept, needs, strict=True)])
    if isinstance(found, Incomplete):
        parts = (list(each[:-1]) for each in found.missing)
        missing = ", ".join(f"shard {each}" if each else "the parameters" for each in parts)
        return f"step {newest.step} is not whole in memory: no rank has {missing} of it any more"
    at_newest = [
        rank for rank, each in enumerate(kept)
        if each.holding is not None and _was_at(each.holding, newest) and each.stages(newest.step)
    ]  # fmt: skip
    if not at_newest:  # the attempt has ended before its first step
        return _nothing(kept)
    return _stage(kept, newest.step, at_newest)


def _nothing(kept: Sequence[Kept]) -> str:
    """Return why no rank has anything: those that had it may be lost before any other has taken it over."""
    begun = max((each.begun for each in kept if each.begun is not None), default=None)
    return NOTHING if begun is None else f"no rank has the state of step {begun} in memory any more"


def _was_at(holding: Holding, stamp: Stamp) -> bool:
    """Return whether the state of the Trainer that a rank has at this step is of it.

    A rank that was interrupted in the advance has no parameters of the step, and all else; one that was interrupted in
    the vote by which an iteration begins has come to the step before.
    """
    come_to = (each[0] for each in (holding.pending, holding.beginning) if each is not None)
    return stamp in (holding.version, *come_to)


def _stage(kept: Sequence[Kept], step: int, at_newest: Sequence[int]) -> Choice | str:
    """Return the last state at a step that all ranks have, or can do without."""
    if step in {each.exhausted for each in kept}:
        return f"attempts from step {step} have failed alike, without another step"
    lacking = tuple(rank for rank in range(len(kept)) if rank not in at_newest)
    stages = [kept[rank].stages(step) for rank in at_newest]
    for stage in sorted(set.intersection(*map(set, stages)), reverse=True):
        if not lacking or not any(each[stage] for each in stages):  # else the random numbers of a lost rank are unknown
            if stage is BatchStage.VOTE and lacking and any(kept[rank].needs_batch for rank in at_newest):
                break
            return Choice(step, stage, at_newest[0], lacking)
    return f"a rank was lost before the batch of step {step} had ended, and its on_train_batch_end needs the batch"
