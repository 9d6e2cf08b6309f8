"""The job of a fit: which of the checkpoints in a folder are its own.

A folder may have the checkpoints of an earlier experiment. A job that is started again must not resume from one: its
fit would begin with the weights of another run, or end at once because that run had completed. So each checkpoint
names the job that saved it, and the number of the fit in its process.

A job has several ids, one for each launcher or scheduler that may start it again (`environment.job_ids`); nodes of one
job may have different ids. Two lists name the same job if they have an id in common.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch.distributed as dist

__all__ = ["Job", "Start", "gathered"]


@dataclass(frozen=True)
class Job:
    """The job of a fit.

    Attributes:
        ids: of all its ranks.
        fit: the number of the fit in its process, counted from 1.
    """

    ids: frozenset[str]
    fit: int

    def written(self) -> dict[str, Any]:
        """Return the form that a checkpoint stores."""
        return {"ids": sorted(self.ids), "fit": self.fit}

    def joined(self, ids: Iterable[str]) -> Self:
        """Return the job with the ids of other ranks."""
        return type(self)(self.ids | frozenset(ids), self.fit)

    def refusal(self, written: object, ids: Iterable[str]) -> str:
        """Return why a checkpoint is not of this fit; "" if it is.

        Args:
            written: what the checkpoint stores; None if it stores none.
            ids: those of the ids by which the job may have saved checkpoints before.
        """
        if not isinstance(written, dict):
            return "which names no job"
        if not frozenset(written.get("ids", ())) & frozenset(ids):
            return "of another job"
        if written.get("fit") != self.fit:
            return f"of fit {written.get('fit')} of this job, and this is fit {self.fit}"
        return ""


@dataclass(frozen=True)
class Start:
    """What a rank knows of its start.

    Attributes:
        has_looked: this rank knows what the job had saved before it was started again.
        ids: those by which the job may have saved checkpoints before, by who restarts it.
        restarted: those of them whose launcher or scheduler counts this start as a restart.
    """

    has_looked: bool
    ids: Mapping[str, str]
    restarted: Mapping[str, str]


def gathered(store: Any, rank: int, world_size: int, start: Start) -> list[Start] | None:
    """Tell rank 0 what this rank knows of its start.

    Returns:
        On rank 0 what all ranks know; None on the others, which do not wait.
    """
    store = dist.PrefixStore("nvrx_job", store)
    store.set(f"start/{rank}", json.dumps([start.has_looked, dict(start.ids), dict(start.restarted)]))
    if rank != 0:
        return None
    keys = [f"start/{each}" for each in range(world_size)]
    store.wait(keys)
    return [Start(*json.loads(answer)) for answer in store.multi_get(keys)]
