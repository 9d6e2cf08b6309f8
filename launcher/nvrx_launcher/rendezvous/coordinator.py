"""Decides for all nodes of a job: who takes part in a cycle, when it is stopped, and when the job ends. Pure.

    GATHERING --enough nodes are ready--> RUNNING --a worker fails, a node is lost--> STOPPING --all have stopped--+
        ^                                    |                                                    |                |
        |                                    +--all workers are done--> ENDED <--restarts are spent                |
        +----------------------------------------------------------------------------------------------------------+

Under the policy `any-failed` a cycle has `min_nodes` nodes; further ones are spares, which wait and take the places of
lost ones. Under `min-healthy` it has all nodes that are ready, up to `max_nodes`, and is stopped when fewer than
`min_nodes` of them are healthy. As long as fewer than `max_nodes` are ready, the first cycle waits for more of them
until the last call is over. The order of ranks is that of the infrastructure, where there is one, else that of hosts
and addresses.

Only failures of workers use up restarts. Workers also fail because a node that they talk to is lost, and are noticed
first; so what has stopped a cycle is settled when all its nodes have stopped, or are lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self, assert_never

from nvrx_launcher.exit_codes import FAILED, REFUSED, USAGE
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState, Phase
from nvrx_launcher.rendezvous.messages import Decision, Member, Message, MessageKind, NodeDescription, Verdict
from nvrx_launcher.rendezvous.restart_pacing import PacingRules, RestartPacing

__all__ = ["ANY_FAILED", "MIN_HEALTHY", "Coordinator", "Rules"]

ANY_FAILED: Final = "any-failed"
MIN_HEALTHY: Final = "min-healthy"
SHOWN: Final = 120
"""Characters of a command that a line shows."""


@dataclass(frozen=True)
class Rules:
    """What a coordinator decides by.

    Attributes:
        min_nodes: how many nodes a cycle needs.
        max_nodes: how many may join before the last call is over; under `min-healthy`, how many take part at most.
        max_restarts: how often the workers are restarted because one has failed.
        policy: `any-failed` or `min-healthy`.
        last_call: seconds that the first cycle waits for more than `min_nodes` nodes.
        join_timeout: seconds within which `min_nodes` must be ready.
        command: what the workers run; a node with another command is refused. Empty: any is welcome.
        pacing: how fast restarts may follow each other.
    """

    min_nodes: int
    max_nodes: int
    max_restarts: int
    policy: str = ANY_FAILED
    last_call: float = 1.0
    join_timeout: float = 600.0
    command: str = ""
    pacing: PacingRules = field(default_factory=PacingRules)

    @property
    def most_active(self) -> int:
        """How many nodes take part in a cycle at most."""
        return self.max_nodes if self.policy == MIN_HEALTHY else self.min_nodes


class Coordinator:
    """Decides by what the nodes say.

    Args:
        rules: what it decides by.

    Attributes:
        cycle: the number of the present cycle, or of the next one.
        restarts: how many of the cycles so far were started because a worker had failed.
        deadline: when it wants `tick`, monotonic seconds.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.cycle, self.restarts, self.deadline = 0, 0, math.inf
        self._phase = Phase.GATHERING
        self._nodes = dict[int, NodeDescription]()
        self._active = set[int]()
        self._busy, self._unhealthy = set[int](), set[int]()  # of the active nodes: not done, or not stopped yet
        self._failure, self._is_fruitless = "", False
        self._pacing, self._begins_at = RestartPacing(rules.pacing), -math.inf
        self._gathering_since = self._enough_since = math.inf

    @classmethod
    def from_state(cls, rules: Rules, state: CoordinatorState, *, now: float) -> Self:
        """Go on from a state, where another coordinator was."""
        made = cls(rules)
        made.cycle, made.restarts, made._phase, made._failure = state.cycle, state.restarts, state.phase, state.failure
        made._nodes = dict(state.nodes)
        made._active, made._busy, made._unhealthy = set(state.active), set(state.busy), set(state.unhealthy)
        made._is_fruitless, made._begins_at = state.is_fruitless, now + state.begins_in
        made._pacing = RestartPacing(rules.pacing, ages=state.restarted, fruitless=state.fruitless, now=now)
        made._gathering_since, made._enough_since = now - state.gathering_for, now - state.enough_for
        if made._phase is Phase.GATHERING:
            made._schedule()
        return made

    def state(self, *, now: float) -> CoordinatorState:
        """Return everything that decides what it does next."""
        since = (self._gathering_since, self._enough_since) if self._phase is Phase.GATHERING else (math.inf, math.inf)
        return CoordinatorState(
            self._phase, self.cycle, self.restarts, tuple(sorted(self._nodes.items())), frozenset(self._active),
            frozenset(self._busy), frozenset(self._unhealthy), self._failure, now - since[0], now - since[1],
            is_fruitless=self._is_fruitless, fruitless=self._pacing.fruitless, restarted=self._pacing.ages(now=now),
            begins_in=self._begins_at - now if self._begins_at > now else -math.inf,
        )  # fmt: skip

    def start(self, *, now: float) -> None:
        """Begin to gather nodes."""
        self._gathering_since = now
        self._schedule()

    def received(self, message: Message, *, now: float) -> tuple[Decision, ...]:
        """Take a node's message."""
        if self._phase is Phase.ENDED and message.kind is not MessageKind.LEFT:
            return ()
        match message.kind:
            case MessageKind.READY:
                return self._ready(message, now)
            case MessageKind.STOP:
                return self._end(REFUSED, message.reason)
            case MessageKind.LEFT:
                return self._gone(message.node, message.reason, now)
            case MessageKind.FAILED | MessageKind.FRUITLESS | MessageKind.UNHEALTHY | MessageKind.DONE as kind:
                return self._of_this_cycle(kind, message)
            case never:
                assert_never(never)

    def lost(self, node: int, reason: str, *, now: float) -> tuple[Decision, ...]:
        """Take the loss of a node; one that lives after all is told of it, and may join again."""
        if node not in self._nodes:
            return ()
        return (Decision(Verdict.LOST, self.cycle, reason, node=node), *self._gone(node, reason, now))

    def abandon(self, code: int, reason: str) -> tuple[Decision, ...]:
        """Take the end of the launcher that runs this: the job cannot go on, and must not wait."""
        return () if self._phase is Phase.ENDED else self._end(code, reason)

    def tick(self, *, now: float) -> tuple[Decision, ...]:
        """Take the time."""
        return self._next(now) if now >= self.deadline else ()

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self._phase is Phase.ENDED

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that are in the job."""
        return frozenset(self._nodes)

    def check(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        assert 0 <= self.restarts <= min(self.cycle, self.rules.max_restarts)
        assert self._busy | self._unhealthy <= self._active <= self._nodes.keys()
        assert self._phase is not Phase.GATHERING or not self._active
        assert self._phase is not Phase.RUNNING or self._busy

    def _ready(self, message: Message, now: float) -> tuple[Decision, ...]:
        assert message.description is not None
        node, description = message.node, message.description
        if self._is_another_command(description.command):
            return (self._refuse(node, description.command),)
        if node not in self._active:
            self._nodes[node] = description
            return self._next(now)
        if message.cycle != self.cycle:  # it has not heard of this cycle yet
            return ()
        self._nodes[node] = description
        stop = self._stop(f"{description.host} has begun anew") if self._phase is Phase.RUNNING else ()
        self._busy.discard(node)
        return (*stop, *self._next(now))

    def _is_another_command(self, command: str) -> bool:
        return bool(command and self.rules.command) and command != self.rules.command

    def _refuse(self, node: int, command: str) -> Decision:
        reason = (
            f"the job runs another command: {self.rules.command[:SHOWN]!r}, and not {command[:SHOWN]!r}; "
            "give each job an --rdzv-id of its own, or --rdzv-conf same_command=0 where commands differ by node"
        )
        return Decision(Verdict.REFUSE, self.cycle, reason, USAGE, node=node)

    def _of_this_cycle(self, kind: MessageKind, message: Message) -> tuple[Decision, ...]:
        """Take how the workers of a node are; what an earlier cycle's were like changes nothing."""
        if self._phase is not Phase.RUNNING or message.node not in self._active or message.cycle != self.cycle:
            return ()
        if kind is MessageKind.DONE:
            self._busy.discard(message.node)
            return self._end_if_done()
        self._unhealthy.add(message.node)
        return () if kind is MessageKind.UNHEALTHY and self._are_enough_healthy() else self._fail(message)

    def _are_enough_healthy(self) -> bool:
        return len(self._active) - len(self._unhealthy) >= self.rules.min_nodes

    def _end_if_done(self) -> tuple[Decision, ...]:
        return () if self._busy else self._end(0, "all workers are done")

    def _gone(self, node: int, reason: str, now: float) -> tuple[Decision, ...]:
        """Go on without a node; what workers have failed by while one was lost does not count as a failure."""
        if (description := self._nodes.pop(node, None)) is None:
            return ()
        if node not in self._active:
            return self._next(now)
        for each in (self._active, self._busy, self._unhealthy):
            each.discard(node)
        if self._phase is Phase.RUNNING and self._are_enough_healthy():
            return self._end_if_done()
        stop = self._stop(f"{description.host}: {reason}") if self._phase is Phase.RUNNING else ()
        self._failure = ""
        return (*stop, *self._next(now))

    def _fail(self, message: Message) -> tuple[Decision, ...]:
        self._failure = f"{self._nodes[message.node].host}: {message.reason}"
        self._is_fruitless = message.kind is MessageKind.FRUITLESS
        pause = self._pacing.pause(is_fruitless=self._is_fruitless)
        return self._stop(f"{self._failure}; the next cycle is {pause:g} s away" if pause else self._failure)

    def _stop(self, reason: str) -> tuple[Decision, ...]:
        self._phase, self._busy = Phase.STOPPING, set(self._active)
        return (Decision(Verdict.STOP, self.cycle, reason),)

    def _end(self, code: int, reason: str) -> tuple[Decision, ...]:
        self._phase, self.deadline = Phase.ENDED, math.inf
        return (Decision(Verdict.END, self.cycle, reason, code),)

    def _next(self, now: float) -> tuple[Decision, ...]:
        """Begin the next cycle, as soon as all have stopped and enough nodes are there."""
        if self._phase is Phase.STOPPING and not self._busy:
            if self._failure and (spent := self._spent(now)):
                return self._end(FAILED, f"{self._failure}, {spent}")
            self._gather(now)
        if self._phase is not Phase.GATHERING:
            return ()
        self._enough_since = min(self._enough_since, now) if self._are_enough() else math.inf
        self._schedule()
        if self._is_complete(now):
            return self._run()
        return self._end(FAILED, self._too_few()) if now >= self._gathering_since + self.rules.join_timeout else ()

    def _spent(self, now: float) -> str:
        """Return why there is no further restart, "" if there may be one."""
        if self.restarts < self.rules.max_restarts:
            return self._pacing.exceeded(now=now)
        return f"after {self.restarts} restarts" if self.rules.max_restarts else "with --max-restarts 0"

    def _gather(self, now: float) -> None:
        self._phase = Phase.GATHERING
        self._active, self._unhealthy = set(), set()
        self._gathering_since, self._enough_since = now, math.inf
        self.cycle += 1
        if self._failure:
            self.restarts += 1
            self._begins_at = now + self._pacing.pause(is_fruitless=self._is_fruitless)
            self._pacing.restarted(is_fruitless=self._is_fruitless, now=now)
        self._failure, self._is_fruitless = "", False

    def _are_enough(self) -> bool:
        return len(self._nodes) >= self.rules.min_nodes

    def _is_complete(self, now: float) -> bool:
        if not self._are_enough() or now < self._begins_at:
            return False
        are_all = len(self._nodes) >= self.rules.max_nodes
        return self.cycle > 0 or are_all or now >= self._enough_since + self.rules.last_call

    def _too_few(self) -> str:
        joined = sorted(each.host for each in self._nodes.values())
        return f"{len(joined)} of {self.rules.min_nodes} nodes have joined in {self.rules.join_timeout:g} s: {joined}"

    def _schedule(self) -> None:
        join_by = self._gathering_since + self.rules.join_timeout if self._enough_since == math.inf else math.inf
        last_call = 0.0 if self.cycle else self.rules.last_call
        self.deadline = min(max(self._enough_since + last_call, self._begins_at), join_by)

    def _run(self) -> tuple[Decision, ...]:
        joined_first = sorted(self._nodes)[: self.rules.most_active]
        members = _placed({node: self._nodes[node] for node in joined_first})
        self._phase, self.deadline = Phase.RUNNING, math.inf
        self._active, self._busy = set(joined_first), set(joined_first)
        first = self._nodes[members[0].node]
        reason = f"{len(members)} nodes, {len(self._nodes) - len(members)} spare"
        return (
            Decision(
                Verdict.RUN, self.cycle, reason, members=members, master_addr=first.address, master_port=first.port
            ),
        )


def _placed(nodes: Mapping[int, NodeDescription]) -> tuple[Member, ...]:
    """Return the nodes of a cycle by their rank: in the order of the infrastructure, else of hosts and addresses."""
    members, rank = list[Member](), 0
    for node in sorted(nodes, key=lambda node: (*_order(nodes[node]), node)):
        members.append(Member(node, rank, nodes[node].workers))
        rank += nodes[node].workers
    return tuple(members)


def _order(description: NodeDescription) -> tuple[float, str, str]:
    order = description.order if description.order >= 0 else math.inf
    return order, description.host, description.address
