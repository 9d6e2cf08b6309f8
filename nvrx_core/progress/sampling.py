"""A sample of a rank's progress page, for the hang detector of its monitor process or rank monitor.

In a wrapped call, `ping` is a heartbeat, and the call's own watchdog samples the main thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from nvrx_core.progress.fields import RECENT_RUNS
from nvrx_core.progress.limits import ProgressSample, RankSample, SectionSample, earliest
from nvrx_core.progress.page import Page, ProgressField, SectionField
from nvrx_core.progress.stage import Stage

__all__ = ["open_section", "recent_runs", "signs_of_life", "take_sample"]

_SIGNS: Final = (
    ProgressField.ATTACHED_AT, ProgressField.HEARTBEAT_AT, ProgressField.SECTION_AT, ProgressField.SAMPLED_AT,
)  # fmt: skip
_IN_CALL: Final = (ProgressField.AUTO_HEARTBEAT, ProgressField.MAIN_THREAD_HEARTBEAT)


def take_sample(
    page: Page, awake: Callable[[float], float], *, stopped: bool = False, out_by: float = math.inf
) -> ProgressSample:
    """Sample a page.

    Args:
        page: the rank's page.
        awake: maps a monotonic time to the time in which silence is measured.
        stopped: the process is stopped.
        out_by: when the main thread must have left the function, outside of an atomic section; awake seconds.
    """
    iteration, stage = page[ProgressField.ITERATION], Stage(page[ProgressField.STAGE])
    outside = stage is Stage.OUTSIDE  # where what an earlier call has left on the page does not count
    written = _read(page, awake) if page[ProgressField.ATTACHED_AT] else None
    return ProgressSample(
        iteration=iteration,
        stage=stage,
        alive_at=awake(page.alive_at()),
        watchdog_alive_at=awake(page[ProgressField.WATCHDOG_HEARTBEAT] / 1e9 or math.inf),
        stopped=stopped,
        protected=outside or page[ProgressField.UNPROTECTED] == 0,
        noticed=page[ProgressField.NOTICED] == iteration + 1,
        interrupting=not outside and page[ProgressField.INTERRUPTING] == iteration + 1,
        imported_at=awake(page[ProgressField.IMPORTED_AT] / 1e9),
        out_by=math.inf if page[ProgressField.ATOMIC] else out_by,
        limit=earliest(written) if written else None,
        max_sample_interval=written.max_sample_interval if written else math.inf,
    )


def signs_of_life(page: Page) -> float:
    """Return the time of the last sign of life of a monitored rank, of any kind, in monotonic seconds."""
    return max(page[field] for field in _SIGNS) / 1e9


def open_section(page: Page, now: float) -> tuple[str, float]:
    """Return the open section that was opened last, and for how many seconds it has been open; "" for none.

    Args:
        page: the rank's page.
        now: monotonic seconds.
    """
    opened = [(page.words[slot + SectionField.OPENED_AT], name) for name, slot in page.sections().items()]
    at, name = max(opened, default=(0, ""))
    return (name, now - at / 1e9) if at else ("", 0.0)


def recent_runs(page: Page, section: str, most: int) -> tuple[int, list[float]]:
    """Return how many runs of a section are over, and the durations of its last ones, in seconds.

    Args:
        page: the rank's page.
        section: the name of the section; of one that was not declared, there are no runs.
        most: how many durations; runs that have not ended in order, and those long past, have none.
    """
    words, slot = page.words, page.sections().get(section)
    if slot is None:
        return 0, []
    over = words[slot + SectionField.COUNT] - (words[slot + SectionField.OPENED_AT] != 0)
    first = max(over - min(most, RECENT_RUNS - 1), 0) + 1
    runs = [words[slot + SectionField.RECENT + number % RECENT_RUNS] for number in range(first, over + 1)]
    return over, [nanoseconds / 1e9 for nanoseconds in runs if nanoseconds > 0]


def _read(page: Page, awake: Callable[[float], float]) -> RankSample:
    """Return what a monitored rank has written.

    The open sections are read before the time of the last change: a section that is opened meanwhile has a new time.
    """
    words = page.words
    sections = tuple(_section(page, name, slot, awake) for name, slot in page.sections().items())

    def latest(*fields: ProgressField) -> float | None:
        time = max(words[field] for field in fields)
        return awake(time / 1e9) if time else None

    in_call = words[ProgressField.STAGE] != Stage.OUTSIDE
    automatic = _IN_CALL if in_call else (ProgressField.SAMPLED_AT,)

    return RankSample(
        attached_at=awake(words[ProgressField.ATTACHED_AT] / 1e9),
        heartbeat_at=latest(ProgressField.HEARTBEAT_AT, *((ProgressField.PING,) if in_call else ())),
        automatic_at=latest(*automatic),
        section_at=latest(ProgressField.SECTION_AT),
        initial_timeout=_timeout(words[ProgressField.INITIAL_TIMEOUT]),
        heartbeat_timeout=_timeout(words[ProgressField.HEARTBEAT_TIMEOUT]),
        out_timeout=_timeout(words[ProgressField.OUT_TIMEOUT]),
        warmup_steps=words[ProgressField.WARMUP_STEPS],
        sections=sections,
    )


def _section(page: Page, name: str, slot: int, awake: Callable[[float], float]) -> SectionSample:
    opened_at, timeout, count = (
        page.words[slot + field] for field in (SectionField.OPENED_AT, SectionField.TIMEOUT, SectionField.COUNT)
    )
    return SectionSample(name, awake(opened_at / 1e9) if opened_at else None, _timeout(timeout), count)


def _timeout(nanoseconds: int) -> float:
    return nanoseconds / 1e9 if nanoseconds > 0 else math.inf
