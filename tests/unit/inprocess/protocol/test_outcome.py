"""How an iteration ended, told from what its function raised."""

import pytest

from nvrx_core.errors import PeerExited, RestartAbort, StoreLost
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.outcome import (
    LoopShouldEnd,
    Outcome,
    RankShouldRestart,
    given_up,
    outcome_of,
    pending_exit,
)


class TorchError(BaseException):
    pass


TorchError.__module__ = "torch.distributed.checkpoint.api"


class OwnError(BaseException):
    pass


def because_of(error, cause):
    error.__context__ = cause
    return error


def ended(error, *, requested=False, landed=False):
    return outcome_of(error, requested=requested, landed=landed)


OURS = (
    RankShouldRestart("round"),
    LoopShouldEnd("round"),
    BaseExceptionGroup("tasks", [ValueError(), BaseExceptionGroup("", [RankShouldRestart()])]),
    BaseExceptionGroup("tasks", [LoopShouldEnd()]),
    because_of(RuntimeError("could not save"), RankShouldRestart()),
    because_of(TorchError(), RankShouldRestart()),
    because_of(SystemExit(3), RankShouldRestart()),
    because_of(SystemExit(0), LoopShouldEnd()),
    because_of(SystemExit(3), StoreLost("host", 1)),
    BaseExceptionGroup("tasks", [StoreLost("host", 1)]),
)


@pytest.mark.parametrize("error", OURS, ids=repr)
def test_an_interruption_is_one_in_whatever_shape_it_comes(error):
    assert ended(error, requested=True, landed=True) is Outcome.INTERRUPTED


@pytest.mark.parametrize("error", OURS, ids=repr)
def test_one_that_nobody_asked_for_is_a_failure(error):
    assert ended(error) is Outcome.FAILED


@pytest.mark.parametrize("landed", [True, False])
def test_what_fails_once_it_has_landed_fails_because_of_it(landed):
    assert ended(ValueError(), landed=landed) is (Outcome.INTERRUPTED if landed else Outcome.FAILED)
    assert ended(OwnError(), requested=landed, landed=landed) is (Outcome.INTERRUPTED if landed else Outcome.LEFT)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        TorchError(),
        because_of(OwnError(), ValueError()),
        BaseExceptionGroup("", [OwnError(), ValueError()]),
    ],
    ids=repr,
)
def test_what_has_failed_is_no_wish_to_leave(error):
    assert ended(error) is Outcome.FAILED


@pytest.mark.parametrize("requested", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        RestartAbort("enough"),
        because_of(SystemExit(3), ValueError()),
        because_of(KeyboardInterrupt(), RankShouldRestart()),
        because_of(RestartAbort("enough"), RankShouldRestart()),
        BaseExceptionGroup("", [SystemExit(3), ValueError()]),
        BaseExceptionGroup("", [RankShouldRestart(), KeyboardInterrupt()]),
    ],
    ids=repr,
)
def test_a_wish_to_leave_keeps_its_meaning(error, requested):
    assert ended(error, requested=requested, landed=requested) is Outcome.LEFT


@pytest.mark.parametrize("code", [0, None])
def test_an_exit_with_0_is_a_completion(code):
    assert ended(SystemExit(code), requested=True) is Outcome.EXITED


class Ambiguous:
    """Compares as a tensor of several elements does."""

    def __eq__(self, other):
        raise RuntimeError("the truth of several values is ambiguous")

    __hash__ = None


@pytest.mark.parametrize("code", [1, "done", 0.0, Ambiguous()], ids=["1", "done", "0.0", "ambiguous"])
def test_an_exit_that_python_does_not_call_a_success_is_a_wish_to_leave(code):
    assert ended(SystemExit(code)) is Outcome.LEFT


