"""The progress of the ranks of other monitors.

Each monitor of a host listens in one folder, and answers queries for the progress of its rank. A launcher answers for
the other nodes, with their slowest ranks. The answers are awaited together with all other events of a monitor: two
monitors may query each other at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nvrx_core.fault_tolerance.wire import Connection, WireError, close_all, connect
from nvrx_core.parsing import integer, string
from nvrx_core.progress.limits import STEP
from nvrx_core.progress.page import Page, ProgressField, SectionField

__all__ = [
    "HANG_REPORT",
    "PROGRESS",
    "RECOVERED",
    "SUFFIX",
    "HungRank",
    "Progress",
    "Survey",
    "slowest",
    "slowest_of_each_kind",
]  # fmt: skip

PROGRESS: Final = "progress"
"""The type of the question."""
HANG_REPORT: Final = "hang"
"""The type of the message to the launcher that says why a rank is about to be ended; it answers when that is judged."""
RECOVERED: Final = "recovered"
"""The type of the message to the launcher that takes this back: the rank goes on."""
ANSWERS_WITHIN: Final = 1.0
"""Seconds; a monitor that does not answer says nothing about its rank, and a launcher asks other nodes."""
SUFFIX: Final = ".socket"


@dataclass(frozen=True)
class Progress:
    """The progress of a rank.

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

    def beside(self, peer: Progress) -> str:
        """Return, as text, this rank's progress relative to its slowest peer; "" if they cannot be compared."""
        for name, own, its in (("step", self.steps, peer.steps), ("heartbeat", self.heartbeats, peer.heartbeats)):
            if own and its:
                far = f"{abs(own - its)} {name}{'s' * (abs(own - its) != 1)}"
                way = "as far as" if own == its else f"{far} {'behind' if own < its else 'ahead of'}"
                return f"{way} rank {peer.rank}, its slowest peer"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, which answers a query."""
        return {"rank": self.rank, "steps": self.steps, "heartbeats": self.heartbeats}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Progress:
        """Parse an answer.

        Raises:
            ValueError: when it is malformed.
        """
        rank, steps, heartbeats = (integer(answer.get(key), 0) for key in ("rank", "steps", "heartbeats"))
        return cls(rank, steps, heartbeats)

    @classmethod
    def of_page(cls, page: Page) -> Progress:
        """Return the progress on a page."""
        slot = page.sections().get(STEP)
        steps = page.words[slot + SectionField.COUNT] if slot is not None else 0
        return cls(page[ProgressField.RANK], steps, page[ProgressField.HEARTBEATS])


@dataclass(frozen=True)
class HungRank:
    """The reason for which a monitor ends its rank.

    Attributes:
        rank: its RANK.
        pid: its process.
        reason: for people, in one line.
        stack: the stacks of all its threads; "" if it has not answered.
    """

    rank: int
    pid: int
    reason: str
    stack: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the message to the launcher."""
        return {"type": HANG_REPORT, "rank": self.rank, "pid": self.pid, "reason": self.reason, "stack": self.stack}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> HungRank:
        """Parse a message.

        Raises:
            ValueError: when it is malformed.
        """
        rank, pid = integer(message.get("rank"), 0), integer(message.get("pid"), 1)
        return cls(rank, pid, string(message.get("reason")), string(message.get("stack")))


def slowest(ranks: Iterable[Progress]) -> Progress | None:
    """Return the slowest of some ranks, by the sign of life that most of them use; None for none."""
    known = [each for each in ranks if each.steps or each.heartbeats]
    by_steps = [each for each in known if each.steps]
    if by_steps and 2 * len(by_steps) >= len(known):
        return min(by_steps, key=lambda each: each.steps)
    return min(known, key=lambda each: each.heartbeats, default=None)


def slowest_of_each_kind(ranks: Iterable[Progress]) -> list[Progress]:
    """Return the slowest rank by steps and the slowest one by heartbeats, of those that use them."""
    known = list(ranks)
    by_steps = min((each for each in known if each.steps), key=lambda each: each.steps, default=None)
    by_heartbeats = min((each for each in known if each.heartbeats), key=lambda each: each.heartbeats, default=None)
    return [each for each in dict.fromkeys((by_steps, by_heartbeats)) if each is not None]


class Survey:
    """One query to all other monitors of a folder, and to the launcher.

    Args:
        own: the socket of the querying monitor; the others are in its folder.
        launcher: the socket of the launcher, which answers for other nodes; "" for none.
        now: monotonic seconds.

    Attributes:
        deadline: when to continue without the missing answers.
        answers: the answers so far.
        lost: a monitor has exited, as it does when its rank has died.
    """

    def __init__(self, own: Path, *, now: float, launcher: str = "") -> None:
        self.deadline, self.answers, self.lost = now + ANSWERS_WITHIN, list[Progress](), False
        self.pending = dict[int, Connection]()
        if launcher:
            self._ask(Path(launcher))
        for path in sorted(own.parent.glob(f"*{SUFFIX}")):
            if path != own:
                self._ask(path)

    def is_complete(self, *, now: float) -> bool:
        """Whether there is nothing to wait for."""
        return not self.pending or now >= self.deadline

    def receive(self, fd: int) -> None:
        """Receive an answer from a readable connection; the connection of a lost monitor is closed."""
        with self.pending.pop(fd) as connection, suppress(ValueError):
            try:
                answer, descriptors = connection.receive()
            except WireError:
                self.lost = True
                return
            close_all(descriptors)
            ranks = answer.get("ranks", [answer])  # a launcher answers for several
            if isinstance(ranks, list) and all(isinstance(each, dict) for each in ranks):
                self.answers += map(Progress.from_json, ranks)

    def close(self) -> None:
        """Close the connections that have not answered."""
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
