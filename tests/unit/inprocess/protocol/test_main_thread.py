"""The flow of a main thread, where no search comes: what a decision without a cause is counted as."""

from dataclasses import replace

from nvrx_core.errors import JobMismatch
from nvrx_core.fault.record import JOB_MISMATCH, FaultRecord
from nvrx_core.inprocess.protocol.decision import Decision
from nvrx_core.inprocess.protocol.main_thread import CallRules, MainThread, _contradicts
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.round import RoundTimeouts
from nvrx_core.inprocess.protocol.view import Rounds
from nvrx_core.rank_assignment.base import State


def test_a_round_whose_cause_nobody_can_read_does_not_count_as_a_failure():
    rounds = Rounds(0, frozenset({0}), RoundTimeouts(60.0, 60.0))
    flow = MainThread(rounds, State(0, 1), CallRules(leader=lambda *_: 0, no_progress_limit=1), lambda: 0.0)
    decision = Decision(iteration=0, lost=(), terminated=(), cause=None, culprits=(), step=-1)
    assert not flow._is_out_of_retries(decision, IterationResult(Outcome.INTERRUPTED))


def test_a_contradiction_ends_the_job_and_nothing_else_does():
    fault = FaultRecord(initial_rank=1, rank=1, interruption="BASE_EXCEPTION", message="both", error_type=JOB_MISMATCH)
    decision = Decision(iteration=0, lost=(), terminated=(), cause=fault, culprits=(1,), step=-1)
    ended = IterationResult(Outcome.INTERRUPTED)
    assert _contradicts(decision, ended)
    assert isinstance(ended.error, JobMismatch)
    for cause in (None, replace(fault, error_type="ValueError")):
        assert not _contradicts(replace(decision, cause=cause), IterationResult(Outcome.INTERRUPTED))
