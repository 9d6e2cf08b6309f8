"""An explicit-state checker of a coordinator and a few launchers: any order of events, over all reachable states.

Time is modelled by its guarantees only: a node is declared lost only if it has vanished, or if it was cut off and has
seen its own lease expire. The coordinator is rebuilt from its state in every step.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from nvrx_launcher.rendezvous.restart_budget import PacingRules

from tests.harness.sim.explorer import Space
from tests.harness.sim.rendezvous_scenarios import Machines

__all__ = ["Launchers"]

KILL: Final = 9


@dataclass
class Node:
    """A launcher with one worker: the cycle that this runs, its signal; the number of the node, and the one before."""

    policy: Any
    number: int
    before: int = -1
    read: int = 0
    runs: int = -1
    signal: int = 0
    queue: tuple[Any, ...] = ()
    is_cut: bool = False
    is_fenced: bool = False
    joins_again: bool = False
    code: int | None = None

    def key(self) -> tuple[Any, ...]:
        policy = tuple(sorted((name, str(value)) for name, value in vars(self.policy).items()))
        return (policy, *(value for name, value in vars(self).items() if name != "policy"))


@dataclass
class World:
    """What there is; `faults`: how many failures, losses and cuts are still to come."""

    state: Any
    nodes: tuple[Node, ...]
    faults: tuple[int, int, int]
    decisions: tuple[Any, ...] = ()
    numbers: int = 0

    def key(self) -> tuple[Any, ...]:
        """What is the same, whatever led to it; decisions that all have read are forgotten."""
        living = [node.read for node in self.nodes if node.code is None]
        first = min(living, default=len(self.decisions))
        nodes = tuple((node.read - first, *node.key()) for node in self.nodes)
        return (self.state, nodes, self.faults, self.decisions[first:], self.numbers)


class Launchers(Space[World]):
    """What can happen to a coordinator and a few launchers.

    Args:
        machines: what decides, as shipped or with a mistake.
        least: nodes that a cycle needs.
        count: launchers.
        faults: failures of workers, losses of launchers, cuts of the network.
        policy: as of the command.
    """

    def __init__(
        self, machines: Machines, least: int, count: int, faults: tuple[int, int, int], policy: str = "any-failed"
    ) -> None:
        self.machines, self.count, self.faults = machines, count, faults
        self.rules = machines.coordinator.Rules(
            least,
            count,
            1,
            restart_policy=policy,
            last_call_timeout=0.0,
            join_timeout=1e9,
            pacing=PacingRules(backoff=None),
        )

    def first(self) -> World:
        """All join."""
        coordinator = self.machines.coordinator.Coordinator(self.rules)
        coordinator.start(now=0.0)
        world = World(coordinator.state(now=0.0), (), self.faults, numbers=self.count)
        for number in range(self.count):
            policy = self.machines.policy.NodePolicy(
                1, workers_stop_timeout=1.0, term_timeout=1.0,
                min_healthy=self.rules.restart_policy == "min-healthy",
            )  # fmt: skip
            world.nodes += (Node(policy, number),)
            self._carry_out(world, world.nodes[-1], policy.joined(number))
        return world

    def of(self, world: World) -> Iterator[tuple[str, World]]:
        """Return what can happen next."""
        for place, node in enumerate(world.nodes):
            for name in self._possible(world, node):
                yield f"{name} {place}", self._step(world, place, name)

    def key(self, world: World) -> Hashable:
        """Return what is the same, whatever led to it."""
        return world.key()

    def _possible(self, world: World, node: Node) -> Iterator[str]:
        """What can happen to a node next."""
        failures, losses, cuts = world.faults
        listed = {number for number, _ in world.state.nodes}
        if node.queue and not node.is_cut and node.code != -KILL:
            yield "deliver"
        if node.number in listed and (node.code == -KILL or (node.is_fenced and node.runs < 0)):
            yield "lost"
        if node.before in listed and (node.code == -KILL or node.runs < 0):
            yield "lost_before"
        if node.code is not None:
            return
        if node.read < len(world.decisions) and not node.is_cut:
            yield "read"
        if node.runs >= 0:
            yield "dies" if node.signal else "done"
            yield from ["fails"] * bool(failures and not node.signal)
        yield from ["crash"] * bool(losses)
        yield from ["cut"] * bool(cuts and not node.is_cut)
        if node.is_cut:
            yield "heal" if node.is_fenced or node.runs < 0 else "fence"
        if node.joins_again and not node.is_cut:
            yield "join"

    def _step(self, world: World, place: int, name: str) -> World:
        new = copy.copy(world)
        new.nodes = tuple(map(_copied, world.nodes))
        getattr(self, f"_{name}")(new, new.nodes[place])
        return new

    def _deliver(self, world: World, node: Node) -> None:
        message, *rest = node.queue
        node.queue = tuple(rest)
        self._decide(world, lambda coordinator: coordinator.received(message, now=0.0))

    def _lost(self, world: World, node: Node) -> None:
        self._decide(world, lambda coordinator: coordinator.lost(node.number, "no lease", now=0.0))

    def _lost_before(self, world: World, node: Node) -> None:
        self._decide(world, lambda coordinator: coordinator.lost(node.before, "no lease", now=0.0))

    def _decide(self, world: World, ask: Any) -> None:
        coordinator = self.machines.coordinator.Coordinator.from_state(self.rules, world.state, now=0.0)
        decisions = ask(coordinator) + coordinator.tick(now=0.0)
        coordinator.check()
        world.decisions += decisions
        world.state = coordinator.state(now=0.0)

    def _read(self, world: World, node: Node) -> None:
        decision = world.decisions[node.read]
        node.read += 1
        self._carry_out(world, node, node.policy.decided(decision))

    def _done(self, world: World, node: Node) -> None:
        self._end_worker(world, node, 0)

    def _fails(self, world: World, node: Node) -> None:
        failures, losses, cuts = world.faults
        world.faults = failures - 1, losses, cuts
        self._end_worker(world, node, 3)

    def _dies(self, world: World, node: Node) -> None:
        self._end_worker(world, node, -node.signal)

    def _end_worker(self, world: World, node: Node, code: int) -> None:
        node.runs, node.signal = -1, 0
        self._carry_out(world, node, node.policy.worker_exited(0, code, "it has failed"))

    def _crash(self, world: World, node: Node) -> None:
        failures, losses, cuts = world.faults
        world.faults = failures, losses - 1, cuts
        node.runs, node.code, node.queue = -1, -KILL, ()

    def _cut(self, world: World, node: Node) -> None:
        failures, losses, cuts = world.faults
        world.faults, node.is_cut = (failures, losses, cuts - 1), True

    def _fence(self, world: World, node: Node) -> None:
        node.is_fenced = True
        self._carry_out(world, node, node.policy.lease_expired("no answer"))

    def _heal(self, world: World, node: Node) -> None:
        if not node.is_fenced:
            self._fence(world, node)
        node.is_cut = False

    def _join(self, world: World, node: Node) -> None:
        node.joins_again, node.is_fenced = False, False
        node.before, node.number = node.number, world.numbers
        world.numbers += 1
        self._carry_out(world, node, node.policy.joined(node.number))

    def _carry_out(self, world: World, node: Node, actions: tuple[Any, ...]) -> None:
        policy, messages = self.machines.policy, self.machines.messages
        node.policy.check()
        for action in actions:
            if isinstance(action, policy.StartWorkers):
                self._start(world, node, action.decision.cycle)
            elif isinstance(action, policy.StopWorkers):
                node.signal = action.signum
            elif isinstance(action, policy.JoinAgain):
                node.joins_again = True
            elif isinstance(action, policy.SendMessage):
                described = messages.NodeDescription("host", "a", 1, 1) if action.kind.value == "ready" else None
                node.queue += (messages.Message(node.number, action.kind, action.cycle, "", described),)
            elif isinstance(action, policy.EndLaunch):
                node.code = action.code

    def _start(self, world: World, node: Node, cycle: int) -> None:
        if node.runs >= 0:
            raise AssertionError("started twice")
        node.runs = cycle
        running = {each.runs for each in world.nodes if each.runs >= 0}
        if len(running) > 1:
            raise AssertionError(f"workers of cycles {running} at a time")

    def check_end(self, world: World) -> tuple[int | None, ...]:
        """Check how the launchers have ended; return their exit codes."""
        codes = tuple(node.code for node in world.nodes)
        living = {code for code in codes if code != -KILL}
        enough = sum(code != -KILL for code in codes) >= self.rules.min_nodes
        assert len(living) <= 1, f"it ends with {codes}"
        assert not enough or None not in living, f"it ends with {codes}"
        assert 1 not in living or world.faults[0] != self.faults[0], "it fails, and no worker has failed"
        return codes


def _copied(node: Node) -> Node:
    """Return a node of its own: a set that two states shared would let one change the other."""
    new = copy.copy(node)
    new.policy = copy.copy(node.policy)
    for name, value in vars(node.policy).items():
        if isinstance(value, dict | set):
            setattr(new.policy, name, value.copy())
    return new
