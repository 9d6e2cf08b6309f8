"""Every public name of the in-process restart exists under its module path, and a test shows its behaviour.

Since: `0.4.1` and `HEAD` are the versions of nvidia-resiliency-ext that offer a name, `both` says both; `docs` is its
documents alone; `nvrx` is ours. `Wrapper(x)` is a parameter, `Class.x` a member. What is not offered is a row of
docs/reference/deviations.md.
"""

import ast
import functools
import importlib
import inspect
import pathlib
import re
import signal
from datetime import timedelta
from typing import NamedTuple

import pytest

from nvrx_core import inprocess

ROOT = pathlib.Path(__file__).parents[2]
SINCE = {"0.4.1", "HEAD", "both", "docs", "nvrx"}
NAMES = """
abort               Abort                                     both   unit/inprocess/test_abort.py::test_an_abort_without_a_call_cannot_be_made
abort               AbortTorchDistributed                     both   unit/inprocess/test_abort.py::test_groups_are_forgotten_with_each_version_of_torch
abort               AbortTorchDistributed(torch_fr_trace_path) HEAD  process/test_plug_ins.py::test_each_rank_writes_its_flight_record_before_the_abort
abort               AbortTransformerEngine                    both   unit/inprocess/test_abort.py::test_transformer_engine_releases_buffers_and_fp8_state
abort               AbortPhase                                nvrx   process/test_plug_ins.py::test_the_parts_of_an_abort_run_in_their_phases_and_each_stands_alone
attribution         Interruption                              both   unit/fault/test_attribution.py::test_records_are_grouped_by_kind
attribution         Interruption.EXCEPTION                    both   process/test_deaths.py::test_an_exception_restarts_everyone
attribution         Interruption.BASE_EXCEPTION               both   process/test_deaths.py::test_a_base_exception_leaves_with_its_rank
attribution         Interruption.SOFT_TIMEOUT                 both   process/test_hangs.py::test_a_hang_that_an_interruption_ends_costs_no_rank
attribution         Interruption.HARD_TIMEOUT                 both   process/test_hangs.py::test_a_hang_that_nothing_ends_is_killed
attribution         Interruption.TERMINATED                   both   process/test_deaths.py::test_a_dead_rank_is_left_behind
attribution         Interruption.UNRESPONSIVE                 both   process/test_monitors.py::test_a_rank_that_vanishes_with_its_monitor_is_found_by_the_others
attribution         Interruption.MONITOR_PROCESS_EXCEPTION    both   unit/fault/test_attribution.py::test_records_are_grouped_by_kind
attribution         InterruptionRecord                        both   unit/fault/test_record.py::test_the_record_in_the_terms_of_the_wrapper
attribution         InterruptionRecord.from_str               both   unit/fault/test_attribution.py::test_a_record_is_read_back_from_its_text
attribution         format_interruption_records               both   unit/fault/test_attribution.py::test_records_are_grouped_by_kind
completion          Completion                                both   process/test_options.py::test_plug_ins_run_in_their_order
compose             Compose                                   both   unit/inprocess/test_compose.py::test_the_last_one_listed_runs_first
exception           RestartError                              both   unit/test_errors.py::test_the_tree
exception           RestartAbort                              both   unit/test_errors.py::test_restart_abort_passes_by_handlers_of_exception
exception           HealthCheckError                          both   process/test_options.py::test_a_rank_that_cannot_go_on_leaves_and_the_others_restart
exception           InternalError                             both   unit/test_errors.py::test_the_tree
exception           TimeoutError                              both   unit/inprocess/test_plug_ins.py::test_threaded_finalize_gives_up_on_a_hang
exception           BarrierError                              nvrx   unit/test_errors.py::test_the_tree
exception           BarrierOverflow                           nvrx   unit/test_errors.py::test_the_tree
exception           BarrierTimeout                            nvrx   unit/test_errors.py::test_an_error_survives_pickling_with_its_fields
exception           FaultCounterExceeded                      nvrx   unit/inprocess/test_plug_ins.py::test_fault_counter_counts_this_ranks_own_faults
exception           JobMismatch                               nvrx   process/test_contradictions.py::test_ranks_with_different_world_sizes_end_with_the_same_error
exception           PeerExited                                nvrx   process/test_exit_codes.py::test_the_ranks_that_give_up_end_with_the_code_of_the_rank_that_has_left
exception           RankAssignmentError                       nvrx   unit/rank_assignment/test_assignments.py::test_an_impossible_answer_is_refused
exception           RankDiscarded                             nvrx   unit/rank_assignment/test_assignments.py::test_a_discarded_ranks_error_lists_the_terminated_ranks
exception           StoreLost                                 nvrx   unit/test_errors.py::test_a_lost_store_ends_the_process_with_code_75_and_names_its_place
finalize            Finalize                                  both   process/test_options.py::test_plug_ins_run_in_their_order
finalize            ThreadedFinalize                          both   unit/inprocess/test_plug_ins.py::test_threaded_finalize_runs_in_a_thread_without_torch
health_check        HealthCheck                               both   process/test_options.py::test_a_rank_that_cannot_go_on_leaves_and_the_others_restart
health_check        CudaHealthCheck                           both   unit/inprocess/test_plug_ins.py::test_cuda_health_check_synchronises_in_a_thread_and_then_itself
health_check        FaultCounter                              both   process/test_plug_ins.py::test_a_rank_that_fails_too_often_leaves
health_check        FaultCounterExceeded                      both   unit/inprocess/test_plug_ins.py::test_fault_counter_counts_this_ranks_own_faults
health_check        ChainedGPUHealthCheck                     HEAD   process/test_health_checks_of_ranks.py::test_hardware_that_fails_makes_a_rank_leave
health_check        ChainedNVLHealthCheck                     HEAD   process/test_health_checks_of_ranks.py::test_hardware_that_fails_makes_a_rank_leave
health_check        ChainedNicHealthCheck                     HEAD   process/test_health_checks_of_ranks.py::test_hardware_that_fails_makes_a_rank_leave
initialize          Initialize                                both   process/test_options.py::test_an_exception_in_initialize_restarts
initialize          RetryController                           both   process/test_options.py::test_retry_controller_ends_all_ranks
monitor_thread      RankShouldRestart                         both   process/test_plug_ins.py::test_a_function_may_ask_for_a_restart
monitor_thread      MonitorThread                             nvrx   process/test_deaths.py::test_an_exception_restarts_everyone
nested_restarter    NestedRestarterCallback                   both   unit/inprocess/test_nested_restarter.py::test_any_state_can_be_said_to_any_logger
nested_restarter    NestedRestarterHandlingCompleted          both   process/test_plug_ins.py::test_one_rank_logs_for_an_outer_restarter
nested_restarter    NestedRestarterHandlingStarting           both   process/test_plug_ins.py::test_one_rank_logs_for_an_outer_restarter
nested_restarter    NestedRestarterFinalized                  both   process/test_plug_ins.py::test_one_rank_logs_for_an_outer_restarter
nested_restarter    NestedRestarterLogger                     HEAD   unit/inprocess/test_nested_restarter.py::test_the_logger_can_be_given_another_handler
nested_restarter    NestedRestarterAborted                    both   process/test_plug_ins.py::test_the_rank_that_logs_for_an_outer_restarter_reports_its_exit
progress_watchdog   MainThreadWatchdog                        both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
rank_assignment     RankAssignment                            both   process/test_rounds.py::test_a_death_between_barrier_and_entry_is_carried_into_the_next_round
rank_assignment     RankAssignmentCtx                         both   unit/rank_assignment/test_assignments.py::test_a_move_changes_neither_the_active_ranks_nor_the_callers_set
rank_assignment     RankDiscarded                             both   unit/rank_assignment/test_assignments.py::test_a_discarded_ranks_error_lists_the_terminated_ranks
rank_assignment     RankFilter                                both   unit/rank_assignment/test_assignments.py::test_a_move_after_a_filter_is_refused_at_the_start
rank_assignment     ActivateAllRanks                          both   unit/rank_assignment/test_assignments.py::test_every_termination_set_gives_a_valid_world
rank_assignment     MaxActiveWorldSize                        both   process/test_rounds.py::test_a_reserve_takes_the_place_of_a_lost_rank
rank_assignment     ActiveWorldSizeDivisibleBy                both   unit/rank_assignment/test_groups.py::test_active_world_sizes_are_divisible_or_the_job_ends
rank_assignment     ShiftRanks                                both   unit/rank_assignment/test_assignments.py::test_shift_ranks_does_what_its_drawing_shows
rank_assignment     FillGaps                                  both   unit/rank_assignment/test_assignments.py::test_fill_gaps_does_what_its_drawing_shows
rank_assignment     FilterCountGroupedByKey                   both   unit/rank_assignment/test_groups.py::test_the_documented_group
rank_assignment     FilterGroupedByKey                        docs   unit/rank_assignment/test_groups.py::test_the_documented_composition
rank_assignment     Layer                                     both   unit/rank_assignment/test_tree.py::test_a_domain_with_too_few_ranks_is_terminated_as_a_whole
rank_assignment     LayerFlag                                 both   unit/rank_assignment/test_tree.py::test_reserve_comes_before_backfill
rank_assignment     LayerFlag.RESERVE                         both   unit/rank_assignment/test_tree.py::test_a_layer_without_the_flag_ends_the_search_for_a_reserve
rank_assignment     LayerFlag.BACKFILL                        both   unit/rank_assignment/test_tree.py::test_the_highest_ranks_of_a_domain_fill_its_gaps
rank_assignment     Snapshot                                  nvrx   unit/rank_assignment/test_groups.py::test_two_filters_count_who_the_first_one_left_and_moves_take_the_keys_along
rank_assignment     Tree                                      both   unit/rank_assignment/test_tree.py::test_any_tree_does_what_the_rules_say
rank_filter         RankFilter                                0.4.1  unit/inprocess/test_plug_ins.py::test_the_deprecated_module_of_the_filters_warns
rank_filter         ActivateAllRanks                          0.4.1  unit/inprocess/test_plug_ins.py::test_the_deprecated_module_of_the_filters_warns
rank_filter         MaxActiveWorldSize                        0.4.1  unit/inprocess/test_plug_ins.py::test_the_deprecated_module_of_the_filters_warns
rank_filter         ActiveWorldSizeDivisibleBy                0.4.1  unit/inprocess/test_plug_ins.py::test_the_deprecated_module_of_the_filters_warns
live_state          LiveState                                 nvrx   process/test_live_state.py::test_faults_at_any_point_cost_no_step_and_no_bit
live_state          LiveState.commit                          nvrx   process/test_live_state.py::test_faults_at_any_point_cost_no_step_and_no_bit
live_state          LiveState.resume                          nvrx   process/test_live_state.py::test_faults_at_any_point_cost_no_step_and_no_bit
live_state          LiveState.start                           nvrx   process/test_live_state.py::test_faults_at_any_point_cost_no_step_and_no_bit
restart_record      RestartRecord                             nvrx   process/test_current_call.py::test_the_running_call_and_the_last_restart_are_at_hand
restart_record      last_restart                              nvrx   process/test_current_call.py::test_the_running_call_and_the_last_restart_are_at_hand
state               Mode                                      both   unit/inprocess/test_state.py::test_a_snapshot_does_not_change
state               Mode.INITIALIZED                          both   unit/rank_assignment/test_assignments.py::test_a_round_does_not_start_from_the_active_world_size_of_the_round_before
state               Mode.ACTIVE                               both   process/test_plug_ins.py::test_each_plug_in_sees_the_state_of_its_iteration
state               Mode.INACTIVE                             both   unit/rank_assignment/test_assignments.py::test_a_reserve_rank_takes_over
state               Mode.TERMINATED                           both   unit/rank_assignment/test_assignments.py::test_a_rank_that_an_assignment_terminates_is_discarded
state               FrozenState                               both   unit/rank_assignment/test_assignments.py::test_a_frozen_state_holds_the_same_exception_and_cannot_change
state               State                                     both   unit/rank_assignment/test_assignments.py::test_state_takes_its_initial_ranks_from_its_ranks
state               State.from_env                            both   unit/inprocess/test_state.py::test_the_state_on_entry_is_that_of_the_environment
state               State.set_distributed_vars                both   unit/inprocess/test_state.py::test_an_active_rank_is_told_to_torch
state               State.advance                             both   unit/rank_assignment/test_assignments.py::test_advance_forgets_the_exception
state               State.freeze                              both   unit/inprocess/test_state.py::test_a_snapshot_does_not_change
state               State.copy_from                           both   unit/rank_assignment/test_assignments.py::test_a_state_copies_all_or_some_fields
store               StoreMixin                                both   process/test_options.py::test_another_store_serves_as_well
store               StoreMixin.critical_ranks                 both   process/test_options.py::test_another_store_serves_as_well
store               StoreMixin.forget                         nvrx   unit/store/test_mixin.py::test_a_store_says_who_hosts_it_and_which_side_it_is
store               StoreMixin.forget_except                  nvrx   unit/store/test_mixin.py::test_a_store_says_who_hosts_it_and_which_side_it_is
store               StoreMixin.send_state                     both   unit/store/test_mixin.py::test_states_travel_without_their_exceptions
store               StoreMixin.get_states                     both   unit/store/test_mixin.py::test_states_travel_without_their_exceptions
store               StoreMixin.send_key                       both   unit/store/test_mixin.py::test_what_travels_is_json
store               StoreMixin.get_keys                       both   unit/store/test_mixin.py::test_what_travels_is_json
store               StoreMixin.barrier                        both   unit/store/test_mixin.py::test_a_barrier_opens_when_all_have_come
store               EtcdStore                                 nvrx   process/test_etcd.py::test_a_dead_rank_is_left_behind_whichever_it_is
store               TCPStore                                  both   process/test_deaths.py::test_rank_0_may_host_the_store_while_others_fail
store               FileStore                                 both   process/test_options.py::test_another_store_serves_as_well
store               BarrierError                              both   unit/test_errors.py::test_the_tree
store               BarrierTimeout                            both   unit/test_errors.py::test_an_error_survives_pickling_with_its_fields
store               BarrierOverflow                           both   unit/test_errors.py::test_the_tree
store               StoreConnectionError                      nvrx   process/test_bad_input.py::test_a_port_in_use_is_named
store               as_client                                 nvrx   process/test_options.py::test_another_store_serves_as_well
store               client_only                               nvrx   process/test_options.py::test_another_store_serves_as_well
terminate           Terminate                                 both   process/test_options.py::test_a_rank_that_cannot_go_on_leaves_and_the_others_restart
wait_daemon         main                                      HEAD   process/test_wait_daemon.py::test_exit_codes
wait_daemon         wait                                      nvrx   process/test_wait_daemon.py::test_it_ends_at_once
wrap                HealthCheckPassed                         both   unit/test_public_names.py::test_nothing_raises_health_check_passed
wrap                CallWrapper                               both   process/test_options.py::test_the_call_wrapper_is_injected_and_arguments_are_the_same_in_each_iteration
wrap                CallWrapper.iteration                     both   process/test_options.py::test_the_call_wrapper_is_injected_and_arguments_are_the_same_in_each_iteration
wrap                CallWrapper.ping                          both   process/test_hangs.py::test_a_hang_that_an_interruption_ends_costs_no_rank
wrap                CallWrapper.suspend_pings                 nvrx   e2e/lightning/test_callback_in_process.py::test_a_long_validation_run_is_no_hang
wrap                CallWrapper.atomic                        both   process/test_hangs.py::test_a_fault_elsewhere_lets_an_atomic_section_end_first
wrap                CallWrapper.disable_hang_protection       HEAD   process/test_hangs.py::test_waiting_for_a_slow_peer_is_not_a_hang
wrap                CallWrapper.suspend_ping                  nvrx   e2e/megatron/test_core_loop.py::test_a_save_that_takes_longer_than_a_step_is_no_hang
wrap                CallWrapper.shutdown                      both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                CallWrapper.__enter__                     both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                CallWrapper.__exit__                      both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                CallWrapper.state                         both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                CallWrapper.store                         both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                CallWrapper.base_store                    both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                CallWrapper.wrapper                       both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                CallWrapper.monitor_process               both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                CallWrapper.progress_watchdog             both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                CallWrapper.atomic_lock                   both   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                CallWrapper.iteration_store               nvrx   process/test_options.py::test_the_iteration_store_is_the_same_for_all_and_new_in_each_iteration
wrap                CallWrapper.progress                      nvrx   process/test_hangs.py::test_a_hang_known_by_its_steps_or_its_store_costs_no_rank
wrap                current_call                              nvrx   process/test_current_call.py::test_the_running_call_and_the_last_restart_are_at_hand
wrap                Wrapper                                   both   process/test_deaths.py::test_an_exception_restarts_everyone
wrap                Wrapper.restart_health_check              HEAD   unit/test_public_names.py::test_the_parameters_of_a_wrapper_can_be_read_and_not_assigned
wrap                Wrapper(store_factory)                    both   process/test_options.py::test_another_store_serves_as_well
wrap                Wrapper(store_kwargs)                     both   process/test_options.py::test_another_store_serves_as_well
wrap                Wrapper(initialize)                       both   process/test_options.py::test_plug_ins_run_in_their_order
wrap                Wrapper(abort)                            both   process/test_options.py::test_plug_ins_run_in_their_order
wrap                Wrapper(finalize)                         both   process/test_options.py::test_plug_ins_run_in_their_order
wrap                Wrapper(health_check)                     both   process/test_options.py::test_plug_ins_run_in_their_order
wrap                Wrapper(rank_assignment)                  both   process/test_rounds.py::test_a_reserve_takes_the_place_of_a_lost_rank
wrap                Wrapper(rank_filter)                      0.4.1  process/test_options.py::test_rank_filter_is_deprecated_and_filters
wrap                Wrapper(monitor_thread_interval)          both   process/test_monitors.py::test_an_idle_wrapper_sleeps
wrap                Wrapper(monitor_process_interval)         both   process/test_monitors.py::test_an_idle_wrapper_sleeps
wrap                Wrapper(heartbeat_interval)               both   process/test_monitors.py::test_a_rank_that_vanishes_with_its_monitor_is_found_by_the_others
wrap                Wrapper(progress_watchdog_interval)       both   process/test_hangs.py::test_a_hang_that_an_interruption_ends_costs_no_rank
wrap                Wrapper(soft_timeout)                     both   process/test_hangs.py::test_a_hang_that_an_interruption_ends_costs_no_rank
wrap                Wrapper(hard_timeout)                     both   process/test_hangs.py::test_a_hang_that_nothing_ends_is_killed
wrap                Wrapper(heartbeat_timeout)                both   process/test_monitors.py::test_a_rank_that_vanishes_with_its_monitor_is_found_by_the_others
wrap                Wrapper(barrier_timeout)                  both   unit/inprocess/protocol/test_round.py::test_a_barrier_that_does_not_close_is_given_up
wrap                Wrapper(completion_timeout)               both   unit/inprocess/protocol/test_round.py::test_the_others_have_a_bound_for_their_completion
wrap                Wrapper(last_call_wait)                   both   process/test_rounds.py::test_last_call_wait_is_honoured
wrap                Wrapper(termination_grace_time)           both   process/test_hangs.py::test_a_hang_that_nothing_ends_is_killed
wrap                Wrapper(monitor_process_logfile)          both   process/test_monitors.py::test_a_monitor_writes_its_log_and_its_pid_where_it_is_told
wrap                Wrapper(monitor_process_pidfile)          HEAD   process/test_monitors.py::test_a_monitor_writes_its_log_and_its_pid_where_it_is_told
wrap                Wrapper(enabled)                          both   unit/test_public_names.py::test_a_wrapper_that_is_not_enabled_gives_the_function_back
wrap                Wrapper(completion)                       both   process/test_options.py::test_plug_ins_run_in_their_order
wrap                Wrapper(terminate)                        both   process/test_options.py::test_a_rank_that_cannot_go_on_leaves_and_the_others_restart
wrap                Wrapper(events_dir)                       nvrx   process/test_plug_ins.py::test_what_code_reaches_for_can_be_read_and_not_assigned
wrap                Wrapper(interrupt_signal)                 nvrx   unit/inprocess/call/test_parameters.py::test_a_signal_is_one_that_may_be_used
wrap                Wrapper(thread_exceptions)                nvrx   process/test_options.py::test_an_exception_in_a_thread_is_a_fault_where_it_shall_be
wrap                Wrapper(no_progress_limit)                nvrx   process/test_options.py::test_equal_failures_without_progress_end_the_job
"""  # noqa: E501 (a table)

