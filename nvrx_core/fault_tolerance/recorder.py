"""A rank's progress on its page: heartbeats and sections, and the longest intervals between them.

`progress/sampling.py` reads it, for the rank monitor in `process.py`.

Each call is a few stores to memory, without a lock or a system call. The time of a change is written before the change
itself, so that a torn read shows a rank that has just made progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final, NoReturn, Protocol

from nvrx_core.fault_tolerance.data import HeartbeatTimeouts, RankMonitorClientError, SectionTimeouts
from nvrx_core.fault_tolerance.timeouts import Measured, in_force
from nvrx_core.progress.fields import RECENT_RUNS
from nvrx_core.progress.page import Page, ProgressField, SectionField

__all__ = ["NotMonitored", "ProgressRecorder", "Recorder", "nanoseconds"]

MAX_SECONDS: Final = 1e9
"""Seconds of a timeout at most: a word of the page holds no more than 292 years in nanoseconds."""
_now: Final = time.monotonic_ns
_LONGEST: Final = int(SectionField.LONGEST)
_TIMEOUT: Final = int(SectionField.TIMEOUT)
_COUNT: Final = int(SectionField.COUNT)
_RECENT: Final = int(SectionField.RECENT)
_LAST_BITS: Final = RECENT_RUNS - 1
_SECTION_AT: Final = int(ProgressField.SECTION_AT)
_OUT: Final = int(ProgressField.LONGEST_OUT)
_ATTACHED_AT: Final = int(ProgressField.ATTACHED_AT)
_HEARTBEAT_AT: Final = int(ProgressField.HEARTBEAT_AT)
_FIRST: Final = int(ProgressField.FIRST_HEARTBEAT)
_HEARTBEATS: Final = int(ProgressField.HEARTBEATS)
_LONGEST_HEARTBEAT: Final = int(ProgressField.LONGEST_HEARTBEAT)


class ProgressRecorder(Protocol):
    """The receiver of a client's calls."""

    def heartbeat(self) -> None:
        """Record a heartbeat."""

    def open(self, section: str) -> None:
        """Record that a section is opened."""

    def close(self, section: str) -> None:
        """Record that a section is closed."""

    def abandon(self, section: str) -> None:
        """Record that a section is closed that did not run to its end."""

    def open_sections(self) -> list[str]:
        """Return the names of the open sections."""

    def measured(self) -> Measured:
        """Return the longest intervals so far."""

    @property
    def page(self) -> Page:
        """The page that the calls write."""


class NotMonitored:
    """The recorder of a client that is not initialised: it refuses every call."""

    def heartbeat(self, _: str = "") -> NoReturn:
        """Refuse.

        Raises:
            RankMonitorClientError: always.
        """
        raise RankMonitorClientError("call init_workload_monitoring() first")

    open = close = abandon = open_sections = measured = heartbeat
    page = property(heartbeat)


