"""Waits for events of `multiprocessing`, by which processes that are started say that they are ready."""

from __future__ import annotations

import time
from collections.abc import Iterable
from multiprocessing.synchronize import Event

__all__ = ["wait_for_mp_events"]


def wait_for_mp_events(events: Iterable[Event], timeout: float = 60.0) -> bool:
    """Wait until all events are set.

    Args:
        events: the events.
        timeout: seconds for all of them.

    Returns:
        Whether all are set; False when the time is up.
    """
    deadline = time.monotonic() + timeout
    return all(event.wait(max(0.0, deadline - time.monotonic())) for event in events)