# What the documents give as signatures; ours may go on where they end.
SIGNATURES = {
    "abort.AbortTorchDistributed": "(torch_fr_trace_path=None)",
    "abort.AbortTransformerEngine": "()",
    "compose.Compose": "(*instances)",
    "finalize.ThreadedFinalize": "(timeout, fn, args=(), kwargs=None)",
    "health_check.CudaHealthCheck": "(timeout=datetime.timedelta(seconds=30))",
    "health_check.FaultCounter": "(max_rank_faults=None)",
    "health_check.ChainedGPUHealthCheck": "(device_index=None)",
    "health_check.ChainedNVLHealthCheck": "(device_index=None)",
    "health_check.ChainedNicHealthCheck": "(device_index=None)",
    "initialize.RetryController": "(max_iterations=None, min_world_size=1, min_active_world_size=1)",
    "nested_restarter.NestedRestarterCallback": "(restarter_state, restarter_stage=None, logger=None, special_rank=0)",
    "nested_restarter.NestedRestarterHandlingCompleted": "(special_rank=0)",
    "nested_restarter.NestedRestarterHandlingStarting": "(special_rank=0)",
    "nested_restarter.NestedRestarterFinalized": "(special_rank=0)",
    "nested_restarter.NestedRestarterAborted": "(special_rank=0)",
    "rank_assignment.MaxActiveWorldSize": "(max_active_world_size=None)",
    "rank_assignment.ActiveWorldSizeDivisibleBy": "(divisor=1)",
    "rank_assignment.FilterCountGroupedByKey": "(key_or_fn, condition, timeout=datetime.timedelta(seconds=60))",
    "rank_assignment.Layer": "(min_ranks=1, max_ranks=None, key_or_fn='', flag=None)",
    "rank_assignment.Tree": "(layers, world_size_filter=None)",
    "rank_assignment.RankAssignmentCtx": "(state, store, terminated_ranks)",
    "attribution.InterruptionRecord": "(rank, interruption)",
}

