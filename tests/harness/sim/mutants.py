"""Mutants of the restart protocol; each must be detected.

A mutant is a change of the text of a shipped module; `mutation.mutated` applies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .job import Config

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes:
        changes: (last name of the module, shipped text, mutated text).
        config: the job in which the checker finds it; None: not there.
        simulated: the simulation finds it.
        machine: the state machine in `machines.py` that finds it.
    """

    changes: tuple[tuple[str, str, str], ...]
    config: Config | None = None
    simulated: bool = True
    machine: str = ""


ONE_DIES: Final = Config(ranks=2, crashes=1)
ONE_FAILS: Final = Config(ranks=2, faults=1)
JOINING, JOINED = "coordination.joining", "        page[ProgressField.GENERATION] = 1 + (\n"
TWO_CALLS: Final = Config(ranks=2, second=True)
ARRIVES: Final = "        return (PutArrival(arrival), CountArrival())\n"
WITHOUT: Final = "Enter(_without(self.members, decision.lost), decision)"
WITH_ITSELF: Final = "Enter(_without(self.members, decision.lost) | {self.member}, decision)"
IF_LOST: Final = "        if self.member in decision.lost:\n            return ()\n"
FLOW, WATCH, PASS = "flows", "watch", "                pass\n"
TELLS: Final = "        if ended.outcome in (Outcome.FAILED, Outcome.LEFT):\n"
ANNOUNCES: Final = """\
            fault = await self.ports.faults.describe_fault(ended)
            await self._announce(view, fault)
"""
ONLY_CULPRIT: Final = "if not verdict.reached or cause.initial_rank != self.state.initial_rank:"
TELLS_FIRST: Final = """\
            if not isinstance(error, BarrierTimeout):
                await self.ports.leaving.abandon(error)
            self.over = True
            await self.ports.faults.report_failure(None)
"""
REPORTS_FIRST: Final = """\
            await self.ports.faults.report_failure(None)
            if not isinstance(error, BarrierTimeout):
                await self.ports.leaving.abandon(error)
            self.over = True
"""
LEAVES: Final = """\
        if self.phase not in (RoundPhase.OPEN, RoundPhase.INTERRUPTED):
            return ()
        self.phase, self.arrival = RoundPhase.ARRIVED, arrival
"""
CARRIES_OUT: Final = (
    "        await (delivery.close_blocked() if isinstance(action, Unblock) else delivery.fire(action.why))\n"
)
COUNTS_OUT: Final = "                await self.ports.store.count_out(view.round.iteration, len(view.round.members))\n"
AWAITS_CLIENTS: Final = (
    "                await self.ports.leaving.await_clients(view.round.members, completed=view.finished)\n"
)
DEAD: Final = "        return (PutArrival(dead), CountArrival())\n"

