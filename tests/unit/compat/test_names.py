"""Every documented name is importable from `nvidia_resiliency_ext`, and is nvrx's object."""

import functools
import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import nvrx_compat
import nvrx_lightning
import pytest
from packaging.version import Version

import nvrx_core

pytestmark = pytest.mark.usefixtures("active")
NAMES = """
inprocess                  Wrapper                          nvrx_core.inprocess.wrap
inprocess                  CallWrapper                      nvrx_core.inprocess.wrap
inprocess                  Compose                          nvrx_core.inprocess.compose
inprocess                  FrozenState                      nvrx_core.inprocess.state
inprocess                  Mode                             nvrx_core.inprocess.state
inprocess                  State                            nvrx_core.inprocess.state
inprocess.abort            Abort                            nvrx_core.inprocess.abort
inprocess.abort            AbortTorchDistributed            nvrx_core.inprocess.abort
inprocess.abort            AbortTransformerEngine           nvrx_core.inprocess.abort
inprocess.attribution      Interruption                     nvrx_core.inprocess.attribution
inprocess.attribution      InterruptionRecord               nvrx_core.inprocess.attribution
inprocess.attribution      format_interruption_records      nvrx_core.inprocess.attribution
inprocess.completion       Completion                       nvrx_core.inprocess.completion
inprocess.compose          Compose                          nvrx_core.inprocess.compose
inprocess.exception        HealthCheckError                 nvrx_core.inprocess.exception
inprocess.exception        InternalError                    nvrx_core.inprocess.exception
inprocess.exception        RestartAbort                     nvrx_core.inprocess.exception
inprocess.exception        RestartError                     nvrx_core.inprocess.exception
inprocess.exception        TimeoutError                     nvrx_core.inprocess.exception
inprocess.finalize         Finalize                         nvrx_core.inprocess.finalize
inprocess.finalize         ThreadedFinalize                 nvrx_core.inprocess.finalize
inprocess.health_check     ChainedGPUHealthCheck            nvrx_core.inprocess.health_check
inprocess.health_check     ChainedNVLHealthCheck            nvrx_core.inprocess.health_check
inprocess.health_check     ChainedNicHealthCheck            nvrx_core.inprocess.health_check
inprocess.health_check     CudaHealthCheck                  nvrx_core.inprocess.health_check
inprocess.health_check     FaultCounter                     nvrx_core.inprocess.health_check
inprocess.health_check     FaultCounterExceeded             nvrx_core.inprocess.health_check
inprocess.health_check     HealthCheck                      nvrx_core.inprocess.health_check
inprocess.initialize       Initialize                       nvrx_core.inprocess.initialize
inprocess.initialize       RetryController                  nvrx_core.inprocess.initialize
inprocess.monitor_thread   RankShouldRestart                nvrx_core.inprocess.monitor_thread
inprocess.monitor_thread   async_raise                      nvrx_compat.raising
inprocess.monitor_thread   reraise_if_unraisable            nvrx_compat.raising
inprocess.nested_restarter NestedRestarterAborted           nvrx_core.inprocess.nested_restarter
inprocess.nested_restarter NestedRestarterCallback          nvrx_core.inprocess.nested_restarter
inprocess.nested_restarter NestedRestarterFinalized         nvrx_core.inprocess.nested_restarter
inprocess.nested_restarter NestedRestarterHandlingCompleted nvrx_core.inprocess.nested_restarter
inprocess.nested_restarter NestedRestarterHandlingStarting  nvrx_core.inprocess.nested_restarter
inprocess.nested_restarter NestedRestarterLogger            nvrx_core.inprocess.nested_restarter
inprocess.progress_watchdog ProgressWatchdog                nvrx_core.process.watchdog
inprocess.progress_watchdog Timestamp                       nvrx_core.process.watchdog
inprocess.rank_assignment  ActivateAllRanks                 nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  ActiveWorldSizeDivisibleBy       nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  FillGaps                         nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  FilterCountGroupedByKey          nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  FilterGroupedByKey               nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  Layer                            nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  LayerFlag                        nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  MaxActiveWorldSize               nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  RankAssignment                   nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  RankAssignmentCtx                nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  RankDiscarded                    nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  RankFilter                       nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  ShiftRanks                       nvrx_core.inprocess.rank_assignment
inprocess.rank_assignment  Tree                             nvrx_core.inprocess.rank_assignment
inprocess.rank_filter      ActivateAllRanks                 nvrx_core.inprocess.rank_assignment
inprocess.rank_filter      ActiveWorldSizeDivisibleBy       nvrx_core.inprocess.rank_assignment
inprocess.rank_filter      MaxActiveWorldSize               nvrx_core.inprocess.rank_assignment
inprocess.rank_filter      RankFilter                       nvrx_core.inprocess.rank_assignment
inprocess.state            FrozenState                      nvrx_core.inprocess.state
inprocess.state            Mode                             nvrx_core.inprocess.state
inprocess.state            State                            nvrx_core.inprocess.state
inprocess.store            BarrierError                     nvrx_core.inprocess.store
inprocess.store            BarrierOverflow                  nvrx_core.inprocess.store
inprocess.store            BarrierTimeout                   nvrx_core.inprocess.store
inprocess.store            FileStore                        nvrx_core.inprocess.store
inprocess.store            StoreMixin                       nvrx_core.inprocess.store
inprocess.store            TCPStore                         nvrx_core.inprocess.store
inprocess.terminate        Terminate                        nvrx_core.inprocess.terminate
inprocess.tools.inject_fault Fault                          nvrx_core.testing.dispatch
inprocess.tools.inject_fault inject_fault             nvrx_core.testing.random_faults
inprocess.wrap             CallWrapper                      nvrx_core.inprocess.wrap
inprocess.wrap             HealthCheckPassed                nvrx_core.inprocess.wrap
inprocess.wrap             Wrapper                          nvrx_core.inprocess.wrap
fault_tolerance            FaultToleranceConfig             nvrx_core.fault_tolerance.config
fault_tolerance            InvalidStateTransitionException  nvrx_core.fault_tolerance.data
fault_tolerance            RankMonitorClient                nvrx_core.fault_tolerance.client
fault_tolerance            RankMonitorClientError           nvrx_core.fault_tolerance.data
fault_tolerance            RankMonitorServer                nvrx_core.fault_tolerance.server
fault_tolerance            RankMonitorState                 nvrx_core.fault_tolerance.states
fault_tolerance            RankMonitorStateMachine          nvrx_core.fault_tolerance.states
fault_tolerance            WorkloadAction                   nvrx_core.fault_tolerance.data
fault_tolerance            WorkloadControlRequest           nvrx_core.fault_tolerance.data
fault_tolerance.config     FaultToleranceConfig             nvrx_core.fault_tolerance.config
fault_tolerance.data       HeartbeatTimeouts                nvrx_core.fault_tolerance.data
fault_tolerance.data       RankInfo                         nvrx_core.fault_tolerance.data
fault_tolerance.data       SectionAction                    nvrx_core.fault_tolerance.data
fault_tolerance.data       SectionTimeouts                  nvrx_core.fault_tolerance.data
fault_tolerance.data       WorkloadAction                   nvrx_core.fault_tolerance.data
fault_tolerance.data       WorkloadControlRequest           nvrx_core.fault_tolerance.data
fault_tolerance.utils      is_process_alive                 nvrx_core.process.lifeline.is_running
fault_tolerance.utils      wait_for_mp_events               nvrx_core.process.waiting
fault_tolerance.utils      DEFAULT_NO_RESTART_EXIT_CODE     nvrx_launcher.exit_codes.REFUSED
fault_tolerance.data       FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR nvrx_core.settings.environment.RANK_MONITOR_SOCKET
fault_tolerance.data       FT_LAUNCHER_IPC_SOCKET_ENV_VAR   nvrx_core.settings.environment.LAUNCHER_SOCKET
fault_tolerance.launcher   main                             nvrx_launcher.cli
fault_tolerance.rank_monitor_client RankMonitorClient       nvrx_core.fault_tolerance.client
fault_tolerance.rank_monitor_client RankMonitorClientError  nvrx_core.fault_tolerance.data
fault_tolerance.rank_monitor_server RankMonitorServer       nvrx_core.fault_tolerance.server
fault_tolerance.rank_monitor_state_machine InvalidStateTransitionException nvrx_core.fault_tolerance.data
fault_tolerance.rank_monitor_state_machine RankMonitorState nvrx_core.fault_tolerance.states
fault_tolerance.rank_monitor_state_machine RankMonitorStateMachine nvrx_core.fault_tolerance.states
shared_utils.inject_fault  Fault                            nvrx_core.testing.dispatch
shared_utils.inject_fault  clear_workload_exception         nvrx_core.testing.dispatch
shared_utils.inject_fault  dispatch_fault_injection         nvrx_core.testing.dispatch
shared_utils.inject_fault  inject_fault                     nvrx_core.testing.random_faults
shared_utils.inject_fault  maybe_raise_workload_exception   nvrx_core.testing.dispatch
shared_utils.wait_daemon   main                             nvrx_core.inprocess.wait_daemon
"""
ROWS = [tuple(line.split()) for line in NAMES.strip().splitlines()]
METHODS = {
    "inprocess.CallWrapper": ("ping", "atomic", "iteration", "disable_hang_protection"),
    "inprocess.Wrapper": ("__call__",),
    "inprocess.state.State": ("from_env", "set_distributed_vars", "advance", "freeze", "copy_from"),
    "inprocess.store.StoreMixin": ("send_state", "get_states", "send_key", "get_keys", "barrier", "critical_ranks"),
    "fault_tolerance.FaultToleranceConfig": ("from_kwargs", "from_yaml_file", "from_args", "to_yaml_file"),
    "fault_tolerance.RankMonitorServer": ("run_in_subprocess",),
    "fault_tolerance.RankMonitorClient": (
        "init_workload_monitoring", "send_heartbeat", "start_section", "end_section", "end_all_sections",
        "shutdown_workload_monitoring", "calculate_and_set_hb_timeouts", "calculate_and_set_section_timeouts",
        "state_dict", "load_state_dict", "send_workload_control_request",
    ),
}  # fmt: skip
"""What Megatron-LM, Megatron-Bridge and the documents call."""
FOLDER = Path(nvrx_compat.path())