class Recorder:
    """Writes the page of the calling process; the first word of a section's slot is the time when it was opened.

    It keeps its last heartbeat in attributes: reading a word of the page costs more.

    Args:
        page: a page that this process is attached to.
        strict: refuse sections that were not declared.
    """

    __slots__ = (
        "_beat_at", "_beats", "_closed_at", "_declaring", "_longest_beat", "_longest_out", "_open", "_slots", "_words",
        "page", "strict",
    )  # fmt: skip

    def __init__(self, page: Page, *, strict: bool = False) -> None:
        self.page, self.strict = page, strict
        self._words, self._declaring = page.words, threading.Lock()
        self._slots = page.sections()
        self._open = sum(1 for slot in self._slots.values() if self._words[slot])
        self._closed_at, self._longest_out = self._words[_SECTION_AT] or _now(), self._words[_OUT]
        self._beat_at, self._beats = self._words[_HEARTBEAT_AT], self._words[_HEARTBEATS]
        self._longest_beat = self._words[_LONGEST_HEARTBEAT]

    def heartbeat(self) -> None:
        """Record a heartbeat."""
        now = _now()
        words = self._words
        if now - self._beat_at > self._longest_beat:
            if self._beat_at:
                self._longest_beat = words[_LONGEST_HEARTBEAT] = now - self._beat_at
            else:
                words[_FIRST] = max(words[_FIRST], now - words[_ATTACHED_AT])
        self._beat_at = now
        self._beats = beats = self._beats + 1
        words[_HEARTBEATS] = beats
        words[_HEARTBEAT_AT] = now

    def open(self, section: str) -> None:
        """Record that a section is opened.

        Raises:
            RankMonitorClientError: when it is open already, is not declared where it must be, or has no room.
        """
        words = self._words
        slot = self._slots.get(section) or self._declare(section)
        if words[slot]:
            raise RankMonitorClientError(f"start_section({section!r}): it is open already; end it first")
        now = _now()
        if not self._open and now - self._closed_at > self._longest_out:
            self._longest_out = words[_OUT] = now - self._closed_at
        self._open += 1
        words[_SECTION_AT] = now
        words[slot + _COUNT] += 1
        words[slot] = now

    def close(self, section: str) -> None:
        """Record that a section is closed.

        Raises:
            RankMonitorClientError: when it is not open.
        """
        words = self._words
        slot = self._slots.get(section)
        if slot is None or not (opened := words[slot]):
            present = f"open are {', '.join(map(repr, self.open_sections()))}" if self._open else "no section is open"
            raise RankMonitorClientError(f"end_section({section!r}): it is not open; {present}")
        now = _now()
        words[slot + _RECENT + (words[slot + _COUNT] & _LAST_BITS)] = duration = now - opened
        if duration > words[slot + _LONGEST]:  # noqa: PLR1730 - `max` would cost a call and a write
            words[slot + _LONGEST] = duration
        self._closed_at = words[_SECTION_AT] = now
        words[slot] = 0
        self._open -= 1

    def abandon(self, section: str) -> None:
        """Record that a section is closed that did not run to its end: its duration is not measured.

        Raises:
            RankMonitorClientError: when it is not open.
        """
        slot, words = self._slots.get(section), self._words
        longest = 0 if slot is None else words[slot + _LONGEST]
        self.close(section)
        if slot is not None:
            words[slot + _LONGEST] = longest
            words[slot + _RECENT + (words[slot + _COUNT] & _LAST_BITS)] = 0

    def reset(self) -> None:
        """Record that the rank begins anew; what it has measured stays."""
        self.page.reset()
        self._open, self._closed_at = 0, self._words[_ATTACHED_AT]
        self._beat_at = self._beats = 0

    def disown(self) -> None:
        """Continue with a copy of the page, in a child of `os.fork`, which is not a rank.

        The page itself stays as it is: the child may be the monitor process of a wrapped call.
        """
        page, self.page = self.page, Page(1)
        self.page.words[:] = page.words
        self._words = self.page.words

    def open_sections(self) -> list[str]:
        """Return the names of the open sections."""
        return [name for name, slot in self._slots.items() if self._words[slot]]

    def declare(self, timeouts: Mapping[str, float | None]) -> None:
        """Declare sections with their timeouts, in seconds; None is no timeout."""
        for name, timeout in timeouts.items():
            slot = self._slots.get(name) or self._reserve(name)
            self._words[slot + _TIMEOUT] = nanoseconds(timeout)

    def enforce(self, heartbeat: HeartbeatTimeouts, sections: SectionTimeouts, least_learned: float) -> None:
        """Write the timeouts that the monitor enforces.

        Args:
            heartbeat: the heartbeat timeouts, in seconds.
            sections: the section timeouts.
            least_learned: seconds from which a learned timeout is enforced; a shorter one counts as this.
        """
        self.declare({
            name: in_force(timeout, learned=name in sections.calculated_sections, least=least_learned)
            for name, timeout in sections.section.items()
        })  # fmt: skip
        are_learned, page = heartbeat.were_calculated, self.page
        initial = in_force(heartbeat.initial, learned=are_learned, least=least_learned)
        subsequent = in_force(heartbeat.subsequent, learned=are_learned, least=least_learned)
        is_learned = sections.is_out_of_section_calculated
        out_of_section = in_force(sections.out_of_section, learned=is_learned, least=least_learned)
        page[ProgressField.INITIAL_TIMEOUT] = nanoseconds(initial)
        page[ProgressField.HEARTBEAT_TIMEOUT] = nanoseconds(subsequent)
        page[ProgressField.OUT_TIMEOUT] = nanoseconds(out_of_section)

    def measured(self) -> Measured:
        """Return the longest intervals so far; the time without a section that goes on at this moment counts."""
        words = self._words
        if not self._open:
            self._longest_out = words[_OUT] = max(self._longest_out, _now() - self._closed_at)
        return Measured(
            initial=words[ProgressField.FIRST_HEARTBEAT] / 1e9,
            subsequent=words[_LONGEST_HEARTBEAT] / 1e9,
            out_of_section=words[_OUT] / 1e9,
            sections={name: words[slot + _LONGEST] / 1e9 for name, slot in self._slots.items()},
        )

    def _declare(self, section: str) -> int:
        if self.strict:
            known = ", ".join(map(repr, self._slots)) or "none"
            raise RankMonitorClientError(
                f"start_section({section!r}): strict_sections is on, and rank_section_timeouts has {known}"
            )
        return self._reserve(section)

    def _reserve(self, section: str) -> int:
        try:
            with self._declaring:  # another thread may open its first section, too
                slot = self._slots[section] = self.page.declare_section(section)
        except (ValueError, AttributeError) as error:
            raise RankMonitorClientError(f"start_section({section!r}): {error}") from None
        return slot


def nanoseconds(seconds: float | None) -> int:
    """Return a timeout as the page has it; None, no timeout, is 0, and 0 seconds are one nanosecond."""
    return 0 if seconds is None else max(1, int(min(seconds, MAX_SECONDS) * 1e9))
