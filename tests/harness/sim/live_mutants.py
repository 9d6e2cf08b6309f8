"""Mutants of live state; each must be detected."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from nvrx_core.inprocess.live import memory, training

from .monitor_mutants import load_mutant

__all__ = ["MUTANTS", "mutated"]

RESERVE: Final[dict[str, Any]] = {"processes": 3, "active": 2, "steps": 1, "faults": 2}
SHARDED: Final[dict[str, Any]] = {"shards": 2, "faults": 1}
LOST: Final[dict[str, Any]] = {"processes": 3, "active": 2, "steps": 1, "faults": 1, "kills": 1}
REPLICAS: Final[dict[str, Any]] = {"processes": 4, "steps": 1, "faults": 1, "kills": 1, "shards": 2}
SHARD_LOST: Final[dict[str, Any]] = {"processes": 3, "steps": 1, "shards": 2, "faults": 1, "kills": 1}
ALTERNATING: Final[dict[str, Any]] = {"processes": 2, "active": 1, "steps": 1, "faults": 2}
ONCE: Final[dict[str, Any]] = {"faults": 1}
TWICE: Final[dict[str, Any]] = {"steps": 1, "faults": 2}
UNTOLD: Final[dict[str, Any]] = {"faults": 1, "tells": False}
UNTOLD_TWICE: Final[dict[str, Any]] = {**TWICE, "tells": False}
UNKNOWING: Final[dict[str, Any]] = {"shards": 2, "steps": 1, "faults": 2, "unknowing": (1,)}
PASSED_AND_LOST: Final[dict[str, Any]] = {"steps": 1, "faults": 2, "kills": 1}

VOTES: Final = "rows = await ports.vote(row)  # outside"
CAPTURES: Final = "        row = await ports.capture(objects, step)\n        self.memory = self.memory.come_to_vote"
ADVANCES: Final = "        await self._advance(ports, objects, stamp)\n"
STEPS: Final = "                await self._advance(ports, old, newest)\n"
BEGINS: Final = "Memory(new, newest, passed=passed)"
FROM_ITS_SHARD: Final = "        sources = [rank for rank in at_newest if holdings[rank].shard == holdings[to].needs]\n"
UNDECLINED: Final = "        rows = await ports.vote(row)\n        if rows is None:\n            self.memory = before"
RESTORES: Final = "        await ports.adopt(old, new)\n        await ports.restore(new, row)\n"
NO_STEP: Final = "                self.memory = self.memory.complete(newest)\n"

MUTANTS: Final[dict[str, tuple[ModuleType, str, str, dict[str, Any]]]] = {
    "no vote": (training, VOTES, VOTES.replace("await ports.vote(row)", "(row,) * 2"), SHARDED),
    "the advance precedes the vote": (training, CAPTURES, ADVANCES + CAPTURES, SHARDED),
    "no local state": (training, "        if row is not None:\n", "        if False:\n", ONCE),
    "the local state of another rank": (training, "row_of(passed.rows, rank)", "row_of(passed.rows, 0)", LOST),
    "no iteration in the stamps": (training, "stamp = Stamp(ports.iteration, step)", "stamp = Stamp(0, step)", RESERVE),
    "the oldest step": (memory, "newest = max((", "newest = min((", UNTOLD),
    "torn parameters count": (memory, "return not self.torn and stamp in", "return stamp in", TWICE),
    "an advance does not tear": (memory, "return replaced(self, torn=True)", "return self", TWICE),
    "a failed advance never tears": (training, "if not ports.is_changed():", "if True:", TWICE),
    "every failed advance tears": (training, "if not ports.is_changed():", "if False:", SHARDED),
    "the interrupted step is not done": (training, STEPS, NO_STEP, ONCE),
    "the interrupted step is done twice": (training, " and self.memory.version != newest", "", ONCE),
    "the first vote of a branch is a step": (training, "row, due=False))\n", "row, due=True))\n", TWICE),
    "only who is at the step reaches it": (
        memory, "stamp in stamps", "stamp == self.version", SHARDED),
    "no atomic section": (training, "        await ports.enter_atomic()\n", "", SHARDED),
    "the branch begins before its vote": (
        training, BEGINS, "Memory(new, Stamp(ports.iteration, newest.step), passed=passed)", UNTOLD_TWICE),
    "who has received is at no step": (training, BEGINS, "Memory(new, passed=passed)", TWICE),
    "any shard will do": (memory, FROM_ITS_SHARD, "        sources = at_newest\n", REPLICAS),
    "missing shards are not missed": (memory, "if missing := {", "if False and {", SHARDED),
    "what is in memory is not used": (memory, "    if newest is None:\n", "    if True:\n", ONCE),
    "a vote is forgotten where a step is not whole": (
        training, "self.memory = Memory(new, passed=self.memory.passed)\n", "self.memory = Memory(new)\n", RESERVE),
    "who is behind goes on alone": (memory, "self.version == stamp and ", "", ONCE),
    "who has another shard goes on alone": (memory, " and self.shard == self.needs", "", SHARD_LOST),
    "who has no local state goes on alone": (
        memory, " and self.serves_row(stamp, rank)", "", {**RESERVE, "kills": 1}),
    "who goes on alone does not take its local state": (training, RESTORES, RESTORES.partition("\n")[0] + "\n", ONCE),
    "nobody declines": (
        training, UNDECLINED, UNDECLINED.replace("rows is None", "False"), ONCE),
    "the new objects are changed before all go on": (
        training, UNDECLINED, "        await ports.adopt(old, new)\n" + UNDECLINED, SHARD_LOST),
    "a vote that only others have passed is not learned": (
        memory, "if passed is None or passed.stamp < stamp:", "if False:", PASSED_AND_LOST),
    "an interrupted vote is given up before all go on": (
        memory, "replaced(self, beginning=mark)", "replaced(self, beginning=mark, pending=None)", UNKNOWING),
    "who was interrupted where a branch begins does not reach it": (
        memory, ", self.beginning and self.beginning[0])", ")", {**TWICE, "shards": 2}),
    "who was interrupted where a branch begins does an older step": (
        training, "pending.stamp == newest and pending.due", "pending.due", TWICE),
    "rows come from votes only": (memory, "return has_rows or self.has_row(stamp, rank)", "return has_rows", RESERVE),
}  # fmt: skip
"""The module, the shipped text, the mistake, and a space in which it is seen."""


@contextmanager
def mutated(name: str | None) -> Iterator[tuple[ModuleType, ModuleType]]:
    """The modules `training` and `memory`, with a mistake in one of them; None: as they are shipped.

    Raises:
        AssertionError: when the shipped text is no longer there.
    """
    if name is None:
        yield training, memory
        return
    module, shipped, mistake, _ = MUTANTS[name]
    before = {each.__name__: sys.modules[each.__name__] for each in (memory, training)}
    made = list[ModuleType]()
    try:
        for each in (memory, training):
            made.append(load_mutant(each, *((shipped, mistake) if module is each else ("", ""))))
            sys.modules[each.__name__] = made[-1]
        yield made[1], made[0]
    finally:
        sys.modules.update(before)
