"""When enough nodes are ready for a cycle, and how long to wait for more. Pure.

Once enough nodes are ready, the first cycle waits until the last call is over, or until all that may join have joined.
Later cycles start as soon as enough nodes are ready.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Self

from nvrx_launcher.rendezvous.rules import Rules

__all__ = ["Gathering"]


class Gathering:
    """The wait for the nodes of a cycle.

    Args:
        rules: how many are needed, and how long they have.
        is_first: it is the wait before the first cycle.
        since: when it started, monotonic seconds; `inf`: it has not.
    """

    def __init__(self, rules: Rules, *, is_first: bool, since: float = math.inf) -> None:
        self._rules, self._last_call = rules, rules.last_call if is_first else 0.0
        self._since, self._enough_since, self._count = since, math.inf, 0

    @classmethod
    def from_ages(cls, rules: Rules, ages: tuple[float, float], *, is_first: bool, count: int, now: float) -> Self:
        """Restore it from what `ages` has returned."""
        made = cls(rules, is_first=is_first, since=now - ages[0])
        made._enough_since, made._count = now - ages[1], count
        return made

    def ages(self, *, now: float) -> tuple[float, float]:
        """Return for how long it has lasted, and enough nodes have been ready, seconds; `-inf`: not yet."""
        return now - self._since, now - self._enough_since

    def ready(self, count: int, *, now: float) -> None:
        """Record how many nodes are ready."""
        self._count = count
        self._enough_since = min(self._enough_since, now) if count >= self._rules.min_nodes else math.inf

    @property
    def short_since(self) -> float:
        """Since when it lasts, monotonic seconds, as long as fewer nodes than needed are ready; else `inf`."""
        return self._since if self._enough_since == math.inf else math.inf

    def deadline(self, begins_at: float) -> float:
        """Return when it is complete or overdue; the cycle does not begin before a given time."""
        if self._enough_since == math.inf:
            return self._since + self._rules.join_timeout
        return max(self._enough_since + self._last_call, begins_at)

    def is_complete(self, *, now: float) -> bool:
        """Return whether the cycle can begin."""
        are_all = self._count >= self._rules.max_nodes
        return are_all or now >= self._enough_since + self._last_call

    def overdue(self, hosts: Iterable[str], *, now: float) -> str:
        """Return why the wait has failed (too few nodes in time), with the ready hosts; "" while there is time."""
        if self._enough_since < math.inf or now < self._since + self._rules.join_timeout:
            return ""
        rules, joined = self._rules, sorted(hosts)
        return f"{len(joined)} of {rules.min_nodes} nodes have joined in {rules.join_timeout:g} s: {joined}"
