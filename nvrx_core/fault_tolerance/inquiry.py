"""The inquiry of a monitor before it ends its rank: whether other ranks are behind it, and where its threads are.

First the other monitors are asked, and the launcher about other nodes; then, if no rank is behind, the rank itself
writes its stacks. Answers are awaited together with all other events of the monitor.
"""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass, replace

from nvrx_core.fault.stack_text import Frame, main_thread, waits_for_peers
from nvrx_core.fault_tolerance.peers import Progress, Survey, slowest
from nvrx_core.fault_tolerance.watched import WatchedRank
from nvrx_core.liveness.hang_detector import Excuse
from nvrx_core.process.lifeline import catches
from nvrx_core.process.signalled_stacks import StackRequest

__all__ = ["Findings", "Inquiry"]


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

    @property
    def excuse(self) -> Excuse | None:
        """Why the rank only waits for others; None if it does not."""
        if self.behind or self.lost:
            return Excuse.PEER_BEHIND
        return Excuse.IN_COLLECTIVE if waits_for_peers(self.stack) else None


class Inquiry:
    """One inquiry about one rank.

    Args:
        own: the progress of the rank.
        survey: the query to the others.
        rank: its process.
        signum: the signal on which it writes its stacks; 0 for none.
        reader: where they are read.
    """

    def __init__(self, own: Progress, survey: Survey, rank: WatchedRank, signum: int, *, reader: int) -> None:
        self.own, self._survey, self._rank, self._signum, self._reader = own, survey, rank, signum, reader
        self._others: Findings | None = None
        self._stacks: StackRequest | None = None

    @property
    def deadline(self) -> float:
        """When to continue with the answers so far, monotonic seconds."""
        if self._stacks is not None:
            return self._stacks.deadline
        return self._survey.deadline if self._survey.pending else -math.inf

    @property
    def reads_stacks(self) -> bool:
        """Whether the rank is asked for its stacks."""
        return self._stacks is not None

    def fds(self) -> list[int]:
        """Return the descriptors to wait for."""
        return list(self._survey.pending) if self._stacks is None else [self._stacks.reader]

    def receive(self, fd: int, *, now: float) -> None:
        """Receive what has become readable."""
        if fd in self._survey.pending:
            self._survey.receive(fd)
        elif self._stacks is not None:
            self._stacks.receive(now=now)

    def findings(self, *, now: float) -> Findings | None:
        """Return the result; None while answers are awaited. Asks the rank if the others do not excuse it."""
        if self._others is None:
            if not self._survey.is_complete(now=now):
                return None
            self._survey.close()
            answers = self._survey.answers
            behind = tuple(sorted({each.rank for each in answers if each.is_behind(self.own)}))
            self._others = Findings(behind, self._survey.lost, slowest(answers))
            is_asked = self._others.excuse is None and signal.SIGRTMIN <= self._signum <= signal.SIGRTMAX
            if is_asked and catches(self._rank.pid, self._signum):  # without a handler the signal would end the rank
                self._stacks = StackRequest(self._reader, self._rank.pidfd, self._signum, now=now)
        if self._stacks is None:
            return self._others
        if not self._stacks.is_complete(now=now):
            return None
        text = self._stacks.text
        return replace(self._others, stack=main_thread(text), text=text)

    def close(self) -> None:
        """Stop waiting."""
        self._survey.close()
