"""The documented parameters of the names of `nvidia_resiliency_ext`: their order, and their defaults."""

import functools
import importlib
import inspect
from datetime import timedelta

import nvrx_compat
import pytest

pytestmark = pytest.mark.usefixtures("active")
SIGNATURES = """
inprocess.Compose                                        *instances
inprocess.State                                          rank world_size active_rank=None active_world_size=None
inprocess.CallWrapper.ping
inprocess.CallWrapper.atomic
inprocess.abort.AbortTorchDistributed                    torch_fr_trace_path=None
inprocess.abort.AbortTransformerEngine
inprocess.finalize.ThreadedFinalize                      timeout fn args=() kwargs=None
inprocess.health_check.CudaHealthCheck                   timeout=30s
inprocess.health_check.FaultCounter                      max_rank_faults=None
inprocess.health_check.ChainedGPUHealthCheck             device_index=None
inprocess.health_check.ChainedNVLHealthCheck             device_index=None
inprocess.health_check.ChainedNicHealthCheck             device_index=None
inprocess.initialize.RetryController                     max_iterations=None min_world_size=1 min_active_world_size=1
inprocess.nested_restarter.NestedRestarterHandlingCompleted special_rank=0
inprocess.nested_restarter.NestedRestarterHandlingStarting  special_rank=0
inprocess.nested_restarter.NestedRestarterFinalized      special_rank=0
inprocess.nested_restarter.NestedRestarterAborted        special_rank=0
inprocess.nested_restarter.NestedRestarterCallback       restarter_state restarter_stage=None
inprocess.rank_assignment.ActivateAllRanks
inprocess.rank_assignment.ActiveWorldSizeDivisibleBy     divisor=1
inprocess.rank_assignment.FillGaps
inprocess.rank_assignment.FilterCountGroupedByKey        key_or_fn condition timeout=60s
inprocess.rank_assignment.FilterGroupedByKey             key_or_fn condition timeout=60s
inprocess.rank_assignment.Layer                          min_ranks=1 max_ranks=None key_or_fn='' flag=None
inprocess.rank_assignment.MaxActiveWorldSize             max_active_world_size=None
inprocess.rank_assignment.RankAssignmentCtx              state store terminated_ranks
inprocess.rank_assignment.ShiftRanks
inprocess.rank_assignment.Tree                           layers world_size_filter=None
fault_tolerance.RankMonitorClient.init_workload_monitoring          num_warmup_iters=None
fault_tolerance.RankMonitorClient.send_heartbeat
fault_tolerance.RankMonitorClient.start_section                     section
fault_tolerance.RankMonitorClient.end_section                       section
fault_tolerance.RankMonitorClient.end_all_sections
fault_tolerance.RankMonitorClient.shutdown_workload_monitoring
fault_tolerance.RankMonitorClient.calculate_and_set_hb_timeouts     skip_if_not_ready=False
fault_tolerance.RankMonitorClient.calculate_and_set_section_timeouts selected_sections=None calc_out_of_section=True skip_if_not_ready=False
fault_tolerance.RankMonitorClient.send_workload_control_request     request
fault_tolerance.WorkloadControlRequest                   action description
fault_tolerance.data.RankInfo                            global_rank local_rank host pid
shared_utils.inject_fault.clear_workload_exception
shared_utils.inject_fault.dispatch_fault_injection       fault delay callback=None
shared_utils.inject_fault.maybe_raise_workload_exception
"""  # noqa: E501
ROWS = [(name, parameters) for name, *parameters in map(str.split, SIGNATURES.strip().splitlines())]
WRAPPER = {
    "store_kwargs": None, "initialize": None, "finalize": None, "health_check": None, "completion": None,
    "terminate": None, "monitor_thread_interval": 1, "monitor_process_interval": 1, "heartbeat_interval": 1,
    "progress_watchdog_interval": 1, "soft_timeout": 60, "hard_timeout": 90, "heartbeat_timeout": 30,
    "barrier_timeout": 120, "completion_timeout": 120, "termination_grace_time": 5, "monitor_process_logfile": None,
    "monitor_process_pidfile": None, "enabled": True,
}  # fmt: skip
"""Defaults of the parameters of `Wrapper`, in seconds; that of `last_call_wait` differs, on purpose."""


@pytest.fixture
def active(no_package):
    assert nvrx_compat.activate()


@pytest.mark.parametrize(("name", "documented"), ROWS, ids=lambda part: part if isinstance(part, str) else "")
def test_documented_parameters_are_there_in_their_order_with_their_defaults(name, documented):
    found = [shown(each) for each in inspect.signature(the(name)).parameters.values() if each.name != "self"]
    assert [each.partition("=")[0] for each in found[: len(documented)]] == [
        each.partition("=")[0] for each in documented
    ]
    wanted = {each for each in documented if "=" in each}
    assert wanted <= set(found)
    assert all("=" in each for each in found[len(documented) :]), "a further parameter needs a default"


def the(name):
    module, _, member = name.rpartition(".")
    try:
        return getattr(importlib.import_module(f"nvidia_resiliency_ext.{module}"), member)
    except ModuleNotFoundError:
        package, *path = name.split(".")
        return functools.reduce(getattr, path, importlib.import_module(f"nvidia_resiliency_ext.{package}"))


def shown(parameter):
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    if parameter.default is parameter.empty:
        return f"{star}{parameter.name}"
    seconds = f"{parameter.default.total_seconds():g}s" if isinstance(parameter.default, timedelta) else None
    return f"{parameter.name}={seconds or repr(parameter.default)}"


def test_the_wrapper_has_its_documented_parameters_and_defaults():
    found = inspect.signature(the("inprocess.Wrapper")).parameters
    seconds = {name: each.default for name, each in found.items()}
    as_seconds = {k: v.total_seconds() if isinstance(v, timedelta) else v for k, v in seconds.items()}
    assert {name: as_seconds[name] for name in WRAPPER} == WRAPPER
    assert all(each.kind is each.KEYWORD_ONLY for each in found.values())
    assert {"store_factory", "abort", "rank_assignment", "last_call_wait"} <= set(found)
