"""Mutants of the hang detector as a rank monitor uses it, and of the monitor's turn; each must be detected."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final, NamedTuple

from nvrx_core.fault_tolerance import inquiry, process
from nvrx_core.liveness import hang_detector
from nvrx_core.progress import limits, sampling

__all__ = ["MUTANTS", "Modules", "load_mutant", "mutated"]

ASKS: Final = "            self.deadline = now\n            return (QueryPeers(),)\n"
DEADLINE: Final = "        return self.since + self.timeout\n"
KILLS: Final = "                    send(rank.pidfd, [signal.SIGKILL])\n"

MUTANTS: Final[dict[str, tuple[ModuleType, str, str]]] = {
    "the last limit counts, not the first": (limits, "return min(limits(sample),", "return max(limits(sample),"),
    "peers are not asked": (hang_detector, "        if not self._nobody_behind:\n" + ASKS, ""),
    "an excuse has no end": (hang_detector, "now < self._excusable_until.get(excuse, -math.inf)", "True"),
    "an excuse is for good": (hang_detector, "again = min(excused_at +", "again = max(excused_at +"),
    "nobody is excused": (hang_detector, "self._nobody_behind = not excused", "self._nobody_behind = True"),
    "whoever was asked about once is ended at the next hang": (
        hang_detector, "self._nobody_behind, self._seen_at = False, -math.inf",
        "self._seen_at = -math.inf"),
    "an excuse is never asked for again": (hang_detector, "        if now < at:\n",
                                           "        if now < at or self._excused_at > -math.inf:\n"),
    "the verdict is early": (limits, DEADLINE, DEADLINE.replace("self.timeout", "self.timeout - 1.0")),
    "the verdict is late": (limits, DEADLINE, DEADLINE.replace("self.timeout", "5 * self.timeout")),
    "the deadline of the limit is forgotten": (hang_detector, "self.deadline = min(self.deadline, expires_at)",
                                               "self.deadline = now + 50 * self.rules.interval"),
    "a rank that survives its signal is left": (hang_detector, "        if now >= self._kill_at:\n",
                                                "        if False:\n"),
    "a rank is killed at once": (hang_detector, "self._kill_at = self.deadline = now + self.rules.grace",
                                 "self._kill_at = self.deadline = now + 0.5"),
    "a rank is killed in each turn": (hang_detector, "self._kill_at, actions = now + KILL_AGAIN,",
                                      "self._kill_at, actions = now + 0.5,"),
    "the state forgets the question": (hang_detector, "nobody_behind=self._nobody_behind,", "nobody_behind=True,"),
    "a monitor that has only just come is sure": (hang_detector, "self._seen_at + min(self.rules.first_sample_grace,",
                                                  "self._seen_at + min(0.0,"),
    "a monitor has always only just come": (hang_detector, "self._seen_at = min(self._seen_at, now)",
                                            "self._seen_at = now"),
    "a collective excuses for good": (hang_detector, "Excuse.IN_COLLECTIVE: limit.deadline + min(",
                                      "Excuse.IN_COLLECTIVE: limit.deadline + max(99.0, "),
    "a turn ends with its question": (process, "        if self._inquiry is None or self._pass_on(self._inquiry):\n",
                                      "        if self._inquiry is None:\n"),
    "the answer of the others is not passed on": (process, "if self.detector.answered(found.excuse, now=",
                                                  "if self.detector.answered(Excuse.PEER_BEHIND, now="),
    "a verdict is not carried out": (process, "                    self._terminate(rank, reason)\n",
                                     "                    pass\n"),
    "a kill is not carried out": (process, KILLS, "                    pass\n"),
    "a closed section counts as open since it was opened": (
        limits, "        if section.opened_at is None:\n            continue\n", ""),
    "a heartbeat counts from the start": (limits, "Limit(LimitKind.HEARTBEAT, sample.heartbeat_at,",
                                          "Limit(LimitKind.HEARTBEAT, sample.attached_at,"),
}  # fmt: skip


class Modules(NamedTuple):
    """What judges a rank, as shipped or with a mistake."""

    limits: ModuleType
    hang_detector: ModuleType
    sampling: ModuleType
    inquiry: ModuleType
    process: ModuleType


@contextmanager
def mutated(name: str | None) -> Iterator[Modules]:
    """The modules, loaded anew, with a mistake in one of them; None: as they are shipped.

    Raises:
        AssertionError: when the shipped text is no longer there.
    """
    module, shipped, mistake = MUTANTS[name] if name else (None, "", "")
    originals = (limits, hang_detector, sampling, inquiry, process)
    made = list[ModuleType]()
    try:
        for each in originals:
            made.append(load_mutant(each, *((shipped, mistake) if module is each else ("", ""))))
            sys.modules[each.__name__] = made[-1]
        yield Modules(*made)
    finally:
        sys.modules.update({each.__name__: each for each in originals})


def load_mutant(module: ModuleType, shipped: str, mistake: str) -> ModuleType:
    """Return a copy of a module with a mistake in the place of the shipped text; "" for none.

    Raises:
        AssertionError: when the shipped text is no longer there.
    """
    text = inspect.getsource(module)
    if shipped:
        assert text.count(shipped) == 1, f"{text.count(shipped)} times in {module.__name__}: adapt it to\n{shipped}"
        text = text.replace(shipped, mistake)
    made = ModuleType(module.__name__)
    exec(compile(text, f"<mutated in {module.__name__}>", "exec"), made.__dict__)
    return made
