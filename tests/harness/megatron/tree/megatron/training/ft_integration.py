"""The client of the rank monitor, and what is counted."""

import json
import os

from . import arguments

_GLOBAL_RANK_MONITOR_CLIENT = None
_seen_tr_iters_cnt = 0


def setup():
    global _GLOBAL_RANK_MONITOR_CLIENT
    args = arguments.parse_args(ignore_unknown_args=True)
    if args.enable_ft_package:
        from tests.harness.megatron.client import Client

        assert _GLOBAL_RANK_MONITOR_CLIENT is None, "rank monitor client is already initialized."
        assert _seen_tr_iters_cnt == 0
        _GLOBAL_RANK_MONITOR_CLIENT = Client()


def on_training_step_start():
    pass


def on_training_step_end():
    global _seen_tr_iters_cnt
    _seen_tr_iters_cnt += 1


def on_eval_step_start():
    pass


def on_eval_step_end():
    pass


def on_checkpointing_start():
    pass


def on_checkpointing_end(is_async_finalization):
    pass


def shutdown():
    global _GLOBAL_RANK_MONITOR_CLIENT
    if _GLOBAL_RANK_MONITOR_CLIENT is not None:
        with open(os.path.join(arguments.parse_args().save, "ft_state.json"), "w") as file:
            json.dump({"seen": _seen_tr_iters_cnt}, file)
        _GLOBAL_RANK_MONITOR_CLIENT.shutdown_workload_monitoring()
    _GLOBAL_RANK_MONITOR_CLIENT = None
