"""Generator of the state diagram in docs/explanation/hang-detection.md, by running the machine of a rank monitor.

Regenerate: python -m tests.harness.hang_detection_page
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nvrx_core.liveness.hang_detector import DetectorAction, Excuse, HangDetector, QueryPeers, RankMonitorRules
from nvrx_core.progress.limits import Limit, LimitKind, ProgressSample
from nvrx_core.progress.stage import Stage

__all__ = ["PAGE", "with_diagram"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "hang-detection.md"
BEGIN: Final = "<!-- verdicts made by python -m tests.harness.hang_detection_page -->\n"
END: Final = "<!-- end of what is made -->\n"

GRACE, TIMEOUT = 15.0, 100.0
RULES: Final = RankMonitorRules(interval=5.0, grace=GRACE)
EXPIRED, LONG_EXPIRED = TIMEOUT, 2 * TIMEOUT
Actions = tuple[DetectorAction, ...]
Play = tuple[HangDetector, Actions, float]


def with_diagram(text: str) -> str:
    """Return the page's text with an up-to-date diagram.

    Raises:
        ValueError: when the page has no place for it.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no place for the diagram: {BEGIN}{END}")
    return f"{before}{begin}\n```text\n{_drawn(_verdicts())}\n```\n\n{end}{after}"


def _drawn(arrows: list[tuple[str, str, str]]) -> str:
    longest = max(len(source) for source, _, _ in arrows)
    widest = max(len(label) for _, label, _ in arrows)
    return "\n".join(
        f"{source:{longest}} ── {label} {'─' * (widest - len(label))}─▶ {target}" for source, label, target in arrows
    )


def _verdicts() -> list[tuple[str, str, str]]:
    return [(source, _label(when, played[1]), _name(played)) for source, when, played in _plays()]


def _label(when: str, actions: Actions) -> str:
    return " / ".join((when, *(type(action).__name__ for action in actions)))


def _name(played: Play) -> str:
    detector, actions, now = played
    state = detector.state(now=now)
    if any(isinstance(action, QueryPeers) for action in actions):
        return "asking"
    if state.kill < math.inf:
        return "ended"
    if state.excused < math.inf or (state.seen < math.inf and not state.nobody_behind):
        return "excused"
    return "overdue" if state.nobody_behind else "watched"


def _plays() -> Iterator[tuple[str, str, Play]]:
    """Each state, an event in it, and the machine after that event."""
    yield "new", "a limit has expired already", _looks(HangDetector(RULES), EXPIRED)
    yield "new", "no limit has expired", _looks(HangDetector(RULES), 0.0)
    yield "watched", "a limit has expired", _looks(_watched(), EXPIRED)
    yield "asking", "a peer is behind", _answered(True)
    yield "asking", "no peer is behind", _answered(False)
    yield "asking", "twice the timeout is over", _answered(True, LONG_EXPIRED)
    yield "excused", "the rank moves", _moves(_excused())
    yield "excused", "the excuse is over, the limit still expired", _looks(_excused(), EXPIRED + TIMEOUT / 2)
    yield "overdue", "the rank moves", _moves(_overdue())
    yield "overdue", "the limit is still expired", _looks(_overdue(), EXPIRED)
    yield "ended", "the process is there after the grace time", _looks(_ended(), EXPIRED + GRACE)


def _watched() -> HangDetector:
    detector, _, _ = _looks(HangDetector(RULES), 0.0)
    return detector


def _answered(behind: bool, at: float = EXPIRED) -> Play:
    detector = _watched()
    assert detector.evaluate(_sample(), now=at) == (QueryPeers(),)
    detector.answered(Excuse.PEER_BEHIND if behind else None, now=at)
    return detector, (), at


def _excused() -> HangDetector:
    return _answered(True)[0]


def _overdue() -> HangDetector:
    return _answered(False)[0]


def _ended() -> HangDetector:
    return _looks(_overdue(), EXPIRED)[0]


def _looks(detector: HangDetector, now: float) -> Play:
    return detector, detector.evaluate(_sample(), now=now), now


def _moves(detector: HangDetector) -> Play:
    return detector, detector.evaluate(_sample(heartbeat_at=EXPIRED), now=EXPIRED), EXPIRED


def _sample(heartbeat_at: float = 0.0) -> ProgressSample:
    limit = Limit(LimitKind.HEARTBEAT, heartbeat_at, TIMEOUT)
    return ProgressSample(iteration=0, stage=Stage.OUTSIDE, alive_at=0.0, limit=limit)


if __name__ == "__main__":
    PAGE.write_text(with_diagram(PAGE.read_text()))
