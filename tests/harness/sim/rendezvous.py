"""Rendezvous in virtual time: a coordinator and its nodes over a store, with network delays and losses.

The machines are the shipped ones. Around them is what their shells do: messages and decisions are numbered keys, which
each node reads after a delay of its own; a node that is cut off reads and writes nothing; leases are moved each beat by
requests that take time, and looked at each beat; another coordinator goes on from the state beside the last decision.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from nvrx_core.liveness.lease import LeaseTable
from tests.harness.sim.rendezvous_scenarios import Machines, Scenario

__all__ = ["Failure", "Job"]

BEAT: Final = 1.0
LOST_AFTER: Final = 5
REQUEST: Final = 0.3
"""Maximum one-way latency of a request, seconds."""
DIES_WITHIN: Final = 0.5
"""Seconds from a SIGKILL to the end of a worker, at most; less than a beat."""
STOPS_WITHIN: Final = 3.0
"""Seconds from a SIGTERM to the end of a worker, at most."""
CLAIMS_AFTER: Final = 6.0
"""Seconds until a lost coordinator is replaced."""


class Failure(AssertionError):
    """A violated rule, and its scenario."""


@dataclass
class Node:
    """A launcher: what decides, its number, its workers by local rank with their cycle, and what it has read."""

    policy: Any
    lease: Any
    number: int
    workers: dict[int, int] = field(default_factory=dict)
    read: int = 0
    queue: list[Any] = field(default_factory=list)
    sending: bool = False
    starts: int = 0
    cut_until: float = 0.0
    code: int | None = None


class Job:
    """The nodes, the coordinator and the store of a scenario.

    Args:
        scenario: what happens.
        machines: the machines under test.
    """

    def __init__(self, scenario: Scenario, machines: Machines) -> None:
        self.scenario, self.machines = scenario, machines
        self.rng = random.Random(scenario.seed)
        self.now, self._order, self._numbers = 0.0, itertools.count(), itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.inbox: list[Any] = []
        self.decisions: list[Any] = []
        self.beats: dict[int, int] = {}
        self.nodes: dict[int, Node] = {}
        self.history: list[str] = []
        self.running: Counter[int] = Counter()
        rules = machines.coordinator.Rules(
            scenario.least, scenario.most, scenario.max_restarts, restart_policy=scenario.policy, join_timeout=100.0
        )
        self.coordinator = machines.coordinator.Coordinator(rules)
        self.coordinator.start(now=0.0)
        self.checkpoint = (self.coordinator.state(now=0.0), 0)
        self.handled, self.is_led = 0, True
        self.leases = LeaseTable[int](BEAT * LOST_AFTER)

    def run(self, until: float = 900.0) -> dict[int, int]:
        """Run to the end; returns the exit codes of the launchers that have one.

        Raises:
            Failure: when a rule is broken, or the job does not end.
        """
        for number, at in enumerate(self.scenario.joins):
            self._at(at, functools.partial(self._begin, number))
        for at, number in self.scenario.failures:
            self._at(at, functools.partial(self._fail_a_worker, number))
        for at, number in self.scenario.losses:
            self._at(at, functools.partial(self._lose, number))
        for at, number, seconds in self.scenario.cuts:
            self._at(at, functools.partial(self._cut, number, seconds))
        for at in self.scenario.successions:
            self._at(at, self._lose_the_coordinator)
        self._at(0.0, self._watch)
        while self._events and self.now < until:
            self.now, _, event = heapq.heappop(self._events)
            event()
            if self._is_over():
                break
        self._check_end()
        return {number: node.code for number, node in self.nodes.items() if node.code is not None}

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _soon(self, event: Callable[[], None], most: float = REQUEST) -> None:
        self._at(self.now + self.rng.uniform(0.0, most), event)

    def _is_over(self) -> bool:
        return bool(self.nodes) and self.now > 61 and all(node.code is not None for node in self.nodes.values())

    # Nodes

    def _begin(self, number: int) -> None:
        policy = self.machines.policy.NodePolicy(
            1, workers_stop_timeout=15.0, term_timeout=15.0,
            min_healthy=self.scenario.policy == "min-healthy",
        )  # fmt: skip
        self.nodes[number] = Node(policy, self.machines.lease.Lease(BEAT, BEAT * (LOST_AFTER - 1)), next(self._numbers))
        self._beat(number)
        self._carry_out(number, policy.joined(self.nodes[number].number))
        self._follow(number)

    def _beat(self, number: int) -> None:
        """Move the lease: a request, its effect, and its answer; what is under way when a node is cut off follows."""
        node = self.nodes[number]
        if node.code is not None:
            return
        begun = self.now

        def moved() -> None:
            if self._is_cut(number):
                self._at(node.cut_until, moved)
                return
            self.beats[node.number] = self.beats.get(node.number, 0) + 1
            self._soon(answered)

        def answered() -> None:
            if self._is_cut(number):
                self._at(node.cut_until, answered)
                return
            node.lease.moved(begun=begun)
            self._at(node.lease.deadline, lambda: self._look(number))
            self._at(max(self.now, begun + BEAT), lambda: self._beat(number))

        self._soon(moved)

    def _look(self, number: int) -> None:
        """Treat the lease as expired, when its deadline has passed."""
        node = self.nodes[number]
        if node.code is None and node.lease.is_lost(now=self.now):
            node.lease.release(now=self.now)
            self._carry_out(number, node.policy.lease_expired("no answer"))

    def _follow(self, number: int) -> None:
        """Read the next decision."""
        node = self.nodes[number]
        if node.code is not None or node.read >= len(self.decisions):
            return
        if self._is_cut(number):
            self._at(node.cut_until, lambda: self._follow(number))
            return
        batch = self.decisions[node.read]
        node.read += 1
        for decision in batch:
            self._carry_out(number, node.policy.decided(decision))
        self._soon(lambda: self._follow(number))

    def _carry_out(self, number: int, actions: tuple[Any, ...]) -> None:
        node, policy = self.nodes[number], self.machines.policy
        for action in actions:
            if isinstance(action, policy.StartWorkers):
                self._start(number, action.decision.cycle)
            elif isinstance(action, policy.StopWorkers):
                most = DIES_WITHIN if action.signum == 9 else STOPS_WITHIN
                end = functools.partial(self._end_worker, number, node.workers.get(0), -action.signum)
                self._soon(end, most)
            elif isinstance(action, policy.JoinAgain):
                self._soon(functools.partial(self._join_again, number))
            elif isinstance(action, policy.SendMessage):
                self._tell(number, action)
            elif isinstance(action, policy.EndLaunch):
                node.code = action.code
                self.history.append(f"{self.now:.1f} node {number} ends with {action.code}: {action.reason}")
        node.policy.check()

    def _start(self, number: int, cycle: int) -> None:
        node = self.nodes[number]
        self.history.append(f"{self.now:.1f} node {number} starts cycle {cycle}")
        node.workers, node.starts = {0: cycle}, node.starts + 1
        self.running[cycle] += 1
        if others := [other for other, count in self.running.items() if count and other != cycle]:
            self._break(f"node {number} starts cycle {cycle} while workers of cycles {others} run")
        self._at(self.now + self.scenario.length, lambda: self._end_worker(number, cycle, 0))

    def _forget(self, number: int) -> None:
        """A worker of a node has exited."""
        self.running.subtract(self.nodes[number].workers.values())
        self.nodes[number].workers = {}

    def _end_worker(self, number: int, cycle: int | None, code: int) -> None:
        node = self.nodes[number]
        if cycle is not None and node.workers.get(0) == cycle:
            self._forget(number)
            self._carry_out(number, node.policy.worker_exited(0, code, f"worker of {number} ended by {code}"))

    def _tell(self, number: int, tell: Any) -> None:
        """Queue a message; they arrive in order, once the network lets them."""
        messages, node = self.machines.messages, self.nodes[number]
        described = messages.NodeDescription(f"host{number:04}", "a", 1, 1) if tell.kind.value == "ready" else None
        node.queue.append(messages.Message(node.number, tell.kind, tell.cycle, tell.reason, described))
        self._send(number)

    def _join_again(self, number: int) -> None:
        node = self.nodes[number]
        if self._is_cut(number):
            self._at(node.cut_until, lambda: self._join_again(number))
        elif node.code is None:
            node.number = next(self._numbers)
            self._carry_out(number, node.policy.joined(node.number))

    def _send(self, number: int) -> None:
        node = self.nodes[number]
        if node.queue and not node.sending:
            node.sending = True
            self._soon(lambda: self._arrive(number))

    def _arrive(self, number: int) -> None:
        node = self.nodes[number]
        if node.code == -9:
            return
        if self._is_cut(number):
            self._at(node.cut_until, lambda: self._arrive(number))
            return
        node.sending = False
        self.inbox.append(node.queue.pop(0))
        self._soon(self._handle)
        self._send(number)

    # Faults

    def _is_cut(self, number: int) -> bool:
        return self.now < self.nodes[number].cut_until

    def _fail_a_worker(self, number: int) -> None:
        if number in self.nodes:
            self._end_worker(number, self.nodes[number].workers.get(0), -11)

    def _lose(self, number: int) -> None:
        if number in self.nodes and self.nodes[number].code is None:
            self.history.append(f"{self.now:.1f} node {number} vanishes")
            cycle = self.nodes[number].workers.get(0)
            self._forget(number)
            self.nodes[number].code = -9
            if cycle is not None and self.rng.random() < 0.5:  # one that has talked to it fails by it
                others = [other for other, node in self.nodes.items() if node.workers.get(0) == cycle]
                for other in others[:1]:
                    self._soon(functools.partial(self._end_worker, other, cycle, 1), 2.0)

    def _cut(self, number: int, seconds: float) -> None:
        if number in self.nodes:
            self.history.append(f"{self.now:.1f} node {number} is cut off for {seconds}")
            self.nodes[number].cut_until = self.now + seconds

    def _lose_the_coordinator(self) -> None:
        if self.is_led:
            self.history.append(f"{self.now:.1f} the coordinator is lost")
            self.is_led = False
            self._at(self.now + CLAIMS_AFTER, self._succeed)

    # Coordinator

    def _succeed(self) -> None:
        """Continue from the state of the last decision, and handle the messages after it."""
        state, self.handled = self.checkpoint
        self.coordinator = self.machines.coordinator.Coordinator.from_state(self.coordinator.rules, state, now=self.now)
        self.leases, self.is_led = LeaseTable[int](BEAT * LOST_AFTER), True
        self._handle()

    def _handle(self) -> None:
        while self.is_led and self.handled < len(self.inbox):
            self.handled += 1
            self._publish(self.coordinator.received(self.inbox[self.handled - 1], now=self.now))

    def _watch(self) -> None:
        """See whose lease has moved, and take the time."""
        if self.is_led:
            self.leases.keep(self.coordinator.nodes)
            for node in self.coordinator.nodes:
                self.leases.observe(node, str(self.beats.get(node, 0)), now=self.now)
            for node in self.leases.stale(now=self.now):
                self._publish(self.coordinator.lost(node, "no lease", now=self.now))
            self._publish(self.coordinator.tick(now=self.now))
        self._at(self.now + BEAT / 2, self._watch)

    def _publish(self, decisions: tuple[Any, ...]) -> None:
        if decisions:
            self.coordinator.check()
            self.decisions.append(decisions)
            for number in self.nodes:
                self._soon(functools.partial(self._follow, number))
            self.checkpoint = (self.coordinator.state(now=self.now), self.handled)
            for each in decisions:
                if each.kind is self.machines.messages.DecisionKind.END and each.code == 0:
                    self._check_done()
                self.history.append(f"{self.now:.1f} {each.kind.value} {each.cycle} {each.node} {each.reason}")

    # Rules

    def _break(self, what: str) -> None:
        raise Failure(f"at {self.now:.2f} s {what}: {self.scenario}\n" + "\n".join(self.history[-40:]))

    def _check_end(self) -> None:
        """All launchers exit with the same code; a job fails only if its workers fail or nodes are missing."""
        codes = {node.code for node in self.nodes.values() if node.code != -9}
        if len(codes) > 1 or None in codes:
            self._break(f"the launchers end with {codes}")
        restarts = self.coordinator.restarts
        failed = len(self.scenario.failures)
        if codes == {1} and not failed and self._were_enough():
            self._break("it fails, and no worker has failed")
        if restarts > failed:
            self._break(f"{restarts} restarts for {failed} failures")

    def _check_done(self) -> None:
        """The job is done when its workers are; those of a node that is cut off may be there for a while."""
        cut = max((at + seconds for at, _, seconds in self.scenario.cuts), default=0.0)
        running = [number for number, node in self.nodes.items() if node.workers]
        if running and self.now > cut:
            self._break(f"the job is done while workers of {running} run")

    def _were_enough(self) -> bool:
        return len(self.nodes) - len(self.scenario.losses) >= self.scenario.least
