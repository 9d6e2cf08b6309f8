"""`prepare_data` when the rank that runs it is lost: Lightning runs it only on the first local rank of a node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nvrx_lightning.restart.snapshot import overrides

__all__ = ["prepare_data", "stands_in"]

Place = tuple[int, int]
"""The node of a rank, and its local rank; neither ever changes."""


def stands_in(mine: Place, places: Iterable[Place], *, per_node: bool) -> bool:
    """Return whether this rank prepares the data in place of a lost rank.

    Args:
        mine: node and local rank of this rank.
        places: node and local rank of all remaining ranks.
        per_node: one rank of each node prepares data; else a single rank does.
    """
    candidates = [place for place in places if not per_node or place[0] == mine[0]]
    first = (mine[0], 0) if per_node else (0, 0)
    return first not in candidates and mine == min(candidates)


def prepare_data(trainer: Any, family: str, places: list[Place], mine: Place) -> None:
    """Run `prepare_data` of data module and model, if this rank stands in for a lost one."""
    for owner in (trainer.datamodule, trainer.lightning_module):
        if owner is None or not overrides("prepare_data", owner, family):
            continue
        if stands_in(mine, places, per_node=owner.prepare_data_per_node):
            owner.prepare_data()
