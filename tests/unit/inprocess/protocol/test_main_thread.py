"""The flow of a main thread, where no search comes: a decision without a cause, and a failure that nobody hears of."""

from dataclasses import replace

import pytest

from nvrx_core.errors import JobMismatch, StoreLost, UsageError
from nvrx_core.fault.exceptions import text_of, type_name
from nvrx_core.fault.record import JOB_MISMATCH, FaultRecord
from nvrx_core.inprocess.protocol.decision import RoundDecision
from nvrx_core.inprocess.protocol.flows import FlowRules, MainThread
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.ports import CallPorts, StoreFailure
from nvrx_core.inprocess.protocol.round import Rounds, RoundTimeouts
from nvrx_core.rank_assignment.base import AssignmentState
from tests.harness.asked import Asking, ask, drive

PORTS = CallPorts(*(Asking(),) * 7)


def limited_flow():
    """A flow that gives up after the first restart."""
    rounds = Rounds(0, frozenset({0}), RoundTimeouts(60.0, 60.0))
    rules = FlowRules(no_progress_limit=1)
    return MainThread(rounds, AssignmentState(0, 1), rules, ports=PORTS, now=lambda: 0.0)


def test_a_round_whose_cause_nobody_can_read_does_not_count_as_a_failure():
    flow = limited_flow()
    decision = RoundDecision(iteration=0, lost=(), terminated=(), cause=None, culprits=(), step=-1)
    assert flow._ends_by(decision) is None


def test_the_culprit_gives_up_with_its_own_error_though_that_is_falsy():
    class Falsy(Exception):
        def __bool__(self):
            return False

    flow = limited_flow()
    flow.failure = Falsy("injected")
    fault = FaultRecord(initial_rank=0, rank=0, interruption="EXCEPTION", message="injected", error_type="Falsy")
    decision = RoundDecision(iteration=0, lost=(), terminated=(), cause=fault, culprits=(0,), step=-1)
    assert flow._ends_by(decision) is flow.failure


def test_a_contradiction_ends_the_job_and_nothing_else_does():
    fault = FaultRecord(initial_rank=1, rank=1, interruption="BASE_EXCEPTION", message="both", error_type=JOB_MISMATCH)
    decision = RoundDecision(iteration=0, lost=(), terminated=(), cause=fault, culprits=(1,), step=-1)
    assert isinstance(limited_flow()._ends_by(decision), JobMismatch), "it is no failure to be counted"
    unlimited = MainThread(None, AssignmentState(0, 1), FlowRules(), ports=PORTS, now=lambda: 0.0)
    for cause in (None, replace(fault, error_type="ValueError")):
        assert unlimited._ends_by(replace(decision, cause=cause)) is None


def test_a_wrong_call_ends_the_job_on_the_ranks_that_have_not_made_it():
    made = UsageError("commit(5) after step 5")
    fault = FaultRecord(
        initial_rank=1, rank=1, interruption="BASE_EXCEPTION", message=text_of(made), error_type=type_name(UsageError)
    )
    decision = RoundDecision(iteration=0, lost=(1,), terminated=(1,), cause=fault, culprits=(1,), step=5)
    error = limited_flow()._ends_by(decision)
    assert isinstance(error, UsageError)
    assert (str(error), error.culprit) == (str(made), 1)


def test_a_rank_that_gets_no_place_reports_its_own_time_and_not_its_functions():
    flow, error = MainThread(None, AssignmentState(0, 1), FlowRules(), ports=PORTS, now=lambda: 7.0), ValueError("no")
    decision = RoundDecision(iteration=0, lost=(), terminated=(), cause=None, culprits=(), step=-1)
    ended = drive(flow._prepare(decision), lambda asked: error if asked.name == "assign" else None)
    assert ended == IterationResult(Outcome.LEFT, error=error, occurred=7.0, behind_step=False)


def without_store(ended, loss, *, announced=None):
    """Lose the store after an iteration that has ended in this way; return the result, and what was asked for."""
    flow = MainThread(None, None, FlowRules(), ports=PORTS, now=None)
    flow.ended, flow.failure, done = ended, announced, []

    def answer(asked):
        done.append(asked)
        return StoreLost("host", 1) if asked.name == "lose_store" else None

    try:
        return drive(flow._without_store(loss), answer), done
    except StoreLost as lost:
        return lost, done


@pytest.mark.parametrize("how", [Outcome.LEFT, Outcome.EXITED])
def test_a_rank_that_has_left_by_itself_ends_in_that_way_without_the_store(how):
    ended = IterationResult(how, error=SystemExit(3))
    result, (lost,) = without_store(ended, StoreFailure("gone"))
    assert (result, lost) == (ended, ask("lose_store", "gone"))
    assert without_store(ended, StoreLost("host", 1)) == (ended, [])


def test_a_failure_that_the_others_cannot_be_told_is_logged_once():
    failed, lost = IterationResult(Outcome.FAILED, error=ValueError("injected")), StoreLost("host", 1)
    report, clear = ask("report_failure", None), ask("release_iteration", failed, keep_trace=True)
    assert without_store(failed, lost) == (lost, [clear, report])
    assert without_store(failed, lost, announced=failed.error) == (lost, [report])
    assert without_store(None, lost) == (lost, [report])
