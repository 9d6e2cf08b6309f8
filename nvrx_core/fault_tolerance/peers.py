"""How far the ranks have come that other monitors of this host watch.

Each monitor listens in one folder, and answers the question for the progress of its rank. The answers are awaited
beside everything else that a monitor waits for: two monitors may ask each other at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nvrx_core.fault_tolerance.wire import Connection, WireError, close_all, connect
from nvrx_core.parsing import integer
from nvrx_core.progress.limits import STEP
from nvrx_core.progress.page import Page, ProgressField, SectionField

__all__ = ["PROGRESS", "Progress", "Survey"]

PROGRESS: Final = "progress"
"""The type of the question."""
ANSWERS_WITHIN: Final = 0.2
"""Seconds; a monitor that does not answer says nothing about its rank."""
SUFFIX: Final = ".socket"


@dataclass(frozen=True)
class Progress:
    """How far a rank has come.

    Attributes:
        rank: its RANK.
        steps: how often it has opened section `step`.
        heartbeats: how many heartbeats it has sent.
    """

    rank: int
    steps: int
    heartbeats: int

    def is_behind(self, other: Progress) -> bool:
        """Whether this rank is behind another one, by the sign of life that both use."""
        if self.steps and other.steps:
            return self.steps < other.steps
        return bool(self.heartbeats and other.heartbeats) and self.heartbeats < other.heartbeats

    def to_json(self) -> dict[str, Any]:
        """Return the answer to the question."""
        return {"rank": self.rank, "steps": self.steps, "heartbeats": self.heartbeats}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Progress:
        """Return what an answer says.

        Raises:
            ValueError: when it is malformed.
        """
        rank, steps, heartbeats = (integer(answer.get(key), 0) for key in ("rank", "steps", "heartbeats"))
        return cls(rank, steps, heartbeats)

    @classmethod
    def of_page(cls, page: Page) -> Progress:
        """Return what a page says."""
        slot = page.sections().get(STEP)
        steps = page.words[slot + SectionField.COUNT] if slot is not None else 0
        return cls(page[ProgressField.RANK], steps, page[ProgressField.HEARTBEATS])


class Survey:
    """One question to all other monitors of a folder.

    Args:
        own: the socket of the monitor that asks; others are beside it.
        now: monotonic seconds.

    Attributes:
        deadline: when to go on without those who have not answered.
        answers: what was answered so far.
        lost: some monitor is gone, as it is when its rank has died.
    """

    def __init__(self, own: Path, *, now: float) -> None:
        self.deadline, self.answers, self.lost = now + ANSWERS_WITHIN, list[Progress](), False
        self.pending = dict[int, Connection]()
        for path in sorted(own.parent.glob(f"*{SUFFIX}")):
            if path != own:
                self._ask(path)

    def is_complete(self, *, now: float) -> bool:
        """Whether there is nothing to wait for."""
        return not self.pending or now >= self.deadline

    def receive(self, fd: int) -> None:
        """Take an answer from a connection that has become readable; it ends with a monitor that is lost meanwhile."""
        with self.pending.pop(fd) as connection, suppress(ValueError):
            try:
                answer, descriptors = connection.receive()
            except WireError:
                self.lost = True
                return
            close_all(descriptors)
            self.answers.append(Progress.from_json(answer))

    def close(self) -> None:
        """Give the connections up that have not answered."""
        while self.pending:
            self.pending.popitem()[1].close()

    def _ask(self, path: Path) -> None:
        try:
            connection = connect(path, within=0.0)
            self.pending[connection.fileno()] = connection
            connection.send({"type": PROGRESS})
        except ConnectionRefusedError:
            self.lost = True
        except OSError:  # it is busy, or no monitor
            return
