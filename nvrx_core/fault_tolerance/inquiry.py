"""The inquiry of a monitor before it ends its rank: whether other ranks are behind it, and where its threads are.

First the other monitors are asked, and the launcher about other nodes; then, if no rank is behind, the rank itself
writes its stacks. Answers are awaited together with all other events of the monitor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from nvrx_core.fault.stack_text import Frame, main_thread, waits_for_peers
from nvrx_core.fault_tolerance.peers import Progress, Survey, slowest
from nvrx_core.process.signalled_stacks import StackRequest
from nvrx_core.progress.limits import Limit

__all__ = ["Findings", "Inquiry"]

COLLECTIVE_EXCUSES: Final = 2.0
"""Seconds for which a rank is excused that waits in a collective, at most; its timeout where that is shorter.

The rank that the others wait for has the same timeout as they, or hardly a longer one, and its monitor ends it."""


@dataclass(frozen=True)
class Findings:
    """The result of an inquiry.

    Attributes:
        behind: ranks that are behind this one.
        lost: a rank beside this one has died.
        slowest: the slowest other rank; None if there was no answer.
        stack: the frames of the main thread, innermost first.
        text: the stacks of all threads.
    """

    behind: tuple[int, ...] = ()
    lost: bool = False
    slowest: Progress | None = None
    stack: tuple[Frame, ...] = ()
    text: str = ""

    def excuses(self, limit: Limit, *, now: float) -> bool:
        """Whether the rank only waits for others."""
        waits = waits_for_peers(self.stack) and now < limit.deadline + min(COLLECTIVE_EXCUSES, limit.timeout)
        return bool(self.behind) or self.lost or waits


class Inquiry:
    """One inquiry about one rank.

    Args:
        limit: the expired limit.
        own: the progress of the rank.
        survey: the query to the others.
    """

    def __init__(self, limit: Limit, own: Progress, survey: Survey) -> None:
        self.limit, self.own, self._survey = limit, own, survey
        self._stacks: StackRequest | None = None
        self._others: Findings | None = None

    @property
    def deadline(self) -> float:
        """When to continue with the answers so far, monotonic seconds."""
        if self._stacks is not None:
            return self._stacks.deadline
        return self._survey.deadline if self._survey.pending else -math.inf

    def fds(self) -> list[int]:
        """Return the descriptors to wait for."""
        return list(self._survey.pending) if self._stacks is None else [self._stacks.reader]

    def receive(self, fd: int, *, now: float) -> None:
        """Receive what has become readable."""
        if fd in self._survey.pending:
            self._survey.receive(fd)
        elif self._stacks is not None:
            self._stacks.receive(now=now)

    def others(self, *, now: float) -> Findings | None:
        """Return the answers of the others; None while they are awaited."""
        if self._others is None and self._survey.is_complete(now=now):
            self._survey.close()
            answers = self._survey.answers
            behind = tuple(sorted({each.rank for each in answers if each.is_behind(self.own)}))
            self._others = Findings(behind, self._survey.lost, slowest(answers))
        return self._others

    def ask_rank(self, request: StackRequest) -> None:
        """Request the rank's stacks, and await them as well."""
        self._stacks = request

    @property
    def has_asked_rank(self) -> bool:
        """Whether its stacks were asked for."""
        return self._stacks is not None

    def findings(self, others: Findings, *, now: float) -> Findings | None:
        """Return the result; None while the rank is awaited."""
        if self._stacks is None:
            return others
        if not self._stacks.is_complete(now=now):
            return None
        text = self._stacks.text
        return Findings(others.behind, others.lost, others.slowest, main_thread(text), text)

    def close(self) -> None:
        """Stop waiting."""
        self._survey.close()
