"""The flow of a monitor process, with a page, a clock and answers that are made up."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.monitor import watch_effects as effects
from nvrx_core.inprocess.monitor.clean_exit import CleanExitPolicy
from nvrx_core.inprocess.monitor.gil_stall import GilStallPolicy
from nvrx_core.inprocess.monitor.judging import Judges
from nvrx_core.inprocess.monitor.sibling_ring import SiblingRing
from nvrx_core.inprocess.monitor.store_schedule import StoreSchedule
from nvrx_core.inprocess.monitor.unheard_round import UnheardRoundPolicy
from nvrx_core.inprocess.monitor.watch import STORE_GRACE, Parts, Watch
from nvrx_core.inprocess.protocol.effects import (
    AwaitDecision,
    DeleteIfOver,
    MarkLeft,
    ReadDecision,
    SetRendezvous,
    StoreFailure,
    StoreOperation,
)
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import HangDetector, ProgressSample
from nvrx_core.liveness.peer_progress import AllWaiting, MinimumProgress, PeerProgress
from nvrx_core.progress.stage import Stage

FAULT = FaultRecord(initial_rank=0, rank=0, interruption="TERMINATED")
SOFT, HARD = 10.0, 30.0


class Shell:
    """Carries out a watch's effects; `sleeps` says what happens in each sleep, by number."""

    def __init__(self, *sleeps, fails=(), answers=None):
        self.page = SimpleNamespace(
            stage=Stage.RUNNING, iteration=0, store_lost_at=0.0, hosts_store=False, look_within=math.inf, rendezvous=2,
            inside=True, collectives=0, exited=None, members=lambda: frozenset(self.members),
            siblings=lambda: sorted(self.members - {0}),
        )  # fmt: skip
        self.members = {0, 1}
        self.now, self.alive_at, self.watchdog_at = 100.0, math.inf, math.inf
        self.sleeps, self.fails, self.done = list(sleeps), fails, list[object]()
        self.answers = {
            effects.FindProgress: PeerProgress({}), effects.HasEvent: False, effects.ReadLeases: {},
            effects.HasLeft: False,
            effects.JoinForDead: True, effects.DescribeDeath: FAULT, effects.DescribeStall: FAULT,
            effects.DescribeSilence: FAULT, **(answers or {}),
        }  # fmt: skip
        judges = Judges(HangDetector(SOFT, HARD, 1.0), GilStallPolicy(1.0, 10.0), CleanExitPolicy())
        schedule = StoreSchedule(heartbeat=1.0, probe=0.5, siblings=1.0)
        self.parts = Parts(judges, schedule, SiblingRing(0, 5.0, 0.0), AwakeClock(), 60.0)
        self.watch = Watch(0, self.page, self.parts, lambda: self.now)

    def run(self):
        flow, outcome, error = self.watch.run(), None, None
        while True:
            try:
                effect = flow.throw(error) if error else flow.send(outcome)
            except StopIteration:
                return self
            self.done.append(effect)
            error = StoreFailure("gone") if type(effect) in self.fails else None
            outcome = None if error else self.carry_out(effect)

    def carry_out(self, effect):
        if isinstance(effect, effects.Sleep):
            return self.sleeps.pop(0)(effect) if self.sleeps else self.leave()
        if isinstance(effect, effects.TakeSample):
            return ProgressSample(
                iteration=self.page.iteration, stage=self.page.stage, alive_at=self.alive_at,
                watchdog_alive_at=self.watchdog_at,
            )  # fmt: skip
        if isinstance(effect, effects.MarkStoreLost):
            self.page.store_lost_at = self.now
        return self.answers.get(type(effect))

    def leave(self, stage=Stage.LEFT):
        self.page.stage = stage
        return False

    def later(self, seconds):
        def sleep(_):
            self.now += seconds
            return False

        return sleep

    def until_due(self, effect):
        self.now = effect.until
        return False

    def dies(self, _):
        return True

    def of(self, kind):
        return [effect for effect in self.done if isinstance(effect, kind)]


def test_the_lease_is_moved_and_the_store_probed_in_between():
    shell = Shell()
    shell.sleeps = [shell.until_due] * 4
    shell.run()
    assert len(shell.of(effects.MoveLease)) == 3
    assert len(shell.of(effects.ProbeStore)) == 2
    assert not shell.of(StoreOperation)


def test_outside_of_a_call_the_store_is_left_alone():
    shell = Shell()
    shell.page.stage = Stage.OUTSIDE
    assert not shell.run().of(effects.MoveLease)


