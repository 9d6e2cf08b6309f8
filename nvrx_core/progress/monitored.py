"""The monitored rank of this process: one page for all its monitors.

A rank that has a rank monitor has a page. A wrapped call of the same process writes on that page, and its own monitor
process judges the rank while the call lasts.
"""

from __future__ import annotations

from typing import Protocol

from nvrx_core.progress.page import Page

__all__ = ["MonitoredRank", "current", "register", "unregister"]


class MonitoredRank(Protocol):
    """The monitored rank, as a wrapped call uses it."""

    @property
    def page(self) -> Page:
        """Its page."""

    def reset(self) -> None:
        """Forget the signs of life so far: another iteration begins."""

    def call_begins(self) -> None:
        """Leave the hang detection to the call's monitor process."""

    def call_ends(self) -> None:
        """Resume the hang detection."""


_current: MonitoredRank | None = None


def current() -> MonitoredRank | None:
    """Return the monitored rank of this process; None when it is not monitored."""
    return _current


def register(rank: MonitoredRank) -> None:
    """Make a rank the monitored one of this process."""
    global _current  # noqa: PLW0603 - a process is one rank
    _current = rank


def unregister(rank: MonitoredRank) -> None:
    """Unregister it."""
    global _current  # noqa: PLW0603
    if _current is rank:
        _current = None
