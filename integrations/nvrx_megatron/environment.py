"""Environment variables of a Megatron job; only this file of the package reads them."""

from __future__ import annotations

import os

__all__ = ["local_world_size", "rank", "world_size"]


def world_size() -> int:
    """Return WORLD_SIZE, by default 1.

    Raises:
        ValueError: when it is not a positive number.
    """
    return _number("WORLD_SIZE", 1)


def local_world_size() -> int:
    """Return LOCAL_WORLD_SIZE, by default 1.

    Raises:
        ValueError: when it is not a positive number.
    """
    return _number("LOCAL_WORLD_SIZE", 1)


def rank() -> int:
    """Return RANK, by default 0; -1 for a text that is no number."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else -1


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"environment: {name}={text!r} is not a number of at least 1; launchers set it")
    return int(text)