@pytest.fixture
def active(no_package):
    assert nvrx_compat.activate()


@pytest.mark.parametrize(("module", "name", "home"), ROWS, ids=lambda part: part)
def test_a_documented_name_is_nvrxs_object(module, name, home):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = getattr(importlib.import_module(f"nvidia_resiliency_ext.{module}"), name)
    assert found is the_object(home, name)


def the_object(home, name):
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError:  # the place of an object with another name
        module, _, name = home.rpartition(".")
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", METHODS)
def test_a_documented_member_is_there(name):
    kind = functools.reduce(getattr, name.split("."), package())
    assert not [member for member in METHODS[name] if not hasattr(kind, member)]


def package():
    for name in ("inprocess", "fault_tolerance"):
        importlib.import_module(f"nvidia_resiliency_ext.{name}")
    return sys.modules["nvidia_resiliency_ext"]


def test_code_that_imports_a_package_reaches_its_modules_as_attributes():
    for name in ("inprocess", "fault_tolerance"):
        package = importlib.import_module(f"nvidia_resiliency_ext.{name}")
        homes = [module.split(".") for module, _, _ in ROWS]
        modules = {home[1] for home in homes if home[0] == name and len(home) > 1}
        assert not [module for module in modules - {"launcher"} if not hasattr(package, module)]
        assert {*package.__all__} <= {*dir(package)}


