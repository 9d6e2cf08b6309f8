"""The flow of a monitor process, with a page, a clock and answers that are made up."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.monitor.judging import Detectors
from nvrx_core.inprocess.monitor.policies import CleanExitPolicy, GilStallPolicy, UnheardRoundPolicy
from nvrx_core.inprocess.monitor.sibling_ring import SiblingRing
from nvrx_core.inprocess.monitor.watch import STORE_GRACE, StoreSchedule, Watch
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import CallRules, HangDetector
from nvrx_core.liveness.peer_progress import AllWaiting, MinimumProgress, PeerProgress
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.stage import Stage
from tests.harness.asked import Asking, ask, drive

FAULT = FaultRecord(initial_rank=0, rank=0, interruption="TERMINATED")
SOFT, HARD = 10.0, 30.0


class Shell:
    """Carries out what a watch asks for; `sleeps` says what happens in each sleep, by number."""

    def __init__(self, *sleeps, fails=(), answers=None):
        self.page = SimpleNamespace(
            stage=Stage.RUNNING, iteration=0, store_lost_at=0.0, hosts_store=False, rendezvous=2,
            inside=True, collectives=0, exited=None, members=lambda: frozenset(self.members),
            siblings=lambda: sorted(self.members - {0}),
        )  # fmt: skip
        self.members = {0, 1}
        self.now, self.alive_at, self.watchdog_at, self.stopped = 100.0, math.inf, math.inf, False
        self.sleeps, self.fails, self.done = list(sleeps), fails, list[object]()
        self.answers = {
            "find_progress": PeerProgress({}), "has_event": False, "read_leases": {},
            "has_left": False,
            "join_for_dead": True, "describe_death": FAULT, "describe_stall": FAULT,
            "describe_silence": FAULT, "announce": FAULT, "count_arrival": 0, **(answers or {}),
        }  # fmt: skip
        detectors = Detectors(
            HangDetector(CallRules(SOFT, HARD, 1.0, 60.0)), GilStallPolicy(1.0, 10.0), CleanExitPolicy()
        )
        schedule = StoreSchedule(heartbeat=1.0, probe=0.5, siblings=1.0)
        port = Asking()
        ports = SimpleNamespace(page=self.page, rank=port, reports=port, store=port)
        self.watch = Watch(
            0, ports, detectors, lambda: self.now,
            schedule=schedule, ring=SiblingRing(0, 5.0, 0.0), awake=AwakeClock(),
        )  # fmt: skip

    def run(self):
        drive(self.watch.run(), self.answer)
        return self

    def answer(self, asked):
        self.done.append(asked)
        if asked.name in self.fails:
            raise StoreFailure("gone")
        return self.carry_out(asked)

    def carry_out(self, asked):
        if asked.name == "sleep":
            return self.sleeps.pop(0)(asked) if self.sleeps else self.leave()
        if asked.name == "sample":
            return ProgressSample(
                iteration=self.page.iteration, stage=self.page.stage, alive_at=self.alive_at,
                watchdog_alive_at=self.watchdog_at, stopped=self.stopped,
            )  # fmt: skip
        if asked.name == "mark_store_lost":
            self.page.store_lost_at = self.now
        return self.answers.get(asked.name)

    def leave(self, stage=Stage.LEFT):
        self.page.stage = stage
        return False

    def later(self, seconds):
        def sleep(_):
            self.now += seconds
            return False

        return sleep

    def until_due(self, asked):
        (self.now,) = asked.args
        return False

    def dies(self, _):
        return True

    def of(self, name):
        return [asked for asked in self.done if asked.name == name]

    def first_argument(self, name):
        return [asked.args[0] for asked in self.of(name)]


def test_the_lease_is_moved_and_the_store_probed_in_between():
    shell = Shell()
    shell.sleeps = [shell.until_due] * 4
    shell.run()
    assert len(shell.of("move_lease")) == 3
    assert len(shell.of("probe")) == 2
    assert not shell.of("announce")


def test_outside_of_a_call_the_store_is_left_alone():
    shell = Shell()
    shell.page.stage = Stage.OUTSIDE
    assert not shell.run().of("move_lease")


@pytest.mark.parametrize("lost", [False, True], ids=["it finds it", "the rank has found it"])
def test_a_rank_that_does_not_leave_after_the_store_is_lost_is_killed_and_nobody_told(lost):
    shell = Shell(fails=("move_lease",))
    shell.page.store_lost_at = shell.now if lost else 0.0
    shell.sleeps = [shell.later(STORE_GRACE / 2), shell.later(STORE_GRACE), shell.dies]
    shell.run()
    assert len(shell.of("mark_store_lost")) == (not lost)
    assert len(shell.of("kill_without_store")) == 1
    assert not shell.of("describe_death")


def test_a_loss_that_the_rank_notices_first_is_not_noted_again():
    shell = Shell(fails=("move_lease",))
    carry_out, shell.fails = shell.carry_out, ("read_leases",)

    def rank_is_first(effect):
        if effect.name == "move_lease":
            shell.page.store_lost_at = shell.now
        return carry_out(effect)

    shell.carry_out = rank_is_first
    assert not shell.run().of("mark_store_lost")


def test_a_death_is_reported_unless_the_rank_has_left_the_store_is_gone_or_nobody_has_met():
    shell = Shell()
    shell.sleeps = [shell.dies]
    shell.answers["await_decision"] = SimpleNamespace(lost=(0,))
    shell.run()
    assert shell.of("disown_page")
    assert shell.of("describe_death") == [ask("describe_death", None, None)]
    assert shell.of("announce")
    host = Shell()
    host.page.hosts_store, host.sleeps = True, [host.dies]
    assert not host.run().of("join_for_dead")
    alone = Shell(answers={"join_for_dead": False})
    alone.sleeps = [alone.dies]
    assert not alone.run().of("announce")
    lost = Shell(fails=("join_for_dead",))
    lost.sleeps = [lost.dies]
    assert not lost.run().of("announce")
    left = Shell()
    left.sleeps = [lambda _: (left.leave(), True)[1]]
    assert not left.run().of("describe_death")


@pytest.mark.parametrize(
    ("stage", "replaces", "asked"),
    [(Stage.RUNNING, False, False), (Stage.RUNNING, True, True), (Stage.WAITING, False, True)],
    ids=["it dies in its function", "a predecessor may have reported it", "it may have left"],
)
def test_a_death_is_not_reported_of_a_rank_that_has_left_or_by_who_replaces_the_reporter(stage, replaces, asked):
    shell = Shell(answers={"has_left": True, "await_decision": SimpleNamespace(lost=(0,))})
    shell.page.stage, shell.watch.replaces, shell.sleeps = stage, replaces, [shell.dies]
    shell.run()
    assert shell.of("has_left") == [ask("has_left", 0)] * asked
    assert bool(shell.of("announce")) is not asked
    assert len(shell.of("delete_if_over")) == 1  # also where the predecessor was lost before it had looked


def test_a_rank_that_leaves_out_of_turn_is_reported_by_a_host_as_well():
    shell = Shell()
    shell.page.hosts_store = True
    shell.answers["await_decision"] = SimpleNamespace(lost=(0,))
    shell.sleeps = [lambda _: shell.leave(Stage.EXITED_ABNORMALLY)]
    assert shell.run().of("join_for_dead")


def test_a_hung_rank_is_announced_though_the_store_fails_and_ended_later():
    shell = Shell(fails=("announce",))
    shell.alive_at, shell.members = shell.now - SOFT, {0}
    shell.sleeps = [shell.until_due] * 400 + [shell.dies]
    shell.answers["join_for_dead"] = False
    shell.run()
    assert shell.of("mark_stalled") == [ask("mark_stalled", 0)]
    assert len(shell.of("announce")) == 1
    assert len(shell.of("terminate")) == 1
    assert shell.of("kill")
    (reason,) = shell.first_argument("describe_death")
    assert "no progress" in reason


def test_a_rank_that_waited_when_it_was_ended_had_made_no_progress_since_its_watchdog_ran():
    shell = Shell()
    shell.page.stage, shell.watchdog_at = Stage.WAITING, shell.now - HARD
    shell.sleeps = [shell.dies]
    shell.answers["join_for_dead"] = False
    (death,) = shell.run().of("describe_death")
    assert death.args[1] == shell.watchdog_at


def test_a_rank_that_waits_for_stragglers_is_excused_and_they_are_named_once():
    behind = PeerProgress({0: MinimumProgress(1, 0, (1,))})
    shell = Shell(answers={"find_progress": behind})
    shell.alive_at = shell.now - SOFT
    shell.sleeps = [shell.later(SOFT), shell.later(SOFT / 2)]
    shell.run()
    assert shell.of("note_stragglers") == [ask("note_stragglers", 0, (1,))]
    unknown = Shell(fails=("find_progress",))
    unknown.alive_at = unknown.now - SOFT
    assert unknown.run().of("mark_stalled")


def test_a_rank_whose_threads_do_not_run_is_told_that_the_round_is_over():
    shell = Shell()
    shell.watchdog_at = shell.now - 2.0
    assert not shell.run().of("mark_round_over")
    shell = Shell(answers={"has_event": True})
    shell.watchdog_at = shell.now - 2.0
    shell.run()
    assert shell.of("mark_round_over") == [ask("mark_round_over", 0)]
    assert shell.of("interrupt")
    assert shell.first_argument("report_hang") == [0]
    shell = Shell(fails=("has_event",))
    shell.watchdog_at = shell.now - 2.0
    assert not shell.run().of("mark_round_over")


@pytest.mark.parametrize("fails", [(), ("report_hang",)])
@pytest.mark.parametrize("stopped", [True, False])
def test_where_a_hung_rank_is_whose_threads_do_not_run_is_reported_once_and_before_any_signal(fails, stopped):
    shell = Shell(fails=fails, answers={"has_event": True})
    shell.alive_at, shell.stopped = shell.now - SOFT, stopped
    shell.watchdog_at = shell.now if stopped else shell.now - SOFT
    shell.sleeps = [shell.later(0.06), shell.later(2.0), shell.later(0.3)]
    names = [asked.name for asked in shell.run().done]
    assert names.count("report_hang") == 1
    assert names.index("announce") < names.index("report_hang") < names.index("interrupt")


def test_a_hung_rank_whose_threads_run_reports_for_itself():
    shell = Shell()
    shell.alive_at, shell.watchdog_at = shell.now - SOFT, shell.now
    assert shell.run().of("announce")
    assert not shell.of("report_hang")


@pytest.mark.parametrize("fails", [(), ("find_progress",)])
def test_who_waits_for_a_rank_that_has_exited_is_announced(fails):
    waiting = PeerProgress({}, all_waiting=AllWaiting(0, 3, (1,)))
    shell = Shell(fails=fails, answers={"find_progress": waiting})
    shell.page.stage, shell.page.exited = Stage.WAITING, 0
    shell.sleeps = [shell.later(1.0), shell.later(1.5)]
    shell.run()
    assert len(shell.of("describe_stall")) == (not fails)
    nobody = Shell()
    nobody.page.stage, nobody.page.exited = Stage.WAITING, 0
    nobody.sleeps = [nobody.later(1.0), nobody.later(1.5)]
    assert not nobody.run().of("describe_stall")


def test_a_silent_sibling_is_reported_and_released_once_it_is_lost():
    shell = Shell(answers={"read_decision": None})
    shell.sleeps = [shell.until_due] * 16 + [lambda _: shell.members.discard(1), shell.until_due, shell.until_due]
    shell.run()
    assert len(shell.of("describe_silence")) == 1
    assert len(shell.of("set_rendezvous")) >= 2
    assert shell.of("mark_left") == [ask("mark_left", 1, silent=True)]
    assert shell.of("delete_if_over") == [ask("delete_if_over")]
    assert not shell.watch.unresponsive


def test_who_is_lost_itself_reports_no_sibling():
    """Its siblings may have completed the call, and deleted their leases."""
    shell = Shell(answers={"read_decision": SimpleNamespace(lost=(0,))})
    shell.sleeps = [shell.until_due] * 16
    shell.run()
    assert shell.of("read_decision")
    assert not shell.of("set_rendezvous")


def test_a_sibling_that_has_left_is_not_silent_and_one_that_cannot_be_released_is_left():
    shell = Shell(answers={"has_left": True})
    shell.sleeps = [shell.until_due] * 16
    assert not shell.run().of("describe_silence")
    shell = Shell(answers={"read_decision": None}, fails=("mark_left",))
    shell.sleeps = [shell.until_due] * 16 + [lambda _: (shell.members.discard(1), shell.leave())[1]]
    shell.run()
    assert shell.watch.unresponsive


def test_a_pause_of_the_process_is_reported_and_charged_to_nobody():
    shell = Shell()
    shell.alive_at = shell.now
    shell.sleeps = [shell.later(50.0)]
    shell.run()
    assert list(map(round, shell.first_argument("report_pause"))) == [50]


@pytest.mark.parametrize(
    ("stage", "answers"),
    [(Stage.RUNNING, {"has_event": True}), (Stage.ARRIVED, {"has_decision": True})],
    ids=["event", "decision"],
)
def test_a_rank_that_does_not_hear_of_the_end_of_its_round_is_made_to_listen_anew_and_then_ended(stage, answers):
    shell = Shell(answers=answers)
    shell.watch.detectors.unheard = UnheardRoundPolicy(every=HARD / 4, renews_after=HARD / 8, ends_after=HARD / 2)
    shell.page.stage = stage
    begun = shell.now
    shell.sleeps = [shell.until_due] * 200
    shell.run()
    (renewed,), (ended,) = shell.first_argument("renew_connections"), shell.first_argument("terminate")
    assert "of iteration 0 has not reached the rank" in renewed
    assert "has not reached the rank for 15 s" in ended
    assert len(shell.of("kill")) >= 1
    assert shell.watch.judging.ended_for == ended
    assert shell.now > begun + HARD * 3 / 4


def test_a_rank_whose_round_goes_on_is_left_alone():
    shell = Shell()
    shell.watch.detectors.unheard = UnheardRoundPolicy(every=HARD / 4, renews_after=HARD / 8, ends_after=HARD / 2)
    shell.sleeps = [shell.until_due] * 200
    shell.run()
    assert len(shell.of("has_event")) >= 4
    assert not [*shell.of("renew_connections"), *shell.of("terminate")]