@pytest.mark.parametrize("lost", [False, True], ids=["it finds it", "the rank has found it"])
def test_a_rank_that_does_not_leave_after_the_store_is_lost_is_killed_and_nobody_told(lost):
    shell = Shell(fails=(effects.MoveLease,))
    shell.page.store_lost_at = shell.now if lost else 0.0
    shell.sleeps = [shell.later(STORE_GRACE / 2), shell.later(STORE_GRACE), shell.dies]
    shell.run()
    assert len(shell.of(effects.MarkStoreLost)) == (not lost)
    assert len(shell.of(effects.KillWithoutStore)) == 1
    assert not shell.of(effects.DescribeDeath)


def test_a_loss_that_the_rank_notices_first_is_not_noted_again():
    shell = Shell(fails=(effects.MoveLease,))
    carry_out, shell.fails = shell.carry_out, (effects.ReadLeases,)

    def rank_is_first(effect):
        if isinstance(effect, effects.MoveLease):
            shell.page.store_lost_at = shell.now
        return carry_out(effect)

    shell.carry_out = rank_is_first
    assert not shell.run().of(effects.MarkStoreLost)


def test_a_death_is_reported_unless_the_rank_has_left_the_store_is_gone_or_nobody_has_met():
    shell = Shell()
    shell.sleeps = [shell.dies]
    shell.answers[AwaitDecision] = SimpleNamespace(lost=(0,))
    shell.run()
    assert shell.of(effects.DisownPage)
    assert shell.of(effects.DescribeDeath) == [effects.DescribeDeath(None, None)]
    assert shell.of(StoreOperation)
    host = Shell()
    host.page.hosts_store, host.sleeps = True, [host.dies]
    assert not host.run().of(effects.JoinForDead)
    alone = Shell(answers={effects.JoinForDead: False})
    alone.sleeps = [alone.dies]
    assert not alone.run().of(StoreOperation)
    lost = Shell(fails=(effects.JoinForDead,))
    lost.sleeps = [lost.dies]
    assert not lost.run().of(StoreOperation)
    left = Shell()
    left.sleeps = [lambda _: (left.leave(), True)[1]]
    assert not left.run().of(effects.DescribeDeath)


@pytest.mark.parametrize(
    ("stage", "replaces", "asked"),
    [(Stage.RUNNING, False, False), (Stage.RUNNING, True, True), (Stage.WAITING, False, True)],
    ids=["it dies in its function", "a predecessor may have reported it", "it may have left"],
)
def test_a_death_is_not_reported_of_a_rank_that_has_left_or_by_who_replaces_the_reporter(stage, replaces, asked):
    shell = Shell(answers={effects.HasLeft: True, AwaitDecision: SimpleNamespace(lost=(0,))})
    shell.page.stage, shell.parts.replaces, shell.sleeps = stage, replaces, [shell.dies]
    shell.run()
    assert shell.of(effects.HasLeft) == [effects.HasLeft(0)] * asked
    assert bool(shell.of(StoreOperation)) is not asked
    assert len(shell.of(DeleteIfOver)) == 1  # also where the predecessor was lost before it had looked


def test_a_rank_that_leaves_out_of_turn_is_reported_by_a_host_as_well():
    shell = Shell()
    shell.page.hosts_store = True
    shell.answers[AwaitDecision] = SimpleNamespace(lost=(0,))
    shell.sleeps = [lambda _: shell.leave(Stage.EXITED_ABNORMALLY)]
    assert shell.run().of(effects.JoinForDead)


def test_a_hung_rank_is_announced_though_the_store_fails_and_ended_later():
    shell = Shell(fails=(StoreOperation,))
    shell.alive_at, shell.members = shell.now - SOFT, {0}
    shell.sleeps = [shell.until_due] * 400 + [shell.dies]
    shell.answers[effects.JoinForDead] = False
    shell.run()
    assert shell.of(effects.MarkStalled) == [effects.MarkStalled(0)]
    assert len(shell.of(StoreOperation)) == 1
    assert len(shell.of(effects.TerminateRank)) == 1
    assert shell.of(effects.KillRank)
    (death,) = shell.of(effects.DescribeDeath)
    assert "no progress" in death.reason


def test_a_rank_that_waited_when_it_was_ended_had_made_no_progress_since_its_watchdog_ran():
    shell = Shell()
    shell.page.stage, shell.watchdog_at = Stage.WAITING, shell.now - HARD
    shell.sleeps = [shell.dies]
    shell.answers[effects.JoinForDead] = False
    (death,) = shell.run().of(effects.DescribeDeath)
    assert death.since == shell.watchdog_at


def test_a_rank_that_waits_for_stragglers_is_excused_and_they_are_named_once():
    behind = PeerProgress({0: MinimumProgress(1, 0, (1,))})
    shell = Shell(answers={effects.FindProgress: behind})
    shell.alive_at = shell.now - SOFT
    shell.sleeps = [shell.later(SOFT), shell.later(SOFT / 2)]
    shell.run()
    assert shell.of(effects.NoteStragglers) == [effects.NoteStragglers(0, (1,))]
    unknown = Shell(fails=(effects.FindProgress,))
    unknown.alive_at = unknown.now - SOFT
    assert unknown.run().of(effects.MarkStalled)