def test_every_file_says_what_it_offers_and_offers_it():
    for path in FOLDER.rglob("*.py"):
        module = ".".join(path.relative_to(FOLDER).with_suffix("").parts).removesuffix(".__init__")
        if "ptl_resiliency" not in module:
            offered = importlib.import_module(module)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                assert all(hasattr(offered, name) for name in getattr(offered, "__all__", ())), module


def test_there_is_no_asynchronous_checkpointing_which_megatron_looks_for():
    for module in ("checkpointing", "checkpointing.async_ckpt.core"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"nvidia_resiliency_ext.{module}")


def test_the_version_is_one_that_megatron_accepts_and_says_whose_it_is():
    version = Version(package().__version__)
    assert version >= Version("0.6.0")
    assert version.local == f"nvrx.{nvrx_core.__version__}"


def test_a_moved_name_warns():
    module = importlib.import_module("nvidia_resiliency_ext.inprocess.rank_filter")
    with pytest.warns(DeprecationWarning, match="is now inprocess.rank_assignment.RankFilter"):
        _ = module.RankFilter


def test_the_client_of_rank_monitors_needs_no_torch():
    script = "import sys, nvidia_resiliency_ext.fault_tolerance; sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", f"import nvrx_compat; nvrx_compat.activate(); {script}"]
    assert subprocess.run(command, env={"PYTHONPATH": ":".join(sys.path)}, check=False).returncode == 0


def test_the_callbacks_are_names_of_nvrx_lightning_which_imports_lightning_when_one_is_asked_for():
    callbacks = importlib.import_module("nvidia_resiliency_ext.ptl_resiliency")
    assert set(callbacks.__all__) <= set(nvrx_lightning.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'LocalCheckpointCallback'"):
        _ = callbacks.LocalCheckpointCallback


def test_a_recipe_may_name_the_callback_that_is_not_here():
    """As NeMo's do, which look for the package alone."""
    callbacks = importlib.import_module("nvidia_resiliency_ext.ptl_resiliency")

    def straggler_det_callback() -> type[callbacks.StragglerDetectionCallback]:
        return callbacks.StragglerDetectionCallback

    with pytest.raises(NotImplementedError, match="leave it out of the callbacks"):
        straggler_det_callback()(report_time_interval=300)
