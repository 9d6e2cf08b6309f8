"""Megatron-LM's loop on the memory of its ranks: what is installed, what it counts, and where it goes on."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import types
from dataclasses import replace

import pytest
from nvrx_megatron import MegatronLiveState, internals, live_wiring
from nvrx_megatron.live_wiring import _Counters, _Operations

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.restart_record import RestartRecord
from nvrx_core.rank_assignment.identity import InitialRank

LOOP = """
def setup_model_and_optimizer(): return load_checkpoint()
def load_checkpoint(ddp_model=None, optimizer=None, opt_param_scheduler=None): pass
def train_step(): pass
def training_log(): pass
def build_train_valid_test_data_loaders(): return args.iteration
def checkpoint_and_decide_exit(model, iteration, num_floating_point_operations_so_far): pass
def train(
    forward_step_func, model, optimizer, opt_param_scheduler, train_data_iterator, valid_data_iterator,
    process_non_loss_data_func, config, checkpointing_context, non_loss_data_func, p2p_communicator=None,
): args.do_valid; train_step(); training_log(); checkpoint_and_decide_exit()
def evaluate_and_print_results(): pass
def get_timers(): pass
def maybe_finalize_async_save(): pass
def pretrain(): setup_model_and_optimizer(); build_train_valid_test_data_loaders(); train()
"""
ON = argparse.Namespace(nvrx_live_state="on")


class OptimizerParamScheduler:
    def __init__(self):
        self.num_steps, self.max_lr, self.optimizer, self.lr = 0, 0.1, object(), None

    def step(self, increment):
        self.num_steps += increment
        self.lr = self.max_lr / (1 + self.num_steps)


@pytest.fixture
def loop(monkeypatch):
    module = types.ModuleType("megatron.training.training")
    exec(LOOP, vars(module))
    for name in ("megatron", "megatron.training"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    args = argparse.Namespace(
        iteration=3, consumed_train_samples=24, skipped_train_samples=0, consumed_valid_samples=8, micro_batch_size=2,
        data_parallel_size=2, num_floating_point_operations_so_far=0.0, eval_interval=4, exit_interval=None, save=None,
    )  # fmt: skip
    machine = types.SimpleNamespace(
        large_value_counts={"loss": 1}, max_values={"loss": 4.0}, first_iteration_complete=True
    )
    module.args, module.machine = args, machine
    module.get_args, module.get_rerun_state_machine = lambda: args, lambda: machine
    module.get_num_microbatches, module.update_num_microbatches = lambda: 2, lambda *_, **__: None
    module.get_current_global_batch_size = module.get_current_running_global_batch_size = lambda: 8
    return module


def test_the_arguments_that_a_model_is_set_up_with_are_enough(loop):
    """Whether there are data to validate on is known later."""
    assert internals.arguments_gone_for_live_state(loop.args) == []
    del loop.args.consumed_valid_samples
    assert internals.arguments_gone_for_live_state(loop.args) == ["consumed_valid_samples"]


def test_all_functions_of_the_loop_are_replaced_once(loop):
    before = dict(vars(loop))
    (piece,) = live_wiring.wire_live_state(ON)
    assert (piece.effect, piece.missing) == ("a restart goes on from memory", "")
    replaced = {name for name in internals.LOOP if getattr(loop, name) is not before[name]}
    assert replaced == set(internals.LOOP)
    now = dict(vars(loop))
    live_wiring.wire_live_state(ON)
    assert {name: vars(loop)[name] for name in replaced} == {name: now[name] for name in replaced}


def test_the_loaders_of_a_resumed_loop_count_no_samples_of_their_own(loop):
    live_wiring.wire_live_state(ON)
    replaced = loop.build_train_valid_test_data_loaders
    assert replaced() == 3
    owner = next(cell.cell_contents for cell in replaced.__closure__ if hasattr(cell.cell_contents, "_resumed"))
    owner._resumed = True
    assert replaced() == 0, "Megatron computes the consumed samples of a later iteration itself"
    assert loop.args.iteration == 3


def test_the_functions_are_replaced_without_the_flag_and_not_with_off(loop):
    before = dict(vars(loop))
    assert live_wiring.wire_live_state(argparse.Namespace(nvrx_live_state="off")) == []
    assert dict(vars(loop)) == before
    (piece,) = live_wiring.wire_live_state(argparse.Namespace())
    assert piece.effect == "a restart goes on from memory"
    assert loop.train is not before["train"]


def refused_by_a_gpu(loop):
    return {"distributed_backend": "nccl"}, "it has not run on a GPU"


def refused_by_an_option(loop):
    return {"num_experts": 4}, "--num-experts has not been shown to be exact"


def refused_by_the_tree(loop):
    del loop.train_step
    return {}, "Megatron-LM's loop does not have train_step"


@pytest.mark.parametrize(
    "refused", [refused_by_a_gpu, refused_by_an_option, refused_by_the_tree], ids=lambda f: f.__name__
)
def test_what_is_known_before_the_script_runs_leaves_the_loop_as_it_is(loop, refused):
    arguments, reason = refused(loop)
    before = dict(vars(loop))
    (piece,) = live_wiring.wire_live_state(argparse.Namespace(**arguments))
    assert (piece.effect, piece.missing) == (f"a restart goes on from a checkpoint, not from memory ({reason})", "")
    assert dict(vars(loop)) == before


FAILED = FaultRecord(
    initial_rank=InitialRank(1), rank=1, interruption="EXCEPTION", error_type="ValueError", origin="train.py:3",
    raised_at="loss.py:9",
)  # fmt: skip


def restart(cause=FAILED, lost=(), step=4):
    return RestartRecord(1, cause, (), lost, 0, 2, True, step, step, {})


@pytest.mark.parametrize(
    ("second", "used", "distrusted"),
    [
        (restart(), True, "ValueError has come up twice at the same place"),
        (restart(), False, ""),  # it has begun from a checkpoint
        (restart(step=5), True, ""),  # a step further
        (restart(replace(FAILED, raised_at="loss.py:8")), True, ""),
        (restart(lost=(InitialRank(1),)), True, ""),  # who has failed is gone
        (restart(None), True, ""),
    ],
)
def test_memory_with_which_the_same_failure_comes_up_again_is_not_used(
    loop, monkeypatch, tmp_path, second, used, distrusted
):
    looping = live_wiring._Loop(MegatronLiveState(ON), loop, "")
    monkeypatch.setattr(live_wiring, "last_restart", restart)
    (tmp_path / internals.TRACKER).write_text("2")
    assert looping._distrusted(str(tmp_path)) == "", "the first time"
    looping._used_memory = used
    monkeypatch.setattr(live_wiring, "last_restart", lambda: second)
    assert looping._distrusted(str(tmp_path)) == distrusted


class Live:
    """State in memory that says what it is told."""

    refusal, is_behind_step = "", False

    def __init__(self):
        self.told = []

    def resume(self, model, optimizer, counters, **reasons):
        self.told.append(f"resume {model} {optimizer} {reasons}")

    def start(self, step):
        self.told.append(f"start {step}")

    def give_up(self, reason, *, alone):
        self.told.append(f"{reason}, alone={alone}")


@pytest.fixture
def looping(loop, monkeypatch):
    """The loop of a training that has begun anew: nothing was in memory."""
    monkeypatch.setattr(live_wiring, "current_call", lambda: loop.call)
    monkeypatch.setattr(live_wiring, "refused_arguments", lambda args: "")
    loop.call, loop.trained = object(), OptimizerParamScheduler()
    looping = live_wiring._Loop(Live(), loop, "")

    def load_checkpoint(ddp_model, optimizer, opt_param_scheduler, strict=True):
        return 3, 0.0

    loop.load_checkpoint = looping._load_checkpoint(load_checkpoint)
    return looping


def set_up(loop, looping):
    def setup():
        loop.load_checkpoint(ddp_model="model", optimizer="adam", opt_param_scheduler=loop.trained)
        return "model", "adam", loop.trained

    return looping._setup_model_and_optimizer(setup)()


RESUME = "resume model adam {'refused': '', 'distrusted': ''}"


def test_a_second_training_of_a_script_is_not_kept(loop, looping):
    set_up(loop, looping)
    assert looping._live.told == [RESUME, "start 3"]
    set_up(loop, looping)
    assert looping._live.told[2:] == ["the script sets up more than one training, alone=False", RESUME, "start 3"]
    loop.call = object()
    set_up(loop, looping)
    assert looping._live.told[5:] == [RESUME, "start 3"], "the next iteration sets up its own"


def test_validation_data_that_the_loop_does_not_count_are_not_kept(loop, looping):
    set_up(loop, looping)
    given = dict.fromkeys(internals._PARAMETERS["train"])
    loop.checkpoint_and_decide_exit, loop.args.do_valid = lambda: None, True
    train = looping._train(loop.train)
    train(**given)
    train(**{**given, "process_non_loss_data_func": print, "non_loss_data_func": print})
    assert looping._live.told == [RESUME, "start 3"]
    train(**{**given, "process_non_loss_data_func": print})
    assert looping._live.told[2:] == [
        "process_non_loss_data_func has validation data read that are not counted, alone=False"
    ]


@pytest.mark.parametrize("folder", [None, "", "/nowhere"])
def test_without_a_checkpoint_memory_is_used_whatever_has_failed(loop, monkeypatch, folder):
    looping = live_wiring._Loop(MegatronLiveState(ON), loop, "")
    monkeypatch.setattr(live_wiring, "last_restart", restart)
    looping._used_memory = True
    assert [looping._distrusted(folder) for _ in range(3)] == ["", "", ""]


def without_a_replaced_function(loop):
    del loop.checkpoint_and_decide_exit
    return "checkpoint_and_decide_exit"


def without_a_called_function(loop):
    del loop.get_timers
    return "get_timers"


def without_an_argument(loop):
    exec(LOOP.replace("do_valid", "validates"), vars(loop))
    return "do_valid"


def with_another_parameter(loop):
    text = LOOP.replace("valid_data_iterator", "validation_iterator")
    exec(text, vars(loop))
    return "train(valid_data_iterator)"


@pytest.mark.parametrize(
    "moved",
    [without_a_replaced_function, without_a_called_function, without_an_argument, with_another_parameter],
    ids=lambda f: f.__name__,
)
def test_where_a_name_has_moved_nothing_is_replaced_and_it_is_named(loop, moved):
    name = moved(loop)
    before = dict(vars(loop))
    (piece,) = live_wiring.wire_live_state(ON)
    assert (piece.without, piece.missing) == ("a restart goes on from a checkpoint", name)
    assert dict(vars(loop)) == before


def test_the_counters_after_a_step_are_those_that_the_loop_reaches(loop):
    scheduler = OptimizerParamScheduler()
    counters = _Counters(loop, scheduler, _Operations())
    expected = {"iteration": 4, "consumed_train_samples": 32, "skipped_train_samples": 0, "schedule": 8}
    assert counters.after_step(True) == expected
    assert counters.after_step(False) == {**expected, "schedule": 0}, "a step that is left out"


def test_counters_that_are_taken_over_are_those_of_the_interrupted_loop(loop):
    scheduler, operations = OptimizerParamScheduler(), _Operations()
    operations.note(2, 20.0)
    operations.note(3, 30.0)
    scheduler.max_lr = 0.2  # from a checkpoint
    counters = _Counters(loop, scheduler, operations)
    state = {**counters.state_dict(), **counters.after_step(True)}
    loop.machine.max_values["loss"] = 9.0
    assert state["losses"]["max_values"] == {"loss": 4.0}, "a copy"
    loop.machine.first_iteration_complete = False
    loop.args.consumed_train_samples = loop.args.iteration = loop.args.consumed_valid_samples = 0
    new = OptimizerParamScheduler()
    _Counters(loop, new, operations).load_state_dict(state)
    assert (new.num_steps, new.max_lr, new.lr) == (8, 0.2, 0.2 / 9)
    assert (loop.args.iteration, loop.args.consumed_train_samples, loop.args.consumed_valid_samples) == (4, 32, 8)
    assert loop.args.num_floating_point_operations_so_far == 40.0, "with those of the step of the vote"
    assert loop.machine.max_values == {"loss": 4.0}
    assert loop.machine.first_iteration_complete, "losses are looked at from the first step on"


def test_a_script_that_replaces_the_functions_of_checkpoints_goes_on_from_them(loop):
    loop.save_checkpoint = lambda: None
    live_wiring.wire_live_state(ON)
    replaced = loop.train_step
    owner = next(each.cell_contents for each in replaced.__closure__ if hasattr(each.cell_contents, "_resumed"))
    assert owner._kept_by_script() == ""
    loop.load_checkpoint = functools.wraps(loop.load_checkpoint)(lambda: None)
    loop.save_checkpoint = lambda: None
    reason = "the script has replaced load_checkpoint and save_checkpoint, and may keep a state of its own"
    assert owner._kept_by_script().startswith(reason)


def test_a_megatron_that_writes_more_to_a_checkpoint_goes_on_from_it(loop, monkeypatch, tmp_path):
    (tmp_path / "forked_checkpointing.py").write_text(
        "def save_checkpoint(state_dict):\n"
        "    state_dict['iteration'], found = 3, state_dict['curriculum'] == 0\n"
        "    state_dict['rng_state'] = found\n"
        "    state_dict['ema'] = {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loop.save_checkpoint = importlib.import_module("forked_checkpointing").save_checkpoint
    assert internals.kept_besides(loop) == ["ema"]
    (piece,) = live_wiring.wire_live_state(argparse.Namespace(nvrx_live_state="auto"))
    assert "a checkpoint of this Megatron-LM has ema besides" in piece.effect
