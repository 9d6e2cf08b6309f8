"""The client of the rank monitor, its sections, and what is counted."""

import json
import os

from . import arguments

_GLOBAL_RANK_MONITOR_CLIENT = None
_NUM_WARMUP_ITERS = 1
_seen_tr_iters_cnt = 0
_is_setup_section_open = False


def setup():
    global _GLOBAL_RANK_MONITOR_CLIENT, _NUM_WARMUP_ITERS, _is_setup_section_open
    args = arguments.parse_args(ignore_unknown_args=True)
    if args.enable_ft_package:
        from tests.harness.megatron.client import Client

        assert _GLOBAL_RANK_MONITOR_CLIENT is None, "rank monitor client is already initialized."
        assert _seen_tr_iters_cnt == 0
        assert not _is_setup_section_open
        _GLOBAL_RANK_MONITOR_CLIENT = Client()
        _NUM_WARMUP_ITERS = args.ft_num_warmup_iters
        _GLOBAL_RANK_MONITOR_CLIENT.init_workload_monitoring(num_warmup_iters=_NUM_WARMUP_ITERS)
        _GLOBAL_RANK_MONITOR_CLIENT.start_section("setup")
        _is_setup_section_open = True


def on_training_step_start():
    global _is_setup_section_open
    client = _GLOBAL_RANK_MONITOR_CLIENT
    if client is not None:
        if _is_setup_section_open:
            client.end_section("setup")
            _is_setup_section_open = False
        if _seen_tr_iters_cnt >= _NUM_WARMUP_ITERS:
            client.start_section("step")


def on_training_step_end():
    global _seen_tr_iters_cnt
    if _GLOBAL_RANK_MONITOR_CLIENT is not None and _seen_tr_iters_cnt >= _NUM_WARMUP_ITERS:
        _GLOBAL_RANK_MONITOR_CLIENT.end_section("step")
    _seen_tr_iters_cnt += 1


def on_eval_step_start():
    pass


def on_eval_step_end():
    pass


def on_checkpointing_start():
    if _GLOBAL_RANK_MONITOR_CLIENT is not None:
        _GLOBAL_RANK_MONITOR_CLIENT.start_section("checkpointing")


def on_checkpointing_end(is_async_finalization):
    if _GLOBAL_RANK_MONITOR_CLIENT is not None:
        _GLOBAL_RANK_MONITOR_CLIENT.end_section("checkpointing")


def shutdown():
    global _GLOBAL_RANK_MONITOR_CLIENT
    if _GLOBAL_RANK_MONITOR_CLIENT is not None:
        with open(os.path.join(arguments.parse_args().save, "ft_state.json"), "w") as file:
            json.dump({"seen": _seen_tr_iters_cnt}, file)
        _GLOBAL_RANK_MONITOR_CLIENT.shutdown_workload_monitoring()
    _GLOBAL_RANK_MONITOR_CLIENT = None
