"""Mistakes that are easy to make in the rules of the rendezvous; each must be found."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Final

from nvrx_launcher import node_policy
from nvrx_launcher.rendezvous import coordinator, lease, messages

from tests.harness.sim.rendezvous import Machines

__all__ = ["MUTANTS", "mutated"]

MUTANTS: Final[dict[str, tuple[ModuleType, str, str]]] = {
    "a lost node uses up a restart": (
        coordinator, '        self._failure = ""\n        return (*stop,', "        return (*stop,"),
    "every restart counts": (
        coordinator, "if self._failure:\n            self.restarts += 1", "if True:\n            self.restarts += 1"),
    "the next cycle does not wait for the last one": (
        coordinator, "if self._phase is Phase.STOPPING and not self._busy:", "if self._phase is Phase.STOPPING:"),
    "nobody is waited for when a cycle is stopped": (
        coordinator, "self._phase, self._busy = Phase.STOPPING, set(self._active)",
        "self._phase, self._busy = Phase.STOPPING, set()"),
    "the job is done when the first node is": (coordinator, "return () if self._busy else self._end(0,",
                                               "return self._end(0,"),
    "who has stopped stays busy": (coordinator, "        self._busy.discard(node)\n        return (*stop,",
                                   "        return (*stop,"),
    "who is lost stays busy": (coordinator, "for each in (self._active, self._busy, self._unhealthy):",
                               "for each in (self._active, self._unhealthy):"),
    "the state forgets who is busy": (coordinator, "set(state.active), set(state.busy), set(",
                                      "set(state.active), set(state.active), set("),
    "a node takes its lease for lost too late": (lease, "beat * (lost_after - 1)", "beat * (lost_after + 2)"),
    "the lease counts from the answer": (lease, "self.deadline = begun + self.ends_after",
                                         "self.deadline = begun + 2 * self.ends_after"),
    "a node that is cut off keeps its number": (
        node_policy, "        self._node = -1\n        return self._stop(self._kill_signal,",
        "        return self._stop(self._kill_signal,"),
    "a node that is cut off keeps its workers": (
        node_policy, "        self._node = -1\n        return self._stop(self._kill_signal,",
        "        self._node = -1\n        return () and (self._kill_signal,"),
    "a node that is cut off does not come back": (node_policy, '"it was cut off"), JoinAgain())',
                                                  '"it was cut off"),)'),
    "a node that is ready says nothing": (node_policy, "return () if self._is_excluded else", "return () if True else"),
}  # fmt: skip


def mutated(name: str | None) -> Machines:
    """Return the machines, with a mistake in one of them; None: as they are shipped.

    Raises:
        AssertionError: when the shipped text is no longer there.
    """
    module, shipped, mistake = MUTANTS[name] if name else (None, "", "")
    made = {
        each: _load(each, *((shipped, mistake) if each is module else ("", "")))
        for each in (coordinator, node_policy, lease)
    }
    return Machines(made[coordinator], made[node_policy], made[lease], messages)


def _load(module: ModuleType, shipped: str, mistake: str) -> ModuleType:
    if not shipped:
        return module
    text = inspect.getsource(module)
    assert text.count(shipped) == 1, f"{text.count(shipped)} times in {module.__name__}: adapt it to\n{shipped}"
    made = ModuleType(module.__name__)
    exec(compile(text.replace(shipped, mistake), f"<mutated in {module.__name__}>", "exec"), made.__dict__)
    return made
