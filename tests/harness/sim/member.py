"""One member of a small job: the production flows of its threads and its monitor process, one input at a time.

What a flow awaits is either done at once, or pending until the checker lets it happen. `fingerprint`
identifies a member's state: the position and local variables of each flow, and what the flows share. Coroutines cannot
be copied, so a member is recreated by replaying its inputs.
"""

from __future__ import annotations

import math
from typing import Any, Final

from nvrx_core.errors import BarrierTimeout, PeerExited, RestartAbort, StoreLost
from nvrx_core.fault.record import FaultRecord
from nvrx_core.flow import Flow, run
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.interruption import policy
from nvrx_core.inprocess.interruption.policy import InterruptPolicy
from nvrx_core.inprocess.monitor.judging import Detectors
from nvrx_core.inprocess.monitor.policies import CleanExitPolicy, GilStallPolicy
from nvrx_core.inprocess.monitor.watch import Watch
from nvrx_core.inprocess.protocol.flows import FlowRules, MainThread, MonitorThreadFlow
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.protocol.round import Rounds
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks

from . import requests
from .chosen import Chosen, MemberPage
from .entering import Entering, NotMet
from .fingerprint import canonical, position
from .function import Failed
from .job import Config, fault_of
from .member_ports import MainPort, MonitorPort, OneTry, ThreadPort
from .record import TIMEOUTS
from .slots import Slots
from .virtual_ports import MonitorPorts, VirtualRank
from .world import Operation, Wish

__all__ = ["GAVE_UP", "MAIN", "MONITOR", "THREAD", "Member"]

MAIN, THREAD, MONITOR = "main", "thread", "monitor"
GAVE_UP: Final = "gave up with exit code "
"""The end of a member that could not go on without another one."""


class Leaves(SystemExit):
    """What it raises to leave."""