SECONDS = {
    "monitor_thread_interval": 1, "monitor_process_interval": 1, "heartbeat_interval": 1,
    "progress_watchdog_interval": 1, "soft_timeout": 60, "hard_timeout": 90, "heartbeat_timeout": 30,
    "barrier_timeout": 120, "completion_timeout": 120, "last_call_wait": 0, "termination_grace_time": 5,
}  # fmt: skip

# Not offered; each is in docs/reference/deviations.md with its reason.
OMITTED = ("abort.AbortPersistentCheckpointProcesses", "param_utils", "utils", "tools")


class Row(NamedTuple):
    module: str
    name: str
    since: str
    test: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


ROWS = [Row(*line.split()) for line in NAMES.strip().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_public_name_exists_and_has_a_test(row):
    module = importlib.import_module(f"nvrx_core.inprocess.{row.module}")
    name, _, parameter = row.name.rstrip(")").partition("(")
    if row.module == "rank_filter":
        assert name in module.__all__
    else:
        found = functools.reduce(getattr, name.split("."), module)
        assert not parameter or parameter in inspect.signature(found).parameters
    file, _, test = row.test.partition("::")
    assert test in functions_in(ROOT / "tests" / file), f"{row.test} is not there"
    assert row.since in SINCE


@functools.cache
def functions_in(path):
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("module", inprocess._MODULES)
def test_no_public_name_is_missing_in_the_table(module):
    public = set(importlib.import_module(f"nvrx_core.inprocess.{module}").__all__)
    rows = {row.name for row in ROWS if row.module == module and re.fullmatch(r"\w+", row.name)}
    assert public == rows, "NAMES has a row for each public name, with the test of what it does"


def test_no_member_of_what_a_function_gets_is_missing_in_the_table():
    public = {f"CallWrapper.{name}" for name in vars(inprocess.CallWrapper) if not name.startswith("_")}
    assert public <= {row.name for row in ROWS}
    parameters = {f"Wrapper({name})" for name in inspect.signature(inprocess.Wrapper).parameters}
    assert parameters == {row.name for row in ROWS if row.name.startswith("Wrapper(")}


def test_modules_and_classes_are_attributes_of_the_package():
    for module in inprocess._MODULES:
        assert getattr(inprocess, module).__name__ == f"nvrx_core.inprocess.{module}"
    assert inprocess.__all__ == [
        "CallWrapper", "Compose", "FrozenState", "LiveState", "Mode", "RestartRecord", "State", "Wrapper",
        "current_call", "last_restart",
    ]  # fmt: skip
    assert all(getattr(inprocess, name).__name__ == name for name in inprocess.__all__)
    assert {*inprocess.__all__, *inprocess._MODULES} <= set(dir(inprocess))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = inprocess.nothing


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_the_documented_one(name):
    module, _, kind = name.partition(".")
    signature = inspect.signature(getattr(importlib.import_module(f"nvrx_core.inprocess.{module}"), kind))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    ours = str(inspect.Signature(bare)).replace("<factory>", "None")
    assert ours.startswith(SIGNATURES[name].removesuffix(")")), ours


def test_the_defaults_of_a_wrapper_are_the_documented_ones():
    defaults = {name: parameter.default for name, parameter in inspect.signature(inprocess.Wrapper).parameters.items()}
    assert {name: defaults.pop(name) for name in SECONDS} == {n: timedelta(seconds=s) for n, s in SECONDS.items()}
    assert defaults.pop("store_factory") is inprocess.store.TCPStore
    assert isinstance(defaults.pop("abort"), inprocess.abort.AbortTorchDistributed)
    kinds = [type(stage).__name__ for stage in defaults.pop("rank_assignment").instances]
    assert kinds == ["ActivateAllRanks", "ShiftRanks"]
    assert defaults.pop("enabled") is True
    assert (defaults.pop("interrupt_signal"), defaults.pop("thread_exceptions")) == (signal.SIGRTMIN + 8, "log")
    assert defaults.pop("no_progress_limit") == 10
    assert set(defaults.values()) == {None}


def test_every_parameter_of_a_wrapper_is_given_by_name():
    kinds = {parameter.kind for parameter in inspect.signature(inprocess.Wrapper).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_the_parameters_of_a_wrapper_can_be_read_and_not_assigned():
    check = inprocess.health_check.FaultCounter()
    wrapper = inprocess.Wrapper(soft_timeout=timedelta(seconds=7), health_check=check, store_kwargs={"port": 1})
    assert (wrapper.soft_timeout, wrapper.hard_timeout) == (timedelta(seconds=7), timedelta(seconds=90))
    assert wrapper.health_check is wrapper.restart_health_check is check
    assert wrapper.store_kwargs == {"port": 1}
    assert wrapper.enabled is True
    names = set(inspect.signature(inprocess.Wrapper).parameters)
    for name in names - {"enabled"}:
        with pytest.raises(AttributeError):
            setattr(wrapper, name, getattr(wrapper, name))


def test_a_wrapper_may_be_derived_from():
    class Mine(inprocess.Wrapper):
        def __init__(self, name):
            super().__init__(enabled=False)
            self.name = name

    assert Mine("job").name == "job"


def test_a_wrapper_that_is_not_enabled_gives_the_function_back():
    assert inprocess.Wrapper(enabled=False)(print) is print


def test_nothing_raises_health_check_passed():
    assert issubclass(inprocess.wrap.HealthCheckPassed, Exception)
    sources = [path.read_text() for path in (ROOT / "nvrx_core").rglob("*.py")]
    assert not [text for text in sources if "raise HealthCheckPassed" in text]


@pytest.mark.parametrize("name", OMITTED)
def test_every_name_that_is_not_offered_is_a_deviation(name):
    home, _, attribute = name.partition(".")
    path = ROOT / "nvrx_core" / "inprocess" / f"{home}.py"
    assert not path.exists() or (attribute and not hasattr(getattr(inprocess, home), attribute))
    assert f"`{name}`" in (ROOT / "docs" / "reference" / "deviations.md").read_text()
