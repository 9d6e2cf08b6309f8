"""A coordinator and its nodes end a job alike, in any order of events and faults."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import deque

import pytest
from nvrx_launcher.node_actions import EndLaunch, SendMessage, StartWorkers, StopWorkers
from nvrx_launcher.node_policy import NodePolicy
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState
from nvrx_launcher.rendezvous.messages import DecisionKind, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules


def described(node):
    return NodeDescription(f"host{node}", f"10.0.0.{node}", 29500 + node, 2)


class Job:
    """A coordinator and its nodes in virtual time; messages of one node keep their order, all else is at random."""

    def __init__(self, dice, *, least, most, max_restarts):
        self.dice, self.now = dice, 0.0
        self.coordinator = Coordinator(Rules(least, most, max_restarts, last_call_timeout=1.0, join_timeout=60.0))
        self.coordinator.start(now=0.0)
        self.nodes, self.ends = {}, {}
        self.to_coordinator, self.to_nodes = {}, {}
        self.workers, self.history = {}, []
        self.least = least

    def join(self):
        number = len(self.to_nodes)
        self.to_coordinator[number], self.to_nodes[number] = deque(), deque(self.history)
        self.nodes[number] = NodePolicy(2, workers_stop_timeout=15.0, term_timeout=15.0)
        self.workers[number] = {}
        self.carry_out(number, self.nodes[number].joined(number))

    def carry_out(self, number, actions):
        for action in actions:
            match action:
                case StartWorkers(decision, group_rank, place):
                    assert not self.workers[number]
                    assert decision.members[group_rank] == place
                    self.workers[number] = dict.fromkeys(range(2), decision.cycle)
                case StopWorkers():
                    pass
                case SendMessage(kind, cycle, reason):
                    description = described(number) if kind is MessageKind.READY else None
                    self.to_coordinator[number].append(Message(number, kind, cycle, reason, description))
                case EndLaunch():
                    assert not self.workers[number]
                    self.ends[number] = action.code
        self.nodes[number].check()
        running = {cycle for each in self.workers.values() for cycle in each.values()}
        assert len(running) <= 2, "no more than one cycle that ends and one that begins"

    def publish(self, decisions):
        """Publish what was decided; the coordinator goes on from its state, as a successor does."""
        self.coordinator.check()
        text = json.dumps(self.coordinator.state(now=self.now).to_json())
        state = CoordinatorState.from_json(json.loads(text))
        self.coordinator = Coordinator.from_state(self.coordinator.rules, state, now=self.now)
        assert self.coordinator.state(now=self.now) == state
        for decision in decisions:
            self.history.append(decision)
            for inbox in self.to_nodes.values():
                inbox.append(decision)
            if decision.kind is DecisionKind.RUN:
                assert len(decision.members) == self.least
                assert [member.first_rank for member in decision.members] == [2 * n for n in range(self.least)]

    def kill(self, number):
        self.workers[number] = {}
        self.ends[number] = -9
        self.to_coordinator[number].clear()
        self.publish(self.coordinator.lost(number, f"node {number} is lost", now=self.now))

    def steps(self):
        """What can happen next, apart from faults."""
        for number in self.nodes:
            if number in self.ends and not self.to_coordinator[number]:
                continue
            if self.to_coordinator[number]:
                yield lambda n=number: self.publish(
                    self.coordinator.received(self.to_coordinator[n].popleft(), now=self.now)
                )
            if self.to_nodes[number] and number not in self.ends:
                yield lambda n=number: self.carry_out(n, self.nodes[n].decided(self.to_nodes[n].popleft()))

    def finish_worker(self, number, code):
        local_rank = self.dice.choice(sorted(self.workers[number]))
        del self.workers[number][local_rank]
        self.carry_out(number, self.nodes[number].worker_exited(local_rank, code))

    def step(self):
        self.now += self.dice.choice((0.0, 0.01, 0.5))
        possible = list(self.steps())
        if possible:
            self.dice.choice(possible)()
            return True
        busy = [number for number, workers in self.workers.items() if workers]
        if busy:
            self.finish_worker(self.dice.choice(busy), 0)
            return True
        if self.coordinator.deadline < math.inf:
            self.now = max(self.now, self.coordinator.deadline)
            self.publish(self.coordinator.tick(now=self.now))
            return True
        return False


@pytest.mark.parametrize("seed", range(300))
def test_any_order_of_events_and_faults_ends_the_job_with_one_code_on_all_nodes(seed):
    dice = random.Random(seed)
    least, spare, max_restarts = dice.randint(1, 4), dice.randint(0, 2), dice.randint(0, 3)
    job = Job(dice, least=least, most=least + spare, max_restarts=max_restarts)
    faults = dice.randint(0, 6)
    for _ in range(least):
        job.join()
    for steps in itertools.count():
        assert steps < 20_000, "it does not end"
        alive = [number for number in job.nodes if number not in job.ends]
        if spare and dice.random() < 0.1:
            spare -= 1
            job.join()
        elif faults and alive and dice.random() < 0.1:
            faults -= 1
            target = dice.choice(alive)
            if dice.random() < 0.3:
                job.kill(target)
            elif job.workers[target]:
                job.finish_worker(target, dice.choice((1, -9)))
            continue
        if not job.step():
            break
    codes = {code for code in job.ends.values() if code != -9}
    assert len(codes) <= 1, codes
    assert set(job.ends) == set(job.nodes)
