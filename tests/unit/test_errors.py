"""The error tree: what is what, what it carries, and that it says what to do next."""

import pickle

import pytest
from nvrx_launcher.launch import JobFailedError

from nvrx_core import errors
from nvrx_core.inprocess import exception
from nvrx_core.process.helper_thread import HelperThreadError
from nvrx_core.store.etcd_client import EtcdError, EtcdRefused

TREE = {
    errors.RestartError: Exception,
    errors.HealthCheckError: errors.RestartError,
    errors.InternalError: errors.RestartError,
    errors.TimeoutError: errors.RestartError,
    errors.BarrierError: errors.RestartError,
    errors.BarrierTimeout: errors.BarrierError,
    errors.BarrierOverflow: errors.BarrierError,
    errors.RankAssignmentError: errors.RestartError,
    errors.RankDiscarded: errors.RestartError,
    errors.FaultCounterExceeded: errors.RestartError,
    errors.StoreLost: SystemExit,
    errors.RestartAbort: BaseException,
    errors.PeerExited: (errors.RestartAbort, SystemExit),
    errors.UsageError: errors.RestartAbort,
    errors.ParameterError: ValueError,
    errors.ParameterTypeError: TypeError,
}

CARRIED = [
    errors.RestartAbort("too few ranks", culprit=3),
    errors.PeerExited("too few ranks", exit_code=3, culprit=1),
    errors.UsageError("commit(5) after step 5", culprit=1),
    errors.StoreLost("10.0.0.1", 29501),
    errors.HealthCheckError("the GPU hangs", initial_rank=2),
    errors.TimeoutError("sync hangs", what="sync", seconds=3.0),
    errors.BarrierTimeout("late", barrier="iteration", arrived=2, expected=4, missing=[1, 3], seconds=9.0),
    errors.BarrierOverflow("too many", barrier="initial", arrived=5, expected=4),
    errors.RankAssignmentError("broken", rank=1, world_size=4),
    errors.RankDiscarded("gone", rank=1, terminated=[1, 2]),
    errors.FaultCounterExceeded("often", faults=4, limit=3),
    errors.InternalError("broken", advice="try that"),
    errors.ParameterError("soft_timeout", 9, "less than hard_timeout"),
    errors.ParameterTypeError("abort", 9, "Abort"),
    errors.ConfigurationError("environment", "NVRX_EVENTS_DIR", "it is a file", "name a folder"),
    JobFailedError(93, "n0: rank 1 has failed"),
    EtcdError("etcdserver: permission denied", 7),
    EtcdRefused("etcdserver: permission denied", 7),
]


@pytest.mark.parametrize(("error", "base"), TREE.items())
def test_the_tree(error, base):
    assert all(issubclass(error, each) for each in (base if isinstance(base, tuple) else (base,)))


def test_restart_abort_passes_by_handlers_of_exception():
    assert not issubclass(errors.RestartAbort, Exception)


@pytest.mark.parametrize("error", CARRIED, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_fields(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert vars(error)


def test_the_error_of_a_thread_survives_pickling_though_its_cause_does_not():
    error = HelperThreadError("nvrx-lease", RuntimeError(lambda: "no pickle"))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (HelperThreadError, str(error))


def test_the_exit_of_a_peer_ends_the_process_with_its_code():
    error = errors.PeerExited("too few ranks", exit_code=3)
    assert error.code == pickle.loads(pickle.dumps(error)).code == 3


@pytest.mark.parametrize("error", CARRIED[:10], ids=lambda error: type(error).__name__)
def test_an_error_says_what_to_do_next(error):
    assert str(error) == f"{error.args[0]}. Next: {error.advice}"
    assert len(error.advice) > 20


def test_advice_can_be_given_and_left_out():
    assert str(errors.InternalError("broken", advice="try that")) == "broken. Next: try that"
    assert str(errors.InternalError("broken", advice="")) == "broken"
    assert str(errors.RestartError("plain")) == "plain"
    assert str(errors.RestartAbort()) == errors.RestartAbort.advice


def test_a_lost_store_ends_the_process_with_code_75_and_names_its_place():
    error = errors.StoreLost("10.0.0.1", 29501)
    assert error.code == 75
    assert "10.0.0.1:29501" in str(error)
    assert "\n" not in str(error)


def test_a_broken_rule_names_parameter_value_and_rule():
    errors.require(True, "soft_timeout", 9, "less than hard_timeout")
    with pytest.raises(ValueError, match=r"^soft_timeout=9: must be less than hard_timeout$"):
        errors.require(False, "soft_timeout", 9, "less than hard_timeout")


def test_a_wrong_type_names_parameter_value_and_type():
    errors.require_type("iteration", 9, int)
    with pytest.raises(TypeError, match=r"^iteration='9': must be of type int, not str; write iteration=9$"):
        errors.require_type("iteration", "9", int)


def test_the_error_for_a_tuple_mentions_the_comma():
    with pytest.raises(TypeError, match=r"not tuple; a trailing comma makes a tuple: remove the comma"):
        errors.require_type("iteration", (9,), int)


def test_the_users_names_are_the_same_classes():
    assert all(getattr(exception, name) is getattr(errors, name) for name in exception.__all__)