class Member(VirtualRank):
    """A member.

    Args:
        config: the job.
        member: which one it is.
    """

    def __init__(self, config: Config, member: int) -> None:
        self.known = initial_ranks(config.ranks)
        super().__init__(InitialRank(member), self.known, TIMEOUTS)
        self.config, self.time, self.section = config, 0.0, 0
        self.requested = self.left = self.released = self.leaving = False
        self.end, self.given_code = "", 0
        self.spoken: dict[int, int] = {}
        self.about, self.lost_store, self.abandoned = -1, False, False
        self.stage, self.chosen = Stage.STARTING, Chosen(self.member)
        rules = FlowRules(
            no_progress_limit=config.limit or None, hosts_store=config.hosted and member == 0,
            store_is_hosted=config.hosted,
        )  # fmt: skip
        self.flow = MainThread(self.rounds, self.state, rules, ports=MainPort(self).ports(), now=self._now)
        self.entering = Entering(self)
        self.flows = dict[str, Flow[Any] | None].fromkeys((MAIN, THREAD, MONITOR))
        self.pending: dict[str, Any] = dict.fromkeys(self.flows)
        self.watch = self._watch(replaces=False)
        self.flows[MAIN] = self.entering.run() if config.joins else self.flow.run()
        if config.joins:
            self.stage = Stage.OUTSIDE
            self._resume(MAIN, None)
        else:
            self._resume(MAIN, None)
            self.begin()
            self._begin_watch(replaces=False)
            self._settle()

    def begin(self) -> None:
        """The monitor thread begins: it has joined the others."""
        port = ThreadPort(self)
        self.flows[THREAD] = MonitorThreadFlow(self.rounds, port, port).run()
        self._resume(THREAD, None)

    def _now(self) -> float:
        return self.time

    def fault(self, kind: Interruption, exit_code: int = 0) -> FaultRecord:
        """Return a fault of this member."""
        return fault_of(self.member, self.state.rank, kind, exit_code)

    # Inputs

    def apply(self, what: str, given: Any) -> None:
        """Let something happen: the pending effect of a flow has this outcome, or what the name of the input says."""
        round_ = self.rounds.view.round
        if what in self.flows:
            self._resume(what, given)
        else:
            getattr(self, f"_{what}")(given)
        self._settle()
        round_.check()

    def _fails(self, _: None) -> None:
        self._resume(MAIN, IterationResult(Outcome.FAILED, error=Failed()))

    def _leaves(self, _: None) -> None:
        self.leaving = True
        self._resume(MAIN, IterationResult(Outcome.LEFT, error=Leaves(3 + self.member)))

    def _exits(self, _: None) -> None:
        self.leaving = True
        self._resume(MAIN, IterationResult(Outcome.EXITED, error=SystemExit(0)))

    def _completes(self, _: None) -> None:
        self._resume(MAIN, IterationResult(Outcome.RETURNED))

    def _enters_section(self, _: None) -> None:
        self.section = 1

    def _leaves_section(self, _: None) -> None:
        self.section = 2

    def _waits_no_longer(self, _: None) -> None:
        """The deadline of the main thread's wait has passed."""
        self.time = math.inf
        self._resume(MAIN, None)
        self.time = 0.0

    def _loses_store(self, which: str) -> None:
        self._resume(which, StoreFailure("gone"), throw=True)
        self.lost_store = which == THREAD

    def _breaks(self, _: None) -> None:
        self._resume(MAIN, KeyboardInterrupt(), throw=True)

    def _dies(self, node: bool) -> None:
        node |= isinstance(self.pending[MAIN], requests.BeginCall)  # there is no monitor process yet
        self._stop(THREAD)
        self._stop(MAIN)
        self.end = "dead"
        self.rounds, self.section, self.requested = Rounds(self.member, initial_ranks(0), TIMEOUTS), 0, False
        if node:
            self._stop(MONITOR)
            self.end = "gone"

    def _replaces_monitor(self, _: None) -> None:
        self._stop(MONITOR)
        self.spoken, self.about = {}, -1
        self.end = self.end.removesuffix(", and told")
        self._begin_watch(replaces=True)

    def _ends_monitor(self, _: None) -> None:
        self._stop(MONITOR)

    def _hangs(self, _: None) -> None:
        self.chosen.stalls = True
        self._wake()

    def _speaks_for(self, other: InitialRank) -> None:
        self.spoken, self.about = {**self.spoken, other: self.iteration}, other
        self.chosen.silent = (other,)
        self._wake()

    def _marked_left(self, _: None) -> None:
        """The monitor process of another member has marked this one as left."""
        self.left, self.released = True, self.released or not self.left

    # The flows

    def _watch(self, *, replaces: bool) -> Watch:
        chosen = self.chosen
        detectors = Detectors(chosen, GilStallPolicy(math.inf, math.inf), CleanExitPolicy())  # type: ignore[arg-type]
        port = MonitorPort(self)
        return Watch(
            self.member, MonitorPorts(MemberPage(self), port, port, port), detectors, self._now,
            schedule=chosen.schedule, ring=chosen.ring, awake=AwakeClock(), replaces=replaces,
        )  # fmt: skip

    def _begin_watch(self, *, replaces: bool) -> None:
        self.watch = self._watch(replaces=replaces)
        self._start_monitor(self.watch.run())

    def _wake(self) -> None:
        """The monitor process looks."""
        self._resume(MONITOR, False)

    def _start_monitor(self, flow: Flow[Any]) -> None:
        self.flows[MONITOR] = flow
        self._resume(MONITOR, None)

    def _stop(self, which: str) -> None:
        flow, self.flows[which], self.pending[which] = self.flows[which], None, None
        if flow is not None:
            flow.close()

    def _resume(self, which: str, outcome: Any, *, throw: bool = False) -> None:
        """Run a flow to its next pending effect."""
        flow = self.flows[which]
        assert flow is not None
        self._note(which, self.pending[which])
        try:
            effect = flow.throw(outcome) if throw else flow.send(outcome)
        except StopIteration as end:
            self._ended(which, end.value)
        except StoreLost:
            assert not self.leaving, f"I17: {self.member} ends with the loss of the store, and has left by itself"
            self._ended(which, None)
            self.end = "lost the store"
        except NotMet as verdict:
            self._ended(which, None)
            self.end = f"not met: {verdict}"
        except KeyboardInterrupt:
            self._ended(which, None)
            if self.abandoned:
                self._dies(node=False)
        except (StoreFailure, BarrierTimeout):
            assert which != MONITOR, f"the monitor process of member {self.member} fails"
            self._ended(which, None)
        else:
            self.pending[which] = effect
            if isinstance(effect, requests.RunFunction):
                self.stage = Stage.RUNNING

    def _note(self, which: str, done: Wish | None) -> None:
        """What a pending effect changes here when it happens."""
        if isinstance(done, requests.BeginCall):
            self._begin_watch(replaces=False)
        elif isinstance(done, requests.RunFunction):
            self.stage = Stage.UNWINDING
        elif isinstance(done, requests.LoseMembers):
            self.known -= set(done.members)
        elif isinstance(done, requests.BeginIteration):
            self.iteration = self.state.iteration
        elif isinstance(done, requests.MarkLeft) and done.member == self.member:
            self.left = True
        elif isinstance(done, Operation) and done.operation is Slots.look_up and which == MONITOR:
            self.spoken = {**self.spoken, self.about: done.iteration}

    def _ended(self, which: str, value: Any) -> None:
        self.flows[which] = self.pending[which] = None
        if which == MONITOR:
            self.about = -1
        if which == MAIN:
            self._stop(THREAD)
            spent = value is not None and isinstance(value.error, RestartAbort | Failed)
            self.end = "finished" if self.rounds.view.finished else "spent" if spent else "left"
            if self.config.whole and value is not None and isinstance(value.error, RestartAbort):
                code = value.error.exit_code if isinstance(value.error, PeerExited) else 0
                told = f"the decision names {self.given_code}"
                assert code == self.given_code, f"I18: member {self.member} ends with exit code {code}, and {told}"
                self.end = f"{GAVE_UP}{code}"
            self.stage = Stage.LEFT if self.stage is not Stage.EXITED_ABNORMALLY else self.stage

    def _settle(self) -> None:
        """Go on as far as nothing but this member's own threads is waited for."""
        while self._settle_once():
            pass
        asleep = isinstance(self.pending[MONITOR], requests.Sleep)
        if asleep and self.end == "dead":
            self.end = "dead, and told"
            self._resume(MONITOR, self.stage is not Stage.EXITED_ABNORMALLY)
        elif asleep and (self.stage is Stage.LEFT or self.abandons()):
            self._resume(MONITOR, False)

    def abandons(self) -> bool:
        """Whether the main thread leaves by an exception, has had the others told, and has yet to report it."""
        return self.stage is Stage.EXITED_ABNORMALLY and self.flows[MAIN] is not None

    def _settle_once(self) -> bool:
        awaited, waits = self.pending[MAIN], self.pending[THREAD]
        if isinstance(awaited, requests.Await) and awaited.until(awaited.view):
            self._resume(MAIN, None)
        elif isinstance(awaited, requests.Await | requests.RunFunction) and self.lost_store:
            self._resume(MAIN, StoreLost("node0", 1), throw=True)
        elif isinstance(awaited, requests.RunFunction) and self.requested and self.section != 1:
            self._resume(MAIN, IterationResult(Outcome.INTERRUPTED))
        elif isinstance(waits, requests.InterruptFunction) and self._interrupts():
            self.requested = True
            self._resume(THREAD, None)
        elif isinstance(waits, requests.AwaitOut) and not isinstance(awaited, requests.RunFunction):
            self._resume(THREAD, None)
        else:
            return False
        return True

    def _interrupts(self) -> bool:
        """Whether the flow that interrupts does so, as the function is now."""
        masked = isinstance(self.pending[MAIN], requests.RunFunction) and self.section == 1
        thread = OneTry(masked=masked)
        run(policy.begin(InterruptPolicy(unwind=10.0), thread, self._now))
        assert not (thread.fires and masked), f"I4: member {self.member} is interrupted in an atomic section"
        return thread.fires

    # The identity of a state

    def fingerprint(self) -> tuple[object, ...]:
        """Everything that determines this member's next steps, hashable."""
        state, flow = self.state, self.flow
        whole = (state.rank, state.world_size, state.iteration, self.iteration, self.known, self.section)
        alive = (
            self.requested, flow.endpoint, canonical(flow.failure), flow.completed, flow.left_early,
            flow.limit.state(), canonical(self.rounds.view),
        )  # fmt: skip
        return (
            self.end, self.given_code, self.left, self.released, self.lost_store, whole,
            alive if self.flows[MAIN] is not None else None,
            tuple(sorted(self.spoken.items())), self.about, frozenset(self.watch.unresponsive),
            self.watch.replaces, self.stage is Stage.LEFT, self.stage is Stage.OUTSIDE, self.entering.claimed,
            self.stage is Stage.RUNNING and self.flows[MONITOR] is not None, self.abandons(),
            *map(position, self.flows.values()), *map(canonical, self.pending.values()),
        )  # fmt: skip