@pytest.mark.parametrize(("innermost", "outcome"), [(ValueError(), Outcome.FAILED), (SystemExit(3), Outcome.LEFT)])
def test_groups_may_be_nested_deeper_than_calls(innermost, outcome):
    error = innermost
    for _ in range(3_000):
        error = BaseExceptionGroup("tasks", [error])
    assert ended(error) is outcome


def test_an_exception_may_have_no_module():
    assert ended(type("Nameless", (BaseException,), {"__module__": None})()) is Outcome.LEFT


@pytest.mark.parametrize("wish", [SystemExit(143), SystemExit(0), KeyboardInterrupt(), RestartAbort()], ids=repr)
def test_a_wish_to_leave_is_found_under_the_interruptions_that_overtook_it(wish):
    once = because_of(RankShouldRestart(), wish)
    assert pending_exit(once, None) is wish
    assert pending_exit(because_of(LoopShouldEnd(), once), ValueError()) is wish
    assert pending_exit(because_of(StoreLost("host", 1), wish), None) is wish


@pytest.mark.parametrize(
    "error",
    [
        RankShouldRestart(),
        because_of(RankShouldRestart(), ValueError()),
        because_of(RankShouldRestart(), because_of(ValueError(), SystemExit(3))),
        because_of(RankShouldRestart(), because_of(SystemExit(3), RankShouldRestart())),
        because_of(ValueError(), SystemExit(3)),
        SystemExit(3),
    ],
    ids=repr,
)
def test_what_was_not_on_its_way_out_was_not_overtaken(error):
    assert pending_exit(error, None) is None


def test_what_the_caller_of_the_function_handles_was_not_overtaken():
    outside = RestartAbort()
    assert pending_exit(because_of(RankShouldRestart(), outside), outside) is None


def test_an_exit_in_a_call_made_because_the_store_is_lost_is_a_wish_to_leave():
    outside = StoreLost("host", 1)
    error = because_of(SystemExit(3), outside)
    assert outcome_of(error, requested=False, landed=False, outside=outside) is Outcome.LEFT
    assert pending_exit(because_of(RankShouldRestart(), error), outside) is error
    assert pending_exit(because_of(RankShouldRestart(), outside), outside) is None


def test_what_the_caller_of_the_function_handles_is_no_failure_of_the_function():
    outside = ValueError()
    error = because_of(OwnError(), outside)
    assert outcome_of(error, requested=False, landed=False, outside=outside) is Outcome.LEFT
    assert outcome_of(because_of(error, KeyError()), requested=False, landed=False, outside=outside) is Outcome.FAILED


@pytest.mark.parametrize(("code", "outcome"), [(143, Outcome.LEFT), (0, Outcome.EXITED)])
def test_an_exit_by_a_signal_is_meant_whatever_it_interrupts(code, outcome):
    error = because_of(SystemExit(code), RankShouldRestart())
    assert outcome_of(error, requested=True, landed=True, by_signal=True) is outcome


EXIT = FaultRecord(initial_rank=2, rank=1, interruption="BASE_EXCEPTION", message="SystemExit: 3", exit_code=3)


class TooFew(RestartAbort):
    """An exception of the user's."""


def test_who_gives_up_because_a_rank_has_exited_ends_with_its_code():
    error = RestartAbort("too few ranks")
    ended = given_up(error, EXIT)
    assert isinstance(ended, PeerExited)
    assert (ended.code, ended.culprit, ended.__cause__) == (3, 2, error)
    assert str(ended).startswith("too few ranks; initial rank 2 has exited with code 3: SystemExit: 3. Next: find out")
    assert str(given_up(RestartAbort("too few ranks", advice="wait"), EXIT)).endswith("Next: wait")


@pytest.mark.parametrize(
    ("error", "exited"),
    [(RestartAbort("often"), None), (TooFew(), EXIT), (PeerExited("over", exit_code=4), EXIT)],
    ids=["nobody has exited", "a subclass", "another exit"],
)
def test_who_gives_up_otherwise_ends_by_the_exception_itself(error, exited):
    assert given_up(error, exited) is error
