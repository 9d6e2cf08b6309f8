"""Mutants of the rules of the rendezvous; each must be detected."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Final

from nvrx_launcher import node_policy
from nvrx_launcher.rendezvous import coordinator, lease, messages, restart_budget

from tests.harness.sim.rendezvous_scenarios import Machines

__all__ = ["MUTANTS", "load", "mutated"]

MUTANTS: Final[dict[str, tuple[ModuleType, str, str]]] = {
    "a lost node uses up a restart": (restart_budget, "self.forgive()\n        self._has_lost_node = True", "pass"),
    "every restart counts": (
        restart_budget, "if self._failure:\n            self.restarts += 1",
        "if True:\n            self.restarts += 1"),
    "the next cycle does not wait for the last one": (
        coordinator, "if self._phase is JobPhase.STOPPING and not self._members.busy:",
        "if self._phase is JobPhase.STOPPING:"),
    "nobody is waited for when a cycle is stopped": (
        coordinator, "self.busy = set(self.active)\n\n    def lose", "self.busy = set()\n\n    def lose"),
    "the job is done when the first node is": (coordinator, "return () if self._members.busy else self._end(0,",
                                               "return self._end(0,"),
    "who has stopped stays busy": (coordinator, "        self._members.busy.discard(node)\n        return (*stop,",
                                   "        return (*stop,"),
    "who is lost stays busy": (coordinator, "for each in (self.active, self.busy, self.unhealthy,",
                               "for each in (self.active, self.unhealthy,"),
    "the state forgets who is busy": (coordinator, "set(state.busy), set(state.unhealthy)",
                                      "set(state.active), set(state.unhealthy)"),
    "a node takes its lease for lost too late": (
        lease, "beat, timeout, math.inf", "beat, timeout + 3 * beat, math.inf"),
    "the lease counts from the answer": (lease, "max(begun + self.timeout,", "max(begun + 2 * self.timeout,"),
    "a node that is cut off keeps its number": (
        node_policy, "        self._node = -1\n        return self._stop(kill(",
        "        return self._stop(kill("),
    "a node that is cut off keeps its workers": (
        node_policy, "        self._node = -1\n        return self._stop(kill(",
        "        self._node = -1\n        return () and (kill("),
    "a node that is cut off does not come back": (
        node_policy, "self.cycle, CUT_OFF), JoinAgain(CUT_OFF))", "self.cycle, CUT_OFF),)"),
    "a node that is ready says nothing": (node_policy, "return () if self._is_excluded else", "return () if True else"),
}  # fmt: skip


def mutated(name: str | None) -> Machines:
    """Return the machines, with a mistake in one of them; None: as they are shipped.

    Raises:
        AssertionError: when the shipped text is no longer there.
    """
    made = {each: each for each in (coordinator, node_policy, lease)}
    if name:
        module, shipped, mistake = MUTANTS[name]
        made[module] = load(module, shipped, mistake)
        if module is restart_budget:  # the coordinator imports it
            made[coordinator] = load(coordinator)
            vars(made[coordinator])["RestartBudget"] = made[module].RestartBudget
    return Machines(made[coordinator], made[node_policy], made[lease], messages)


def load(module: ModuleType, shipped: str = "", mistake: str = "") -> ModuleType:
    """Return a module of its own, with another text in the place of the shipped one."""
    text = inspect.getsource(module)
    assert not shipped or text.count(shipped) == 1, (
        f"{text.count(shipped)} times in {module.__name__}: adapt it to\n{shipped}"
    )
    made = ModuleType(module.__name__)
    exec(compile(text.replace(shipped, mistake) if shipped else text, f"<from {module.__name__}>", "exec"), vars(made))
    return made
