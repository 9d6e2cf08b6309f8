"""A sample of a rank's progress page, as `limits` evaluates it.

In a wrapped call, `ping` is a heartbeat, and the call's own watchdog samples the main thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from nvrx_core.progress.limits import RankSample, SectionSample
from nvrx_core.progress.page import Page, ProgressField, SectionField
from nvrx_core.progress.stage import Stage

__all__ = ["look_within", "take_sample"]

_IN_CALL: Final = (ProgressField.AUTO_HEARTBEAT, ProgressField.MAIN_THREAD_HEARTBEAT)


def take_sample(page: Page, awake: Callable[[float], float]) -> RankSample:
    """Sample a page.

    The open sections are read before the time of the last change: a section that is opened meanwhile has a new time.

    Args:
        page: the rank's page.
        awake: maps a monotonic time to the time in which silence is measured.
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


def look_within(page: Page) -> float:
    """Return within how many seconds to look at a rank's heartbeats and sections; `inf` when it has none."""
    return take_sample(page, lambda moment: moment).look_within if page[ProgressField.ATTACHED_AT] else math.inf


def _section(page: Page, name: str, slot: int, awake: Callable[[float], float]) -> SectionSample:
    opened_at, timeout, count = (
        page.words[slot + field] for field in (SectionField.OPENED_AT, SectionField.TIMEOUT, SectionField.COUNT)
    )
    return SectionSample(name, awake(opened_at / 1e9) if opened_at else None, _timeout(timeout), count)


def _timeout(nanoseconds: int) -> float:
    return nanoseconds / 1e9 if nanoseconds > 0 else math.inf