def test_a_rank_whose_threads_do_not_run_is_told_that_the_round_is_over():
    shell = Shell()
    shell.watchdog_at = shell.now - 2.0
    assert not shell.run().of(effects.MarkRoundOver)
    shell = Shell(answers={effects.HasEvent: True})
    shell.watchdog_at = shell.now - 2.0
    shell.run()
    assert shell.of(effects.MarkRoundOver) == [effects.MarkRoundOver(0)]
    assert shell.of(effects.InterruptRank)
    shell = Shell(fails=(effects.HasEvent,))
    shell.watchdog_at = shell.now - 2.0
    assert not shell.run().of(effects.MarkRoundOver)


@pytest.mark.parametrize("fails", [(), (effects.FindProgress,)])
def test_who_waits_for_a_rank_that_has_exited_is_announced(fails):
    waiting = PeerProgress({}, all_waiting=AllWaiting(0, 3, (1,)))
    shell = Shell(fails=fails, answers={effects.FindProgress: waiting})
    shell.page.stage, shell.page.exited = Stage.WAITING, 0
    shell.sleeps = [shell.later(1.0), shell.later(1.5)]
    shell.run()
    assert len(shell.of(effects.DescribeStall)) == (not fails)
    nobody = Shell()
    nobody.page.stage, nobody.page.exited = Stage.WAITING, 0
    nobody.sleeps = [nobody.later(1.0), nobody.later(1.5)]
    assert not nobody.run().of(effects.DescribeStall)


def test_a_silent_sibling_is_reported_and_released_once_it_is_lost():
    shell = Shell(answers={ReadDecision: None})
    shell.sleeps = [shell.until_due] * 16 + [lambda _: shell.members.discard(1), shell.until_due, shell.until_due]
    shell.run()
    assert len(shell.of(effects.DescribeSilence)) == 1
    assert len(shell.of(SetRendezvous)) >= 2
    assert shell.of(MarkLeft) == [MarkLeft(1, silent=True)]
    assert shell.of(DeleteIfOver) == [DeleteIfOver()]
    assert not shell.watch.unresponsive


def test_who_is_lost_itself_reports_no_sibling():
    """Its siblings may have completed the call, and deleted their leases."""
    shell = Shell(answers={ReadDecision: SimpleNamespace(lost=(0,))})
    shell.sleeps = [shell.until_due] * 16
    shell.run()
    assert shell.of(ReadDecision)
    assert not shell.of(SetRendezvous)


def test_a_sibling_that_has_left_is_not_silent_and_one_that_cannot_be_released_is_left():
    shell = Shell(answers={effects.HasLeft: True})
    shell.sleeps = [shell.until_due] * 16
    assert not shell.run().of(effects.DescribeSilence)
    shell = Shell(answers={ReadDecision: None}, fails=(MarkLeft,))
    shell.sleeps = [shell.until_due] * 16 + [lambda _: (shell.members.discard(1), shell.leave())[1]]
    shell.run()
    assert shell.watch.unresponsive


def test_a_pause_of_the_process_is_reported_and_charged_to_nobody():
    shell = Shell()
    shell.alive_at = shell.now
    shell.sleeps = [shell.later(50.0)]
    shell.run()
    assert [round(effect.seconds) for effect in shell.of(effects.ReportPause)] == [50]


@pytest.mark.parametrize(
    ("stage", "answers"),
    [(Stage.RUNNING, {effects.HasEvent: True}), (Stage.ARRIVED, {effects.HasDecision: True})],
    ids=["event", "decision"],
)
def test_a_rank_that_does_not_hear_of_the_end_of_its_round_is_made_to_listen_anew_and_then_ended(stage, answers):
    shell = Shell(answers=answers)
    shell.parts.judges.unheard = UnheardRoundPolicy(HARD)
    shell.page.stage = stage
    begun = shell.now
    shell.sleeps = [shell.until_due] * 200
    shell.run()
    (renewed,), (ended,) = shell.of(effects.RenewConnections), shell.of(effects.TerminateRank)
    assert "of iteration 0 has not reached the rank" in renewed.reason
    assert "has not reached the rank for 15 s" in ended.reason
    assert len(shell.of(effects.KillRank)) >= 1
    assert shell.watch.judging.ended_for == ended.reason
    assert shell.now > begun + HARD * 3 / 4


def test_a_rank_whose_round_goes_on_is_left_alone():
    shell = Shell()
    shell.parts.judges.unheard = UnheardRoundPolicy(HARD)
    shell.sleeps = [shell.until_due] * 200
    shell.run()
    assert len(shell.of(effects.HasEvent)) >= 4
    assert not [*shell.of(effects.RenewConnections), *shell.of(effects.TerminateRank)]