MUTANTS: Final[dict[str, Mutant]] = {
    "abort ignores atomic": Mutant(
        (
            ("policy", "if seen.out or seen.masked:", "if seen.out:"),
            ("policy", "while not (seen.out or seen.masked):", "while not seen.out:"),
        ),
        Config(ranks=2, faults=1, atomic=1), simulated=False, machine="Interrupting",
    ),
    "barrier closes one early": Mutant(
        (
            ("round", "(ReadArrivals(self.members),) if count >= len(self.members) else",
             "(ReadArrivals(self.members),) if count >= len(self.members) - 1 else"),
            ("round", "        if not self.members <= arrivals.keys():\n            return ()\n", ""),
            ("round", "{m: arrivals[m] for m in self.members}", "dict(arrivals)"),
        ),
        ONE_FAILS, machine="Rounds",
    ),
    "no arrival for a dead rank": Mutant((("death_report", DEAD, "        return ()\n"),), ONE_DIES, machine="Rounds"),
    "death reported to one iteration only": Mutant(
        (("death_report", IF_LOST, IF_LOST.replace("self.member in decision.lost", "True")),),
        ONE_DIES, machine="Rounds",
    ),
    "assignment from a local view": Mutant(
        (
            ("round", "        self.arrival: Arrival | None = None\n",
             "        self.arrival: Arrival | None = None\n        self.view: RoundDecision | None = None\n"),
            ("round", "return (Publish(decide(self.iteration, {m: arrivals[m] for m in self.members}, event)),)",
             "self.view = decide(self.iteration, arrivals, event)\n        return (Publish(self.view),)"),
            ("round", "        self.phase, self.deadline = RoundPhase.DECIDED, math.inf\n",
             ("        self.phase, self.deadline = RoundPhase.DECIDED, math.inf\n"
              "        decision = self.view or decision\n")),
            ("round", "self.phase, self.arrival\n", "self.phase, self.arrival, self.view\n"),
            ("round", "phase, arrival = state\n", "phase, arrival, view = state\n"),
            ("round", "phase, arrival\n        return round_",
             "phase, arrival\n        round_.view = view\n        return round_"),
        ),
        ONE_DIES,
    ),
    "a record after the decision counted": Mutant(
        (("guarded_store", 'return self.replace(key, "", value)',
          'self.store.set(key, value)\n        return value.encode()'),),
        ONE_DIES, simulated=False,
    ),
    "a discarded rank returns": Mutant(
        (
            ("round", IF_LOST, IF_LOST.replace("self.member in decision.lost", "False")),
            ("round", WITHOUT, WITH_ITSELF),
        ),
        Config(ranks=2, faults=1, suspicions=1), simulated=False,
    ),
    "a stale iteration accepted": Mutant(
        (("round", "self.phase is not RoundPhase.ARRIVED or decision.iteration != self.iteration",
          "self.phase is not RoundPhase.ARRIVED"),),
        ONE_FAILS, machine="Rounds",
    ),
    "an interrupt outside the function": Mutant(
        (("policy", "if seen.out or seen.masked:", "if seen.masked:"),), machine="Interrupting",
    ),
    "a lost interrupt not repeated": Mutant(
        (("policy", "if now >= self._fired_at + self._pause:", "if False:"),), machine="Interrupting",
    ),
    "a thread that gets no CPU is expected to move on": Mutant(
        (("policy", "return could and now >= self.since", "return now >= self.since"),),
        simulated=False, machine="Interrupting",
    ),
    "who interrupts gives up after one more signal": Mutant(
        (("policy", "    while not left:\n", "    if not left:\n"),),
    ),
    "nobody repeats a signal": Mutant(
        (("policy", "else delivery.await_left(machine.deadline))", "else delivery.await_left(1e300))"),),
    ),
    "a blocked function is not unblocked": Mutant(
        (("policy", CARRIES_OUT,
          "        if not isinstance(action, Unblock):\n            await delivery.fire(action.why)\n"),),
    ),
    "the function is not interrupted before it is aborted": Mutant(
        (("policy", "    while not (seen.out or seen.masked):\n", "    while False:\n"),), ONE_FAILS, simulated=False,
    ),
    "a monitor process that misses the end of its rank": Mutant(
        ((WATCH, "            if ended:\n", "            if False:\n"),), ONE_DIES,
    ),
    "who leaves by Ctrl-C is not reported": Mutant(
        ((WATCH, "        if self.page.stage is Stage.EXITED_ABNORMALLY:\n", "        if False:\n"),),
        Config(ranks=2, breaks=1), simulated=False,
    ),
    "a death is reported again by who replaces the reporter": Mutant(
        ((WATCH, "Stage.RUNNING and not self.replaces:", "Stage.RUNNING:"),),
        Config(ranks=2, crashes=1, kills=1), simulated=False,
    ),
    "a stall is not announced": Mutant(
        (("judging", "            await self._announce(sample.iteration, soft.reason, silent=silent)\n", ""),),
    ),
    "a monitor process looks only when it is woken": Mutant(
        ((WATCH, "min(self.awake.when(self.detectors.deadline), store_due)", "math.inf"),),
    ),
    "a lease that is never moved again": Mutant(
        ((WATCH, "self._lease_at = now + self.heartbeat\n", "self._lease_at = math.inf\n"),),
    ),
    "the siblings are not watched": Mutant(
        ((WATCH, "return (first, StoreTask.WATCH_SIBLINGS) if watches else (first,)", "return (first,)"),),
    ),
    "a member that has no lease is waited for": Mutant(
        (("sibling_ring", "all_have_arrived or now >= self._started_at\n", "all_have_arrived\n"),),
    ),
    "the reported are forgotten": Mutant(
        ((WATCH, "        await report_unresponsive(report, self.member, self.ports.store)\n", ""),),
        Config(ranks=2, nodes=1),
    ),
    "a rank that ignores its interruption is left": Mutant(
        (("judging", "await rank.terminate(reason)", "await rank.interrupt(reason)"),),
    ),
    "lease judged by the other's clock": Mutant(
        (("lease", "(lease, now)\n", '(lease, float(lease.partition("/")[0]))\n'),),
        simulated=False, machine="Leases",
    ),
    "two restarts for one fault set": Mutant(
        (("death_report", IF_LOST, IF_LOST.replace("lost:", "lost and self.fault.rank < 0:")),
         ("death_report", "return (self._enter(decision),)",
          "return (Enter(self._enter(decision).members | {self.member}, decision),)")),
        ONE_DIES, machine="Rounds",
    ),
    "a death is not told": Mutant(
        (("death_report", "return (Announce(self.fault),)", "return ()"),), ONE_DIES, machine="Rounds",
    ),
    "an arrival is counted before it is written": Mutant(
        (("round", ARRIVES, "        return (CountArrival(), PutArrival(arrival))\n"),), ONE_FAILS,
    ),
    "only the exact count closes": Mutant(
        (("round", "(ReadArrivals(self.members),) if count >=", "(ReadArrivals(self.members),) if count =="),),
        Config(ranks=2, crashes=1, kills=1),
    ),
    "one completes for all": Mutant(
        (("round", "        return (CountCompletion(),)\n", "        return (CloseCompleted(),)\n"),),
        Config(ranks=2),
    ),
    "who leaves early after the event does not arrive": Mutant(
        (("round", LEAVES, LEAVES.replace("RoundPhase.OPEN, RoundPhase.INTERRUPTED", "RoundPhase.OPEN,")),),
        Config(ranks=2, faults=1, errors=((1, 0),)),
    ),
    "who leaves early is waited for in the completion": Mutant(
        (("round", "        return (PutArrival(arrival), CountArrival(), CountCompletion())", ARRIVES.rstrip()),),
        Config(ranks=2, faults=2, discards=((1, 0),)),
    ),
    "the dead keep their place": Mutant(
        (("death_report", "status=ArrivalStatus.DEAD", "status=ArrivalStatus.ALIVE"),), ONE_DIES, machine="Rounds",
    ),
    "a fault is kept to oneself": Mutant(
        (("round", "(Announce(fault),) if self.phase in (RoundPhase.OPEN, RoundPhase.COMPLETE)",
          "(Announce(fault),) if self.phase is RoundPhase.COMPLETE"),),
        ONE_FAILS, machine="Rounds",
    ),
    "nobody waits for an atomic section": Mutant((("round", "        if moved:\n", "        if False:\n"),)),
    "a rendezvous where somebody else would host it": Mutant(
        (("decision", "for a in alive if a.rank == leader)", "for a in reversed(alive))"),), ONE_FAILS,
        simulated=False,
    ),
    "who gives up says nothing": Mutant(
        (("round", "(PutArrival(leaving), CountArrival(), GiveUp",
          "(CountArrival(), GiveUp"),),
        Config(ranks=2, quits=1), simulated=False,
    ),
    "the keys of a completed call are not deleted": Mutant(
        ((FLOW, COUNTS_OUT, PASS),),
        Config(ranks=2), simulated=False,
    ),
    "who leaves late deletes nothing": Mutant(
        ((FLOW, "                await self.ports.store.delete_if_over()\n", PASS),),
        Config(ranks=2, leaves=1), simulated=False,
    ),
    "nobody says where to meet": Mutant(
        ((FLOW, "                await self.ports.store.set_rendezvous(state.iteration, hosted)\n", PASS),),
        Config(ranks=2, faults=1, asks=True),
    ),
    "the hosting rank does not wait": Mutant(
        ((FLOW, AWAITS_CLIENTS, PASS),),
        Config(ranks=2, hosted=True),
    ),
    "who has completed does not wait until the store is closed": Mutant(
        ((FLOW, "                    await self.ports.leaving.await_host_closed()\n", "                    pass\n"),),
        Config(ranks=2, hosted=True),
    ),
    "who leaves does not say so": Mutant(
        ((FLOW, "            await self.ports.store.mark_left(self.state.initial_rank)\n", ""),),
        Config(ranks=2, hosted=True), simulated=False,
    ),
    "who has left by itself ends with the loss of the store": Mutant(
        ((FLOW, "if self.ended is not None and self.ended.outcome in _LEAVES:", "if False:"),),
        Config(ranks=2, hosted=True, crashes=1, leaves=1),
    ),
    "the deadline of a barrier is not reset": Mutant(
        (("round", "self.phase, self.deadline = RoundPhase.DECIDED, math.inf", "self.phase = RoundPhase.DECIDED"),),
        ONE_FAILS, simulated=False,
    ),
    "a completion is counted twice": Mutant(
        (("round", "        return (CountCompletion(),)\n", "        return (CountCompletion(),) * 2\n"),),
        Config(ranks=2),
    ),
    "a silent member is not reported in the next round": Mutant(
        (("death_report", "in decision.lost:\n            return\n        report = _following(report, decision)\n",
          "in decision.lost:\n            return\n        report = None\n"),),
        Config(ranks=2, nodes=1, asks=True), simulated=False,
    ),
    "who gives up has a code of its own": Mutant(
        ((FLOW, "given_up(error, decision.exit) if isinstance(error, RestartAbort) else error", "error"),),
        Config(ranks=2, whole=True, leaves=1), simulated=False,
    ),
    "only the cause may be an exit": Mutant(
        (("decision", "exit=_exit(faults, cause, lost)", "exit=cause if cause and cause.exit_code else None"),),
        Config(ranks=2, whole=True, faults=1, leaves=1), simulated=False,
    ),
    "the exit code of a death is not told": Mutant(
        (("decision", "fault.exit_code and fault.initial_rank in lost",
          "fault.interruption == _ANNOUNCED and fault.exit_code and fault.initial_rank in lost"),),
        Config(ranks=2, whole=True, crashes=1), simulated=False,
    ),
    "a living member is reported in round after round": Mutant(
        (("death_report", "            if report.ends_round:\n                return\n", ""),),
        Config(ranks=2, suspicions=1), simulated=False,
    ),
    "the decision on a silent member is deleted": Mutant(
        (("decision", "{decision.iteration} if set(", "frozenset[int]() if set("),
         ("decision", "{decision.iteration - 1, decision.iteration}", "{decision.iteration - 1}")),
        Config(ranks=2, suspicions=1), simulated=False,
    ),
    "the decision that a silent member has arrived for is deleted": Mutant(
        (("decision", "{decision.iteration - 1, decision.iteration}", "{decision.iteration}"),),
        Config(ranks=2, suspicions=1), simulated=False,
    ),
    "the decision that a member marked as left waits for is deleted": Mutant(
        (("decision", "if set(decision.lost).intersection(released)", "if False"),),
        Config(ranks=2, crashes=1, suspicions=1), simulated=False,
    ),
    "a death is reported in one round only": Mutant(
        (("death_report", "await_decision(report.iteration)\n        report = _following(report, decision)\n",
          "await_decision(report.iteration)\n        report = None\n"),),
        ONE_DIES,
    ),
    "the main thread is not told of the abort": Mutant(
        ((FLOW, "        view.aborted = True\n", ""),), ONE_FAILS,
    ),
    "the request to leave the function is kept": Mutant(
        ((FLOW, "            await self.abort.reset_interrupt()\n", ""),), ONE_FAILS, simulated=False,
    ),
    "the lost take part in the next round": Mutant(
        ((FLOW, "rounds.advance(enter.members)", "rounds.advance(view.round.members)"),), ONE_DIES,
    ),
    "a fault is announced when the function is aborted": Mutant(
        ((FLOW, TELLS, "        await self._await(view, RoundView.is_aborted)\n" + TELLS),),
        ONE_FAILS,
    ),
    "who cannot take its place tells nobody": Mutant(
        ((FLOW, ANNOUNCES + "            await self.ports.store.set", "            await self.ports.store.set"),),
        Config(ranks=2, faults=1, errors=((1, 0),)), simulated=False,
    ),
    "only the culprit gives up": Mutant(
        ((FLOW, "if not verdict.reached:", ONLY_CULPRIT),),
        Config(ranks=2, faults=2, limit=2), simulated=False,
    ),
    "who gives up does not look for a decision": Mutant(
        ((FLOW, "isinstance(action, GiveUp) and await self.ports.store.read_decision(view.round.iteration) is None:",
          "isinstance(action, GiveUp):"),),
        Config(ranks=2, quits=1), simulated=False,
    ),
    "the lost are not noted on the page": Mutant(
        ((FLOW, "        await self.ports.status.note_decision(decision.lost)\n", ""),),
        Config(ranks=3, crashes=2), simulated=False,
    ),
    "two calls have the same keys": Mutant(
        (("store.keys", "/{generation}/{call}", "/0/{generation}"),), TWO_CALLS,
    ),
    "the keys of the next call are deleted, too": Mutant(
        (("housekeeping", 'prefix, stay = f"{self.keys.prefix}/", self._read_late(iteration)',
          'prefix, stay = f"{self.keys.prefix[:-1]}", self._read_late(iteration)'),),
        TWO_CALLS,
    ),
    "the verdicts of the next call are deleted, too": Mutant(
        (("housekeeping", "keys.verdict(keys.generation))\n",
          "*(StoreKeys(keys.job, 0, keys.call + n).verdict(keys.generation) for n in (0, 1)))\n"),),
        Config(ranks=2, second=True, crashes=1), simulated=False,
    ),
    "the keys of a call are deleted before all have left": Mutant(
        (("housekeeping", "        if not self._have_left(members):\n            return\n        prefix, stay",
          "        prefix, stay"),
         ("housekeeping", "            return\n        if not self.store.forget(prefix, stay)",
          "            pass\n        if not self.store.forget(prefix, stay)")),
        Config(ranks=2, second=True, leaves=1),
    ),
    "a paused member is not noted as one that reads late": Mutant(
        (("membership", "        if silent:\n", "        if False:\n"),),
        Config(ranks=2, second=True, suspicions=1),
    ),
    "a member that dies on its way in is not reported": Mutant(
        ((JOINING, JOINED, JOINED.replace("1 +", "0 *")),),
        Config(ranks=2, second=True, crashes=1),
    ),
    "nobody claims the place of a member that dies on its way in": Mutant(
        ((JOINING, JOINED, "        return keys.of(0)\n" + JOINED),),
        Config(ranks=2, second=True, crashes=1),
    ),
    "the members meet although one has not come": Mutant(
        (("protocol.join", "claims >= self.world_size and await self.store.all_claimed(generation):",
          "claims >= self.world_size:"),),
        Config(ranks=2, second=True, crashes=1),
    ),
    "the rendezvous that a paused member asks for is deleted": Mutant(
        (("housekeeping", "self.keys.round(k).read_late)", "self.keys.round(k).read_late[:2])"),),
    ),
    "Ctrl-C in a barrier tells nobody": Mutant(
        ((FLOW, "                await self.ports.leaving.abandon(error)\n", PASS),),
        Config(ranks=2, breaks=1), simulated=False,
    ),
    "a failure is reported before the others are told": Mutant(
        ((FLOW, TELLS_FIRST, REPORTS_FIRST),),
        Config(ranks=2, breaks=2, reports=True), simulated=False,
    ),
}  # fmt: skip
