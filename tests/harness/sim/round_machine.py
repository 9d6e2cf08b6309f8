"""Any order of inputs to the machines of a round, as a Hypothesis state machine."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.death_report import DeathReport
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.protocol.round import (
    Enter,
    Finish,
    ReadEvent,
    Round,
    RoundAction,
    RoundPhase,
    RoundTimeouts,
    run_store_actions,
)
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks
from tests.harness.asked import drive

from .slots import Slots
from .virtual_ports import StorePort
from .world import Operation

__all__ = ["Rounds"]

TIMEOUTS = RoundTimeouts(barrier=1e9, completion=1e9)
MOST = 3


class Rounds(RuleBasedStateMachine):
    """Rounds of up to three members on one store; each death is reported, and in the end all members finish."""

    @initialize(size=st.integers(2, MOST))
    def begin(self, size: int) -> None:
        self.members = initial_ranks(size)
        self.slots: dict[int, Slots] = {}
        self.rounds = {member: Round(-1, member, self.members, TIMEOUTS) for member in self.members}
        self.ended = dict[InitialRank, str]()
        self.reports = dict[InitialRank, DeathReport]()
        self.entered: dict[int, set[InitialRank]] = {}
        self.faults = 0
        for member in self.members:
            self.arrive(member)

    def slot(self, iteration: int) -> Slots:
        return self.slots.setdefault(iteration, Slots())

    def grant(self, wish: Operation) -> object:
        return wish.operation(self.slot(wish.iteration), *wish.args)

    def carry_out(self, machine: Round | DeathReport, actions: tuple[RoundAction, ...]) -> bool:
        """Carry out actions; whether the machine is done."""
        flow = run_store_actions(machine, actions, StorePort())
        rest = drive(flow, self.grant)
        assert all(isinstance(action, Finish) for action in rest), rest
        return bool(rest)

    def living(self) -> list[InitialRank]:
        return [member for member in sorted(self.members) if member not in self.ended]

    def pick(self, number: int) -> InitialRank | None:
        living = self.living()
        return living[number % len(living)] if living else None

    def arrive(self, member: InitialRank, status: ArrivalStatus = ArrivalStatus.ALIVE) -> None:
        arrival = Arrival(initial_rank=member, rank=member, status=status, world_size=len(self.members))
        self.carry_out(self.rounds[member], self.rounds[member].arrive(arrival, now=0.0))

    @rule(number=st.integers(0, MOST))
    def fail(self, number: int) -> None:
        member = self.pick(number)
        if member is not None and self.goes_on(member) and self.faults < 4:
            self.faults += 1
            fault = FaultRecord(initial_rank=member, rank=member, interruption="EXCEPTION")
            phase = self.rounds[member].phase
            actions = self.rounds[member].fault(fault)
            assert bool(actions) == (phase in (RoundPhase.OPEN, RoundPhase.COMPLETE)), "a fault that is kept to oneself"
            self.carry_out(self.rounds[member], actions)

    @rule(number=st.integers(0, MOST))
    def complete(self, number: int) -> None:
        member = self.pick(number)
        if member is not None and self.may_complete(member):
            self.carry_out(self.rounds[member], self.rounds[member].completed())

    def goes_on(self, member: InitialRank) -> bool:
        """Whether a fault can come to this member, as far as its round is."""
        round_ = self.rounds[member]
        return round_.iteration >= 0 and round_.phase not in (RoundPhase.ARRIVED, RoundPhase.DECIDED)

    def may_complete(self, member: InitialRank) -> bool:
        """Whether this member can complete its round."""
        return self.goes_on(member) and self.rounds[member].phase in (RoundPhase.OPEN, RoundPhase.INTERRUPTED)

    @rule(number=st.integers(0, MOST))
    def die(self, number: int) -> None:
        member = self.pick(number)
        if member is not None and len(self.living()) > 1 and self.faults < 4:
            self.faults += 1
            round_ = self.rounds[member]
            fault = FaultRecord(initial_rank=member, rank=member, interruption="TERMINATED")
            self.ended[member] = "dead"
            self.reports[member] = DeathReport(round_.iteration, member, round_.members, fault)
            self.report(member)

    def report(self, member: InitialRank) -> None:
        report = self.reports[member]
        if self.carry_out(report, report.died()):
            del self.reports[member]

    @rule(number=st.integers(0, MOST), late=st.booleans())
    def hear(self, number: int, late: bool) -> None:
        member = self.pick(number)
        if member is not None:
            self.listen(member)
            if late:  # what was heard before changes nothing
                before = self.rounds[member].state()
                old = self.slot(self.rounds[member].iteration - 1).decision
                assert old is None or not self.rounds[member].decided(old), "I8: a stale decision counts"
                assert self.rounds[member].state() == before

    def listen(self, member: InitialRank) -> None:
        round_ = self.rounds[member]
        slot = self.slot(round_.iteration)
        if slot.event and round_.phase in (RoundPhase.OPEN, RoundPhase.COMPLETE) and round_.iteration >= 0:
            actions = round_.event_written()
            if actions == (ReadEvent(),):
                actions = round_.event_read(slot.event[0])
            if any(isinstance(action, Finish) for action in actions):
                self.ended[member] = f"finished {round_.iteration}"
            else:
                self.arrive(member)
        elif slot.decision is not None and round_.phase is RoundPhase.ARRIVED:
            for action in round_.decided(slot.decision):
                assert isinstance(action, Enter)
                self.enter(member, action)
            if member in slot.decision.lost:
                self.ended[member] = "left"

    def enter(self, member: InitialRank, action: Enter) -> None:
        k = self.rounds[member].iteration + 1
        for i in range(-1, k):
            lost = self.slot(i).decision.lost  # type: ignore[union-attr]
            assert member not in lost, f"I5: {member} was lost in {i}, and enters {k}"
        assert member in action.members, f"I5: {member} enters {k} and is no member"
        assert k <= self.faults, f"I9: {member} enters {k} after {self.faults} faults"
        for other in self.living():
            behind = self.rounds[other].iteration < k - 1
            assert not behind, f"I3: {member} enters {k}, and {other} is in {self.rounds[other].iteration}"
        agreed = {frozenset(self.rounds[other].members) for other in self.entered.setdefault(k, set())
                  if self.rounds[other].iteration == k}  # fmt: skip
        assert agreed <= {action.members}, f"I2: the members of {k} differ: {agreed}, {action.members}"
        self.entered[k].add(member)
        self.rounds[member] = Round(k, member, action.members, TIMEOUTS)

    @rule()
    def follow_reports(self) -> None:
        for member, report in list(self.reports.items()):
            decision = self.slot(report.iteration).decision
            if decision is not None:
                actions = report.decided(decision)
                del self.reports[member]
                for action in actions:
                    assert isinstance(action, Enter)
                    assert report.iteration < 20, "a report without end"
                    self.reports[member] = report.next(action.members)
                    self.report(member)

    @invariant()
    def sound(self) -> None:
        for member, round_ in getattr(self, "rounds", {}).items():
            round_.check()
            again = Round.from_state(round_.state(), TIMEOUTS)
            assert again.state() == round_.state(), f"{member}: not the same after a round trip"
        finished = {end for end in getattr(self, "ended", {}).values() if end.startswith("finished")}
        assert len(finished) <= 1, f"I11: {finished}"

    def teardown(self) -> None:
        """No more faults: every member must finish."""
        for _ in range(40 if hasattr(self, "rounds") else 0):
            self.follow_reports()
            for member in self.living():
                if self.may_complete(member):
                    self.carry_out(self.rounds[member], self.rounds[member].completed())
                self.listen(member)
        if hasattr(self, "rounds"):
            assert not self.living(), f"deadlock: {self.living()} wait, {self.ended}"
