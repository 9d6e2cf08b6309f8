"""The decisions for all nodes of a job: who takes part in a cycle, when it is stopped, when the job ends. Pure.

    GATHERING --enough nodes are ready--> RUNNING --a worker fails, a node is lost--> STOPPING --all have stopped--+
        ^                                    |                                                    |                |
        |                                    +--all workers are done--> ENDED <--restarts are spent                |
        +----------------------------------------------------------------------------------------------------------+

Under the policy `any-failed` a cycle has `min_nodes` nodes; further ones are spares, which wait and take the places of
lost ones. Under `min-healthy` it has all nodes that are ready, up to `max_nodes`, and is stopped when fewer than
`min_nodes` of them are healthy. As long as fewer than `max_nodes` are ready, the first cycle waits for more of them
until the last call is over. `placement.py` says which nodes take part, and in which order of ranks.

What has stopped a cycle is settled when all its nodes have stopped, or are lost (`RestartBudget`), and so is whether
the job makes progress by its checkpoints (`CheckpointProgress`). A node that has
neither stopped nor left within the time that its description states counts as lost: another one takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, Self, assert_never

from nvrx_launcher.exit_codes import FAILED, REFUSED, USAGE
from nvrx_launcher.host_list import compress_hosts
from nvrx_launcher.rendezvous.checkpoint_progress import CheckpointProgress
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState, JobPhase
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import NOT_RETRIED, Rules
from nvrx_launcher.rendezvous.placement import change, choose, lacking_nodes, members_of, usable
from nvrx_launcher.rendezvous.restart_budget import RestartBudget

__all__ = ["Coordinator"]

SHOWN: Final = 120
"""Characters of a command, or of a reason among others, that a line shows."""


class Coordinator:
    """The coordinator of a job, which decides by the messages of its nodes.

    Args:
        rules: the parameters of its decisions.

    Attributes:
        cycle: the number of the present cycle, or of the next one.
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.cycle, self.deadline = 0, math.inf
        self._phase, self._stopping_since = JobPhase.GATHERING, math.inf
        self._nodes = dict[int, NodeDescription]()
        self._members, self._former, self._left = CycleMembers(), frozenset[int](), list[tuple[str, str]]()
        self._budget, self._progress = (
            RestartBudget(rules.max_restarts, rules.pacing),
            CheckpointProgress(rules.progress),
        )
        self._gathering = Gathering(rules, is_first=True)

    @classmethod
    def from_state(cls, rules: Rules, state: CoordinatorState, *, now: float) -> Self:
        """Return a coordinator that continues from the state of another one."""
        made = cls(rules)
        made.cycle, made._phase, made._nodes = state.cycle, state.phase, dict(state.nodes)
        made._members, made._former, made._left = CycleMembers.from_state(state), state.former, list(state.left)
        made._budget = RestartBudget(rules.max_restarts, rules.pacing, state.budget, now=now)
        made._progress = CheckpointProgress(rules.progress, state.progress)
        made._gathering = Gathering(rules, is_first=not state.cycle, since=now - state.gathering_for)
        made._gathering.enough_since, made._gathering.count = now - state.enough_for, len(made._nodes)
        if made._phase is JobPhase.GATHERING:
            made.deadline = made._gathering.deadline(made._budget.begins_at)
        if made._phase is JobPhase.STOPPING:
            made._stopping_since = now - state.stopping_for
            made.deadline = made._stop_deadline()
        return made

    def state(self, *, now: float) -> CoordinatorState:
        """Return everything that later decisions depend on."""
        members = self._members
        return CoordinatorState(
            self._phase, self.cycle, tuple(sorted(self._nodes.items())), frozenset(members.active),
            frozenset(members.busy), frozenset(members.unhealthy), self._budget.state(now=now),
            now - self._gathering.since, now - self._gathering.enough_since,
            now - self._stopping_since if self._phase is JobPhase.STOPPING else -math.inf,
            frozenset(members.failed), frozenset(members.misused), self._former, tuple(sorted(self._left)),
            self._progress.state,
        )  # fmt: skip

    def start(self, *, now: float) -> None:
        """Start to gather nodes."""
        self._gathering = Gathering(self.rules, is_first=True, since=now)
        self.deadline = self._gathering.deadline(self._budget.begins_at)

    def received(self, message: Message, *, now: float) -> tuple[Decision, ...]:  # noqa: PLR0911 - one for each kind
        """Handle a node's message."""
        if self._phase is JobPhase.ENDED and message.kind is not MessageKind.LEFT:
            return ()
        match message.kind:
            case MessageKind.READY:
                return self._ready(message, now)
            case MessageKind.STOP:
                return self._end(REFUSED, message.reason)
            case MessageKind.LEFT:
                return self._gone(message.node, message.reason, now)
            case MessageKind.STORE_LOST:
                return self._store_lost(message, now)
            case (
                MessageKind.FAILED | MessageKind.NO_PROGRESS | MessageKind.UNHEALTHY | MessageKind.ALL_FAILED
                | MessageKind.MISUSED | MessageKind.DONE
            ) as kind:  # fmt: skip
                return self._of_this_cycle(kind, message, now)
            case MessageKind.HANG_SUSPECTED | MessageKind.HANG_EVIDENCE | MessageKind.HANG_JUDGED:
                return ()  # `HangRelay` hands them on
            case never:
                assert_never(never)

    def lost(self, node: int, reason: str, *, now: float) -> tuple[Decision, ...]:
        """Handle the loss of a node; if it is alive after all, it is notified and may join again.

        After the end of the job nothing is said: the end remains the last decision.
        """
        if node not in self._nodes:
            return ()
        if self._phase is JobPhase.ENDED:
            return self._gone(node, reason, now)
        return (Decision(DecisionKind.LOST, self.cycle, reason, node=node), *self._gone(node, reason, now))

    def abandon(self, code: int, reason: str) -> tuple[Decision, ...]:
        """Handle the exit of the launcher that runs this coordinator: the job cannot continue, and must not wait."""
        return () if self._phase is JobPhase.ENDED else self._end(code, reason)

    def tick(self, *, now: float) -> tuple[Decision, ...]:
        """Handle that time has passed."""
        if now < self.deadline:
            return ()
        return self._give_up_busy(now) if self._phase is JobPhase.STOPPING else self._next(now)

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self._phase is JobPhase.ENDED

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that are in the job."""
        return frozenset(self._nodes)

    @property
    def descriptions(self) -> Mapping[int, NodeDescription]:
        """The same, as they have described themselves."""
        return self._nodes

    @property
    def active(self) -> frozenset[int]:
        """Those that take part in the cycle."""
        return frozenset(self._members.active)

    @property
    def short_since(self) -> float:
        """Since when nodes are gathered, monotonic seconds, as long as more of them are needed; else `inf`."""
        return self._gathering.short_since if self._phase is JobPhase.GATHERING else math.inf

    @property
    def restarts(self) -> int:
        """How many of the cycles so far were started because a worker had failed."""
        return self._budget.restarts

    def check(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        members = self._members
        assert 0 <= self.restarts <= min(self.cycle, self.rules.max_restarts)
        assert members.busy | members.unhealthy <= members.active <= self._nodes.keys()
        assert self._phase is not JobPhase.GATHERING or not members.active
        assert self._phase is not JobPhase.RUNNING or members.busy

    def _ready(self, message: Message, now: float) -> tuple[Decision, ...]:
        assert message.description is not None
        node, description = message.node, message.description
        if self.rules.same_command and description.command not in ("", self.rules.command):
            return self._refuse(node, description)
        if node not in self._members.active:
            self._nodes[node] = description
            return self._next(now)
        if message.cycle != self.cycle:  # it has not heard of this cycle yet
            return ()
        self._nodes[node] = description
        stop = self._stop(f"{description.host} has begun anew", now) if self._phase is JobPhase.RUNNING else ()
        self._members.busy.discard(node)
        return (*stop, *self._next(now))

    def _of_this_cycle(self, kind: MessageKind, message: Message, now: float) -> tuple[Decision, ...]:
        """Handle the state of a node's workers; a message about an earlier cycle has no effect."""
        members = self._members
        if self._phase is not JobPhase.RUNNING or message.node not in members.active or message.cycle != self.cycle:
            return ()
        if kind is MessageKind.DONE:
            members.busy.discard(message.node)
            return self._end_if_done()
        if kind in (MessageKind.ALL_FAILED, MessageKind.MISUSED):
            (members.misused if kind is MessageKind.MISUSED else members.failed).add(message.node)
            return self._stop_if_nobody_is_left(message.reason, self._nodes[message.node].host, now)
        members.unhealthy.add(message.node)
        if kind is MessageKind.UNHEALTHY and members.healthy >= self.rules.min_nodes:
            return ()
        failure = f"{self._nodes[message.node].host}: {message.reason}"
        return self._stop(self._budget.failed(failure, no_progress=kind is MessageKind.NO_PROGRESS, now=now), now)

    def _store_lost(self, message: Message, now: float) -> tuple[Decision, ...]:
        """Stop the cycle whose store of in-process restart is lost; its host may be a spare."""
        is_under_way = self._phase in (JobPhase.RUNNING, JobPhase.STOPPING) and message.cycle == self.cycle
        if not is_under_way or message.node not in self._nodes:
            return ()
        reason = self._budget.store_lost(f"{self._nodes[message.node].host}: {message.reason}", now=now)
        return self._stop(reason, now) if self._phase is JobPhase.RUNNING else ()

    def _stop_if_nobody_is_left(self, reason: str, host: str, now: float) -> tuple[Decision, ...]:
        """Stop the cycle once all its workers have failed; end the job if all of them refuse their command line."""
        members = self._members
        if not members.is_nobody_left:
            return ()
        if members.misused == members.active:
            return self._end(FAILED, f"{host}: {reason}{NOT_RETRIED}")
        return self._stop(self._budget.failed(f"{host}: {reason}", no_progress=False, now=now), now)

    def _end_if_done(self) -> tuple[Decision, ...]:
        return () if self._members.busy else self._end(0, "all workers are done")

    def _gone(self, node: int, reason: str, now: float) -> tuple[Decision, ...]:
        """Continue without a node."""
        if (description := self._nodes.pop(node, None)) is None:
            return ()
        if node in self._members.active or node in self._former:
            self._left.append((description.host, reason.partition("\n")[0][:SHOWN]))
            self._former -= {node}
        if node not in self._members.active:
            return self._next(now)
        self._members.lose(node)
        why = self._budget.node_lost(f"{description.host}: {reason}", now=now)
        if self._phase is JobPhase.RUNNING and self._members.healthy >= self.rules.min_nodes:
            return self._end_if_done() or self._stop_if_nobody_is_left(reason, description.host, now)
        stop = self._stop(why, now) if self._phase is JobPhase.RUNNING else ()
        return (*stop, *self._next(now))

    def _give_up_busy(self, now: float) -> tuple[Decision, ...]:
        """Continue without the nodes that have neither stopped nor left in time."""
        decisions = list[Decision]()
        for node in sorted(self._members.busy):
            within = self._nodes[node].stops_within
            if now >= self._stopping_since + within:
                host = self._nodes[node].host
                decisions += self.lost(node, f"{host} has not stopped its workers within {within:g} s", now=now)
        return tuple(decisions)

    def _stop_deadline(self) -> float:
        """Return when the first of the nodes that have not stopped yet is given up."""
        within = (self._nodes[node].stops_within for node in self._members.busy)
        return self._stopping_since + min(within, default=math.inf)

    def _stop(self, reason: str, now: float) -> tuple[Decision, ...]:
        self._phase, self._stopping_since = JobPhase.STOPPING, now
        self._members.stop()
        self.deadline = self._stop_deadline()
        return (Decision(DecisionKind.STOP, self.cycle, reason),)

    def _end(self, code: int, reason: str) -> tuple[Decision, ...]:
        self._phase, self.deadline = JobPhase.ENDED, math.inf
        return (Decision(DecisionKind.END, self.cycle, reason, code),)

    def _next(self, now: float) -> tuple[Decision, ...]:
        """Start the next cycle, as soon as all nodes have stopped and enough of them are ready."""
        if self._phase is JobPhase.STOPPING and not self._members.busy:
            if spent := self._budget.spent(now=now):
                return self._end(FAILED, spent)
            iterations = (self._nodes[node].iteration for node in self._members.active)
            if fruitless := self._progress.cycle_ended(iterations, is_restart=self._budget.is_restart):
                return self._end(REFUSED, fruitless)
            self._former = frozenset(self._members.active)
            self._phase, self._members = JobPhase.GATHERING, CycleMembers()
            self.cycle += 1
            self._budget.settle(now=now)
            self._gathering = Gathering(self.rules, is_first=False, since=now)
        if self._phase is JobPhase.STOPPING:
            self.deadline = self._stop_deadline()
        if self._phase is not JobPhase.GATHERING:
            return ()
        self._gathering.ready(len(self._nodes), has_enough=self._has_enough(), now=now)
        self.deadline = self._gathering.deadline(self._budget.begins_at)
        if now >= self._budget.begins_at and self._gathering.is_complete(now=now):
            return self._run(now)
        too_few = self._gathering.overdue(self._nodes, now=now)
        return self._end(FAILED, too_few) if too_few else ()

    def _has_enough(self) -> bool:
        """Return whether enough of the nodes that are ready can take part at once."""
        rules = self.rules
        is_possible = len(self._nodes) >= rules.min_nodes  # else without looking at each of them, at each arrival
        return is_possible and usable(self._nodes, rules.segment, rules.node_ranks) >= rules.min_nodes

    def _run(self, now: float) -> tuple[Decision, ...]:
        nodes, former, segment = self._nodes, self._former, self.rules.segment
        chosen = choose(nodes, former, segment=segment, most=self.rules.most_active, node_ranks=self.rules.node_ranks)
        members = members_of(chosen, nodes)
        plural = "" if len(members) == 1 else "s"
        segments = "" if segment is None else f" in segments of {segment}"
        reason = f"{len(members)} node{plural}{segments}, {len(nodes) - len(members)} spare"
        reason += change(chosen, nodes, former, self._left) if self.cycle else ""
        self._former, self._left = frozenset(), []
        self._phase, self.deadline = JobPhase.RUNNING, math.inf
        self._budget.began(now=now)
        self._progress.cycle_begins(nodes[node].iteration for node in chosen)
        self._members, self._gathering = CycleMembers(chosen), Gathering(self.rules, is_first=False)
        first = nodes[members[0].node]
        return (
            Decision(
                DecisionKind.RUN,
                self.cycle,
                reason,
                members=members,
                master_addr=first.address,
                master_port=first.port,
                active_hosts=compress_hosts(nodes[node].host for node in chosen),
                spare_hosts=compress_hosts(nodes[node].host for node in nodes.keys() - set(chosen)),
            ),
        )

    def _refuse(self, node: int, description: NodeDescription) -> tuple[Decision, ...]:
        """Refuse a node of another command: a job that has not begun ends, on all nodes; one that runs goes on."""
        wanted, given = self.rules.command[:SHOWN], description.command[:SHOWN]
        reason = (
            f"with --rdzv-conf same_command=1, the job runs another command than {description.host}: {wanted!r}, and "
            f"not {given!r}; give each job an --rdzv-id of its own"
        )
        if self._phase is JobPhase.GATHERING and not self.cycle:
            self._nodes[node] = description  # the launcher that hosts the store waits until it has read the end
            return self._end(USAGE, reason)
        return (Decision(DecisionKind.REFUSE, self.cycle, reason, USAGE, node=node),)


