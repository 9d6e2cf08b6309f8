"""`prepare_data` where the process that runs it is lost: Lightning lets only the first local rank of a node run it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nvrx_lightning.restart.snapshot import overrides

__all__ = ["prepare_data", "stands_in"]

Place = tuple[int, int]
"""The node of a rank, and its local rank: both never change."""


def stands_in(mine: Place, places: Iterable[Place], *, per_node: bool) -> bool:
    """Return whether this rank prepares the data instead of one that is lost.

    Args:
        mine: the place of this rank.
        places: those of all ranks that are left.
        per_node: one rank of each node prepares data; else one rank of all.
    """
    candidates = [place for place in places if not per_node or place[0] == mine[0]]
    first = (mine[0], 0) if per_node else (0, 0)
    return first not in candidates and mine == min(candidates)


def prepare_data(trainer: Any, family: str, places: list[Place], mine: Place) -> None:
    """Run `prepare_data` of data module and model, where this rank stands in for a lost one."""
    for owner in (trainer.datamodule, trainer.lightning_module):
        if owner is None or not overrides("prepare_data", owner, family):
            continue
        if stands_in(mine, places, per_node=owner.prepare_data_per_node):
            owner.prepare_data()
