"""Mutants of the rules of rank monitors; each must be detected."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from nvrx_core.fault_tolerance import judging, policy
from nvrx_core.progress import limits

__all__ = ["MUTANTS", "mutated"]

ASKS: Final = "        if not self._nobody_behind:\n            return (QueryPeers(limit),)\n"
IN_TIME: Final = "        if limit is None or now < limit.deadline:\n"

MUTANTS: Final[dict[str, tuple[ModuleType, str, str]]] = {
    "the last limit counts, not the first": (limits, "return min(limits(sample),", "return max(limits(sample),"),
    "peers are not asked": (policy, ASKS, ""),
    "an excuse has no end": (policy, "self._nobody_behind = not behind or now >= excusable_until",
                             "self._nobody_behind = not behind"),
    "an excuse is for good": (policy, "            self._excused_until = self.deadline = min(",
                              "            self._excused_until = self.deadline = max("),
    "nobody is excused": (policy, "self._nobody_behind = not behind or", "self._nobody_behind = True or"),
    "whoever was asked about once is ended at the next hang": (
        policy, "            self._nobody_behind, self._excused_until = False, -math.inf\n", ""),
    "an excuse is never asked for again": (policy, "        if now < self._excused_until:\n",
                                           "        if self._excused_until > -math.inf:\n"),
    "the verdict is early": (policy, IN_TIME, IN_TIME.replace("limit.deadline", "limit.deadline - 1.0")),
    "the verdict is late": (policy, IN_TIME, IN_TIME.replace("limit.deadline", "limit.deadline + 4 * limit.timeout")),
    "the deadline of the limit is forgotten": (policy, "limit.deadline if limit else math.inf, now + min(self.interval",
                                               "math.inf, now + 50 * min(self.interval"),
    "a rank that survives its signal is left": (policy, "        if now < self._kill_at:\n", "        if True:\n"),
    "a rank is killed at once": (policy, "self._kill_at = self.deadline = now + self.grace",
                                 "self._kill_at = self.deadline = now + 0.5"),
    "a rank is killed in each turn": (policy, "self._kill_at = self.deadline = now + KILL_AGAIN",
                                      "self.deadline = now + KILL_AGAIN"),
    "the state forgets the question": (policy, "return MonitorPolicyState(self._nobody_behind,",
                                       "return MonitorPolicyState(True,"),
    "a monitor that has only just come is sure": (policy, "        if first:\n", "        if False:\n"),
    "a monitor has always only just come": (policy, "not self._seen, True", "True, True"),
    "a turn ends with its question": (judging, "                    asks = True\n", "                    pass\n"),
    "the answer of the others is not passed on": (
        judging, "peers_behind(limit, await rank.is_excused(action), now=now())",
        "peers_behind(limit, bool(await rank.is_excused(action)) or True, now=now())"),
    "a verdict is not carried out": (
        judging, "                    rank.terminate(action)\n", "                    pass\n"),
    "a kill is not carried out": (
        judging, "                    rank.kill(action)\n", "                    pass\n"),
    "a closed section counts as open since it was opened": (
        limits, "        if section.opened_at is None:\n            continue\n", ""),
    "a heartbeat counts from the start": (limits, "Limit(LimitKind.HEARTBEAT, sample.heartbeat_at,",
                                          "Limit(LimitKind.HEARTBEAT, sample.attached_at,"),
}  # fmt: skip


@contextmanager
def mutated(name: str | None) -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    """The modules `limits`, `policy` and `judging`, with a mistake in one of them; None: as they are shipped.

    Raises:
        AssertionError: when the shipped text is no longer there.
    """
    module, shipped, mistake = MUTANTS[name] if name else (None, "", "")
    before = {each.__name__: sys.modules[each.__name__] for each in (limits, policy, judging)}
    made = list[ModuleType]()
    try:
        for each in (limits, policy, judging):
            made.append(_load(each, *((shipped, mistake) if module is each else ("", ""))))
            sys.modules[each.__name__] = made[-1]
        yield made[0], made[1], made[2]
    finally:
        sys.modules.update(before)


def _load(module: ModuleType, shipped: str, mistake: str) -> ModuleType:
    text = inspect.getsource(module)
    if shipped:
        assert text.count(shipped) == 1, f"{text.count(shipped)} times in {module.__name__}: adapt it to\n{shipped}"
        text = text.replace(shipped, mistake)
    made = ModuleType(module.__name__)
    exec(compile(text, f"<mutated in {module.__name__}>", "exec"), made.__dict__)
    return made