class Gathering:
    """The wait for the nodes of a cycle: until enough of them are ready, and the last call before the first cycle.

    Args:
        rules: how many are needed, and how long they have.
        is_first: it is the wait before the first cycle.
        since: when it started, monotonic seconds; `inf`: it has not.

    Attributes:
        since: the same.
        enough_since: since when enough nodes are ready; `inf`: they are not.
        count: how many nodes are ready.
    """

    def __init__(self, rules: Rules, *, is_first: bool, since: float = math.inf) -> None:
        self._rules, self._last_call = rules, rules.last_call_timeout if is_first else 0.0
        self.since, self.enough_since, self.count = since, math.inf, 0

    def ready(self, count: int, *, has_enough: bool, now: float) -> None:
        """Record how many nodes are ready, and whether enough of them can take part."""
        self.count = count
        self.enough_since = min(self.enough_since, now) if has_enough else math.inf

    @property
    def short_since(self) -> float:
        """Since when it lasts, monotonic seconds, as long as fewer nodes than needed are ready; else `inf`."""
        return self.since if self.enough_since == math.inf else math.inf

    def deadline(self, begins_at: float) -> float:
        """Return when it is complete or overdue; the cycle does not begin before a given time."""
        if self.enough_since == math.inf:
            return self.since + self._rules.join_timeout
        return max(self.enough_since + self._last_call, begins_at)

    def is_complete(self, *, now: float) -> bool:
        """Return whether the cycle can begin."""
        are_all = self.count >= self._rules.max_nodes and self.enough_since < math.inf
        return are_all or now >= self.enough_since + self._last_call

    def overdue(self, nodes: Mapping[int, NodeDescription], *, now: float) -> str:
        """Return why the wait has failed (too few nodes in time), with the ready hosts; "" while there is time."""
        if self.enough_since < math.inf or now < self.since + self._rules.join_timeout:
            return ""
        rules, joined = self._rules, sorted(each.host for each in nodes.values())
        text = f"{len(joined)} of {rules.min_nodes} nodes have joined in {rules.join_timeout:g} s: {joined}"
        return "; ".join(filter(None, (text, lacking_nodes(nodes, rules.segment, rules.node_ranks))))


