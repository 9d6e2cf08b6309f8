"""Garbage between iterations: what the ended one left in cycles is freed, at a price that does not grow.

A full collection looks at every object: 60 to 700 ms where torch and a model are loaded. What exists on entry, and what
the first iteration has imported, stays for good, so it is frozen (`gc.freeze`) and not looked at again.
"""

from __future__ import annotations

import functools
import gc

__all__ = ["collect_garbage", "freeze_on_entry"]


@functools.cache
def freeze_on_entry() -> None:
    """Once a process, before the first call; young garbage is freed first, old garbage is rare and stays."""
    gc.collect(1)
    gc.freeze()


def collect_garbage() -> None:
    """Between two iterations."""
    gc.collect()
    _freeze_after_first_iteration()


@functools.cache
def _freeze_after_first_iteration() -> None:
    gc.freeze()
