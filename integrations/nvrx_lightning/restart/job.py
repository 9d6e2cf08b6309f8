"""The job of a fit: which of the checkpoints in a folder are its own.

A folder may have the checkpoints of an earlier experiment. A job that is started again must not resume from one: its
fit would begin with the weights of another run, or end at once because that run had completed. So each checkpoint
names the job that saved it, and the number of the fit in its process.

A job has several ids, one for each launcher or scheduler that may start it again (`environment.job_ids`); nodes of one
job may have different ids. Two lists name the same job if they have an id in common.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch.distributed as dist

__all__ = ["Job", "gathered_ids"]


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


def gathered_ids(store: Any, rank: int, world_size: int, ids: Iterable[str], *, reads: bool) -> frozenset[str]:
    """Tell the other ranks the ids of this one; return those of all ranks if it `reads` them, else its own."""
    store = dist.PrefixStore("nvrx_job", store)
    store.set(f"ids/{rank}", json.dumps(sorted(ids)))
    if not reads:
        return frozenset(ids)
    keys = [f"ids/{each}" for each in range(world_size)]
    store.wait(keys)
    return frozenset(each for answer in store.multi_get(keys) for each in json.loads(answer))
