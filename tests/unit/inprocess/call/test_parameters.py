"""The value rules of the wrapper's parameters: each names the parameter, the value and the rule."""

import dataclasses
import re
import signal
from datetime import timedelta

import pytest
import torch.distributed as dist

from nvrx_core.errors import ParameterError, ParameterTypeError
from nvrx_core.inprocess.abort import AbortTorchDistributed
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.rank_assignment import ActivateAllRanks, MaxActiveWorldSize, ShiftRanks
from nvrx_core.inprocess.wrap import Wrapper
from nvrx_core.settings.parameter import declarations

TIMES = [field.name for field in dataclasses.fields(Parameters) if field.type == "timedelta"]
MAY_BE_ZERO = {"last_call_wait", "termination_grace_time"}
HOUR = timedelta(hours=1)


def parameters(**changed):
    """The wrapper's defaults, some changed."""
    return Parameters(**changed)


def refused(error, told, **changed):
    with pytest.raises(error, match=told) as found:
        parameters(**changed)
    return found.value


def test_the_defaults_keep_the_rules():
    assert parameters().soft_timeout < parameters().hard_timeout


def test_every_field_is_declared():
    assert {field.name for field in dataclasses.fields(Wrapper)} == declarations(Wrapper).keys()
    assert all(declared.help.endswith(".") for _, declared in declarations(Wrapper).values())


@pytest.mark.parametrize("name", TIMES)
def test_a_time_is_a_timedelta(name):
    error = refused(ParameterTypeError, f"{name}=3", **{name: 3})
    assert isinstance(error, TypeError)


@pytest.mark.parametrize("name", TIMES)
def test_a_time_is_not_negative(name):
    rule = "not negative" if name in MAY_BE_ZERO else "positive"
    error = refused(ParameterError, rf"{name}=.*: must be {rule}", **{name: timedelta(seconds=-1)})
    assert (error.parameter, error.rule) == (name, rule)


@pytest.mark.parametrize("name", TIMES)
def test_only_some_times_may_be_zero(name):
    if name in MAY_BE_ZERO:
        assert getattr(parameters(**{name: timedelta(0)}), name) == timedelta(0)
    else:
        refused(ParameterError, f"{name}=", **{name: timedelta(0)})


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        ("soft_timeout", "hard_timeout"),
        ("hard_timeout", "barrier_timeout"),
        ("monitor_process_interval", "soft_timeout"),
        ("heartbeat_timeout", "barrier_timeout"),
        ("heartbeat_interval", "heartbeat_timeout"),
        ("monitor_thread_interval", "soft_timeout"),
        ("progress_watchdog_interval", "soft_timeout"),
    ],
)
def test_times_are_in_order(shorter, longer):
    value = getattr(parameters(), longer)
    long = {"heartbeat_timeout": value * 2} if shorter == "monitor_process_interval" else {}
    refused(ParameterError, rf"{shorter}=.*: must be shorter than {longer}=", **{**long, shorter: value})


@pytest.mark.parametrize("name", ["monitor_process_interval", "monitor_process_logfile", "monitor_process_pidfile"])
def test_paths_are_absolute_and_long_intervals_are_refused(name):
    value = HOUR if name == "monitor_process_interval" else "relative.log"
    refused(ParameterError, f"{name}=", **{name: value})


def test_a_path_may_name_the_rank():
    assert parameters(monitor_process_logfile="/tmp/{rank}.log").monitor_process_logfile == "/tmp/{rank}.log"


@pytest.mark.parametrize(
    "name", ["initialize", "abort", "finalize", "health_check", "completion", "terminate", "rank_filter"]
)
def test_a_plug_in_is_of_its_kind_or_none(name):
    assert getattr(parameters(**{name: None}), name) is None
    refused(ParameterTypeError, f"{name}=", **{name: print})


@pytest.mark.parametrize("factory", [object, "TCPStore", lambda: None])
def test_a_store_is_made_by_a_class_of_ours(factory):
    refused(ParameterTypeError, "store_factory=.*StoreMixin", store_factory=factory)


class OwnStore(dist.HashStore):
    pass


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"soft_timeout": 30},
            "soft_timeout=30: must be .*; write soft_timeout=timedelta(seconds=30)",
        ),
        ({"abort": AbortTorchDistributed}, "abort=<class.*; write abort=AbortTorchDistributed()"),
        ({"no_progress_limit": "3"}, "no_progress_limit='3': must be of type int, not str; write no_progress_limit=3"),
        ({"store_factory": dist.TCPStore}, "store_factory=.*; write store_factory=nvrx_core.inprocess.store.TCPStore"),
        (
            {"store_factory": lambda: None},
            "store_factory=<function.*; write store_factory=nvrx_core.inprocess.store.TCPStore, store_kwargs={...}",
        ),
        (
            {"store_factory": OwnStore},
            "store_factory=<class.*; write class OwnStore(nvrx_core.inprocess.store.StoreMixin, HashStore)",
        ),
    ],
)
def test_an_error_says_what_to_write_instead(given, told):
    with pytest.raises(TypeError) as found:
        parameters(**given)
    assert re.fullmatch(re.sub(r"([()])", r"\\\1", told), str(found.value))


def test_a_short_soft_timeout_is_no_fault_of_an_interval():
    assert parameters(soft_timeout=timedelta(seconds=0.5)).timeouts.watchdog_interval == 0.025


def test_a_lease_is_renewed_often_enough_to_tell_who_holds_the_others_up():
    rare = timedelta(seconds=30)
    assert parameters(heartbeat_interval=rare, heartbeat_timeout=2 * rare).timeouts.lease_interval == 15
    assert parameters(soft_timeout=timedelta(seconds=2)).timeouts.lease_interval == 0.5
    assert parameters().timeouts.lease_interval == 1


def test_a_stray_comma_is_named():
    refused(TypeError, "comma", rank_assignment=(ShiftRanks(),))


def test_a_move_runs_before_a_filter():
    refused(
        ParameterError,
        "ShiftRanks runs before MaxActiveWorldSize",
        rank_assignment=Compose(ShiftRanks(), MaxActiveWorldSize(2)),
    )
    assert parameters(rank_assignment=Compose(ActivateAllRanks(), ShiftRanks()))


@pytest.mark.parametrize("signum", [0, 999, signal.SIGKILL, signal.SIGTERM, signal.SIGCHLD])
def test_a_signal_is_one_that_may_be_used(signum):
    refused(ParameterError, "interrupt_signal=", interrupt_signal=signum)


def test_other_values():
    refused(ParameterError, "thread_exceptions='raise': must be 'log' or 'fault'", thread_exceptions="raise")
    refused(ParameterError, "no_progress_limit=0", no_progress_limit=0)
    assert parameters(no_progress_limit=1, thread_exceptions="fault").no_progress_limit == 1


def test_a_decorator_without_parentheses_is_refused():
    with pytest.raises(TypeError, match=r"write @Wrapper\(\) above it"):
        Wrapper(print)
