"""The identity of a rank in a wrapped call. Pure."""

from __future__ import annotations

from typing import NewType

__all__ = ["InitialRank", "initial_ranks"]

InitialRank = NewType("InitialRank", int)
"""RANK on entry: identifies a rank for the whole call, while its rank changes with each assignment."""


def initial_ranks(world_size: int) -> frozenset[InitialRank]:
    """Return those of a call that so many ranks have entered."""
    return frozenset(map(InitialRank, range(world_size)))
