"""The lines for a restarter around this one."""

import logging

import pytest

from nvrx_core.inprocess import nested_restarter
from nvrx_core.inprocess.abort import Abort
from nvrx_core.inprocess.completion import Completion
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.initialize import Initialize, RetryController
from nvrx_core.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterCallback,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingStarting,
    NestedRestarterLogger,
)
from nvrx_core.inprocess.terminate import Terminate
from nvrx_core.rank_assignment.base import AssignmentState

LOGGER = nested_restarter.LOGGER
NAME = "[NestedRestarter] name=[InProcess]"


def state(initial_rank=0, **fields):
    return AssignmentState(**{"rank": 3, "world_size": 4, "initial_rank": initial_rank, **fields}).freeze()


@pytest.fixture(autouse=True)
def fresh_logger(monkeypatch):
    """A logger that nobody has used yet."""
    monkeypatch.setattr(nested_restarter, "LOGGER", f"{LOGGER}.test")
    logger = logging.getLogger(nested_restarter.LOGGER)
    yield logger
    logger.handlers.clear()
    logger.propagate = True


@pytest.mark.parametrize(
    ("kind", "base", "line"),
    [
        (NestedRestarterHandlingCompleted, Initialize, f"{NAME} state=initialize"),
        (NestedRestarterHandlingStarting, Abort, f"{NAME} state=handling stage=starting"),
        (NestedRestarterFinalized, Completion, f"{NAME} state=finalized"),
        (NestedRestarterAborted, Terminate, f"{NAME} state=aborted"),
    ],
)
def test_each_callback_is_a_plug_in_and_says_its_line_on_stdout(kind, base, line, capsys):
    before = state()
    assert isinstance(kind(), base)
    assert isinstance(kind(), NestedRestarterCallback)
    assert kind()(before) is before
    assert capsys.readouterr() == (f"{line}\n", "")


def test_from_its_second_call_on_initialize_says_that_a_restart_is_handled(capsys):
    callback = NestedRestarterHandlingCompleted()
    for iteration in range(3):
        callback(state(iteration=iteration))
    handled = f"{NAME} state=handling stage=completed"
    assert capsys.readouterr().out.splitlines() == [f"{NAME} state=initialize", handled, handled]


@pytest.mark.parametrize("kind", [NestedRestarterHandlingCompleted, NestedRestarterFinalized])
def test_only_the_special_rank_logs(kind, capsys):
    kind()(state(initial_rank=1))
    kind(special_rank=1)(state())
    assert capsys.readouterr().out == ""
    kind(special_rank=1)(state(initial_rank=1))
    assert capsys.readouterr().out.count("\n") == 1


def test_any_state_can_be_said_to_any_logger(caplog, capsys):
    caplog.set_level(logging.INFO)
    NestedRestarterCallback("handling", "processing", logging.getLogger("mine"), special_rank=2)(state(2))
    assert caplog.record_tuples == [("mine", logging.INFO, f"{NAME} state=handling stage=processing")]
    assert capsys.readouterr().out == ""


def test_a_logger_with_handlers_is_left_as_it_is(fresh_logger, capsys):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    fresh_logger.addHandler(handler)
    fresh_logger.setLevel(logging.INFO)
    NestedRestarterFinalized()(state())
    assert [record.getMessage() for record in records] == [f"{NAME} state=finalized"]
    assert capsys.readouterr().out == ""


def test_the_logger_has_its_documented_name():
    assert LOGGER == "InprocessRestarter.Restarter"


def test_listed_first_it_speaks_when_the_rest_of_initialize_is_done(capsys):
    composed = Compose(NestedRestarterHandlingCompleted(), RetryController(max_iterations=1))
    assert isinstance(composed, Initialize)
    composed(state())
    with pytest.raises(BaseException, match="max_iterations"):
        composed(state(iteration=1))
    assert capsys.readouterr().out.splitlines() == [f"{NAME} state=initialize"]


def test_the_logger_can_be_given_another_handler(fresh_logger, caplog):
    logger = NestedRestarterLogger()
    assert logger.restarter_logger is fresh_logger
    logger.restarter_logger.addHandler(caplog.handler)
    NestedRestarterCallback("handling", "starting", logger=logger)(state())
    assert caplog.messages == [f"{NAME} state=handling stage=starting"]