class CycleMembers:
    """The nodes of the present cycle, by number.

    Args:
        nodes: of a cycle that begins; all are at work and healthy.

    Attributes:
        active: those that take part.
        busy: those of them that are not done; once the cycle is stopped, those that have not stopped yet.
        unhealthy: those of them that have lost a worker.
        failed: those of them all of whose workers have failed.
        misused: those of them all of whose workers refuse their command line.
    """

    def __init__(self, nodes: Iterable[int] = ()) -> None:
        self.active = set(nodes)
        self.busy, self.unhealthy = set(self.active), set[int]()
        self.failed, self.misused = set[int](), set[int]()

    @classmethod
    def from_state(cls, state: CoordinatorState) -> Self:
        """Restore them from a state."""
        made = cls(state.active)
        made.busy, made.unhealthy = set(state.busy), set(state.unhealthy)
        made.failed, made.misused = set(state.failed), set(state.misused)
        return made

    @property
    def healthy(self) -> int:
        """The number of nodes that have all their workers."""
        return len(self.active) - len(self.unhealthy)

    @property
    def is_nobody_left(self) -> bool:
        """Whether all workers of all nodes have failed."""
        return self.active == self.failed | self.misused

    def stop(self) -> None:
        """Expect all of them to stop."""
        self.busy = set(self.active)

    def lose(self, node: int) -> None:
        """Remove a node."""
        for each in (self.active, self.busy, self.unhealthy, self.failed, self.misused):
            each.discard(node)
