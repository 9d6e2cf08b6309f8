"""From which state in memory all ranks go on, by what each of them has."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from types import SimpleNamespace
from typing import Any

import lightning.pytorch
import numpy
import pytest
import torch
from nvrx_lightning.restart.checkpoint import SavedCheckpoints
from nvrx_lightning.restart.memory import (
    FitMemory,
    TrainerState,
    _failure,
    _has_own_step,
    _have_hooks,
    _other_state,
    _persistent_buffers,
    checked,
)
from nvrx_lightning.restart.memory_choice import NOTHING, BatchStage, Choice, Chosen, Failures, Kept, choose
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torchmetrics import MeanMetric

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.live.memory import Holding, MemoryLost, Stamp
from nvrx_core.inprocess.restart_record import RestartRecord

REPLICA = (5,)
SHARDS = ((0, 2, 5), (1, 2, 5))
VOTE, VALIDATION, ENDED = BatchStage
FAILED, OTHERWISE = (("RuntimeError", "train.py:4", "model.py:8"), ("ValueError", "train.py:4", "model.py:8"))


def has(step: int, *stages: BatchStage, draws: bool = False, rank: int = 0, **more: Any) -> Kept:
    """A rank that has passed the vote of a step and done it, with states of its Trainer at these stages."""
    stamp, shards = Stamp(0, step), more.pop("shards", (REPLICA, REPLICA))
    mark, shard = (stamp, rank), shards[min(rank, len(shards) - 1)]
    holding = Holding(stamp, more.pop("pending", mark), mark, False, shard, shard, len(shards))
    return Kept(holding, shards, tuple((step, stage, draws and stage is not VOTE) for stage in stages), **more)


def test_the_last_stage_that_all_have_is_chosen():
    all_ended = has(3, VOTE, VALIDATION, ENDED), has(3, VOTE, VALIDATION, ENDED, rank=1)
    assert choose(all_ended) == Choice(3, ENDED, 0, ())
    assert choose((has(3, VOTE, VALIDATION, ENDED), has(3, VOTE, VALIDATION, rank=1))) == Choice(3, VALIDATION, 0, ())
    assert choose((has(3, VOTE, ENDED), has(3, VOTE, rank=1))) == Choice(3, VOTE, 0, ())


def test_the_newest_step_is_that_of_any_vote_that_was_passed():
    behind = Kept(
        Holding(Stamp(0, 3), (Stamp(0, 4), 1), (Stamp(0, 3), 1), False, REPLICA, REPLICA, 2), (REPLICA, REPLICA),
        ((3, VOTE, False), (3, ENDED, False), (4, VOTE, False)),
    )  # fmt: skip
    assert choose((has(4, VOTE), behind)) == Choice(4, VOTE, 0, ())


def test_a_rank_that_takes_the_place_of_a_lost_one_gets_the_state_from_the_lowest_that_has_it():
    assert choose((Kept(), has(3, VOTE, ENDED, rank=1))) == Choice(3, ENDED, 1, (0,))
    assert choose((has(3, VOTE, ENDED), Kept(), has(3, VOTE, rank=1))) == Choice(3, VOTE, 0, (1,))


def test_a_rank_without_parameters_that_has_voted_has_its_own_state():
    """It was interrupted in the optimizer's step."""
    mark = (Stamp(0, 3), 1)
    torn = Kept(Holding(Stamp(0, 2), mark, mark, True, REPLICA, REPLICA, 2), (REPLICA,) * 2, ((3, VOTE, False),))
    assert choose((has(3, VOTE, needs_batch=True), torn)) == Choice(3, VOTE, 0, ())
    assert choose((has(3, VOTE, ENDED, needs_batch=True), torn)) == Choice(3, VOTE, 0, ())


def test_a_rank_that_was_interrupted_in_the_vote_that_begins_an_iteration_has_its_own_state():
    before, begun = Stamp(0, 3), Stamp(1, 3)
    held = (
        Holding(begun, None, (begun, 0), False, REPLICA, REPLICA, 2),
        Holding(before, None, (before, 1), False, REPLICA, REPLICA, 2, (begun, 1)),
    )
    kept = tuple(Kept(each, (REPLICA,) * 2, ((3, VOTE, False),), needs_batch=True) for each in held)
    assert choose(kept) == Choice(3, VOTE, 0, ())
    assert choose(tuple(Kept.read(each.written()) for each in kept)) == Choice(3, VOTE, 0, ())


def test_random_numbers_of_a_lost_rank_are_known_at_the_vote_alone():
    drawn = has(3, VOTE, VALIDATION, ENDED, draws=True)
    assert choose((drawn, has(3, VOTE, VALIDATION, ENDED, draws=True, rank=1))) == Choice(3, ENDED, 0, ())
    assert choose((drawn, Kept())) == Choice(3, VOTE, 0, (1,))


def test_a_lost_rank_cannot_end_a_batch_that_hooks_of_the_user_ask_for():
    found = choose((has(3, VOTE, needs_batch=True), Kept()))
    assert found == "a rank was lost before the batch of step 3 had ended, and its on_train_batch_end needs the batch"
    ended = has(3, ENDED, draws=True)
    assert "a rank was lost before the batch" in str(choose((ended, Kept())))


def test_replicas_go_on_in_a_world_of_another_size_and_shards_do_not():
    both = has(3, ENDED, shards=(REPLICA,) * 3), has(3, ENDED, rank=1, shards=(REPLICA,) * 3)
    assert choose(both) == Choice(3, ENDED, 0, ())
    sharded = tuple(has(3, ENDED, rank=rank, shards=SHARDS) for rank in range(2))
    assert choose(sharded) == Choice(3, ENDED, 0, ())
    assert choose(sharded[:1]) == "the parameters are sharded, and of 2 ranks 1 are left"


def test_parameters_that_the_optimizer_got_since_are_those_of_all_replicas():
    more = dataclasses.replace(has(3, ENDED), shards=((7,), (7,)))
    assert choose((more, more)) == Choice(3, ENDED, 0, ())
    assert choose((more, Kept())) == Choice(3, ENDED, 0, (1,))


def test_a_shard_that_no_rank_has_is_named():
    found = choose((has(3, ENDED, shards=SHARDS), Kept()))
    assert found == "step 3 is not whole in memory: no rank has shard [1, 2] of it any more"
    torn = Kept(Holding(Stamp(0, 3), None, (Stamp(0, 3), 0), True, REPLICA, REPLICA), (REPLICA,))
    assert choose((torn,)) == "step 3 is not whole in memory: no rank has the parameters of it any more"


def test_without_a_step_there_is_nothing_to_choose():
    begun = has(0)
    assert choose((Kept(), Kept())) == NOTHING
    assert choose((begun, begun)) == NOTHING


def test_a_step_that_lost_ranks_alone_had_is_named():
    """A rank was to take it over, and has not: the others were lost before."""
    taking = Kept(begun=12)
    for kept in ((Kept(), taking), (has(0), dataclasses.replace(has(0), begun=12))):
        assert choose(kept) == "no rank has the state of step 12 in memory any more"


def test_what_one_rank_refuses_holds_for_all():
    assert choose((has(3, ENDED), has(3, ENDED, rank=1, refusal="manual optimization"))) == "manual optimization"


def test_a_state_that_a_rank_could_not_copy_counts_for_its_step_alone():
    """A rank that has not copied it would take that of another one, whose callbacks have other states."""
    ahead = dataclasses.replace(has(3, ENDED, rank=1), unkept=((4, "it cannot be copied"),))
    assert choose((has(3, ENDED), ahead)) == Choice(3, ENDED, 0, ())
    passed = dataclasses.replace(has(4, rank=1), unkept=((4, "it cannot be copied"),))
    assert choose((has(4, VOTE, ENDED), passed)) == "it cannot be copied"


def test_what_a_rank_has_told_is_read_back():
    told = (
        has(3, VOTE, ENDED, draws=True, needs_batch=True),
        Kept(begun=3, saved=(("a.ckpt", 3),), unkept=((3, "no"),)),
        has(3, pending=None),
    )
    for kept in told:
        assert Kept.read(kept.written()) == kept


def test_the_last_attempt_before_the_job_is_ended_does_not_go_on_from_memory():
    failures = Failures(3)
    assert failures.ended(FAILED, 13, None) is None
    assert failures.ended(FAILED, 13, 12) is None
    assert failures.ended(FAILED, 13, 12) == 12
    ended = dataclasses.replace(has(12, VOTE, ENDED), exhausted=12)
    found = choose((ended, has(12, VOTE, ENDED, rank=1)))
    assert found == "attempts from step 12 have failed alike, without another step"
    assert choose((has(13, VOTE, ENDED), dataclasses.replace(has(13, VOTE, rank=1), exhausted=12))) == Choice(
        13, VOTE, 0, ()
    )


def test_attempts_from_another_step_or_with_another_fault_are_counted_anew():
    failures = Failures(3)
    for failure in ((FAILED, 13, 12), (OTHERWISE, 13, 12), (OTHERWISE, 14, 12), (OTHERWISE, 14, 13)):
        assert failures.ended(*failure) is None
    assert not any(Failures(None).ended(OTHERWISE, 14, 13) for _ in range(9))


def test_attempts_that_a_lost_rank_has_ended_are_not_counted():
    failures = Failures(3)
    assert [failures.ended(None, 13, 12) for _ in range(4)] == [None] * 4
    assert [failures.ended(each, 13, 12) for each in (FAILED, None, FAILED, FAILED)] == [None, None, None, 12]


def test_a_failure_at_another_place_is_another_failure():
    failures = Failures(3)
    elsewhere = ("RuntimeError", "train.py:4", "model.py:9")
    assert [failures.ended(each, 13, 12) for each in (FAILED, elsewhere, FAILED)] == [None] * 3


def restart(cause: FaultRecord | None, lost: tuple[int, ...] = ()) -> RestartRecord:
    return RestartRecord(
        number=1, cause=cause, culprits=(), lost=lost, rank=0, world_size=2, active=True, step=None, highest_step=13,
        phases={},
    )  # fmt: skip


def test_only_the_fault_of_a_rank_that_stays_is_a_failure():
    place = {"initial_rank": 1, "rank": 1, "origin": "train.py:4", "raised_at": "model.py:8"}
    stalled = FaultRecord(interruption="SOFT_TIMEOUT", **place)
    raised = FaultRecord(interruption="EXCEPTION", error_type="RuntimeError", **place)
    assert _failure(restart(stalled)) == ("SOFT_TIMEOUT", "train.py:4", "model.py:8")
    assert _failure(restart(raised)) == FAILED
    assert _failure(restart(stalled, lost=(1,))) is None
    assert _failure(restart(None)) is None


def test_a_state_that_fails_at_one_stage_of_each_step_is_given_up_though_another_stage_succeeds():
    trainer = SimpleNamespace(world_size=2, lightning_module=torch.nn.Linear(1, 1))
    memory = FitMemory(trainer, "lightning.pytorch", on=False)

    def failing() -> TrainerState:
        raise ValueError("not at the end")

    for step in (1, 2):
        assert not memory._unfit
        memory._states, memory._is_committed = {step: {}}, True
        memory.reached(VALIDATION, functools.partial(TrainerState, step, {}, []))
        memory.reached(ENDED, failing)
    assert memory._unfit == "the state of the Trainer cannot be copied: ValueError: not at the end"
    assert memory._unkept[2] == memory._unfit


@pytest.mark.parametrize(
    "state",
    [numpy.zeros(5 << 19), torch.zeros(5 << 20), deque([b"0" * (20 << 20)]), {"of": {b"0" * (20 << 20)}}],
    ids=["an array", "a tensor", "a deque", "a set"],
)
def test_a_state_that_is_too_large_to_be_copied_at_each_step_is_refused(state):
    with pytest.raises(MemoryLost, match=r"^that of large has 20 MB, more than 16$"):
        checked({"small": {"count": 1}, "large": state})


def test_nobody_pays_for_large_states_and_unknown_objects_that_has_not_asked_for_them():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    plain = {
        "one": {"seen": [0, 1.5, "a", None], (1, 2): {numpy.float32(1)}},
        "other": {"losses": deque([torch.ones(2)])},
    }
    assert checked(plain, by_default=True) is plain
    with pytest.raises(MemoryLost, match=r"^that of one has 2 MB, more than 1$"):
        checked({"one": torch.zeros(2 << 18)}, by_default=True)
    with pytest.raises(MemoryLost, match=r"^that of one has more than 2000 items$"):
        checked({"one": [0.5] * 2001}, by_default=True)
    scheduler = {"StepLR 0": {"after": [torch.optim.lr_scheduler.StepLR(optimizer, 1)]}}
    assert checked(scheduler) is scheduler
    with pytest.raises(MemoryLost, match=r"^that of StepLR 0 has an object of torch.optim.lr_scheduler.StepLR$"):
        checked(scheduler, by_default=True)


def test_a_step_that_was_replaced_in_an_optimizer_is_known_and_that_of_a_scheduler_is_none():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert not _has_own_step(optimizer)
    optimizer.step = lambda closure=None: closure()  # type: ignore[method-assign]
    assert _has_own_step(optimizer)


def test_what_a_state_has_besides_parameters_and_buffers_is_named():
    metric = MeanMetric()
    metric.persistent(True)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1), metric)
    assert _other_state(model) == ""

    class Counting(torch.nn.Linear):
        def get_extra_state(self) -> int:
            return 3

    model.append(Counting(1, 1))
    assert (
        _other_state(model) == "the state of the module has 3._extra_state, which is neither a parameter nor a buffer"
    )


def test_states_that_are_too_large_together_are_refused():
    states = {name: torch.zeros(size << 18) for name, size in (("one", 9), ("other", 8))}
    with pytest.raises(MemoryLost, match=r"^that of one has 9 MB, and all have 17, more than 16$"):
        checked(states)
    assert checked({"other": states["other"]})


def test_the_choice_is_read_back_as_rank_0_has_told_it():
    kept = (has(3, VOTE, ENDED), dataclasses.replace(Kept(), saved=(("b.ckpt", 2), ("a.ckpt", 1))))
    chosen = Chosen.of(kept)
    assert chosen == Chosen(Choice(3, ENDED, 0, (1,)), (("a.ckpt", 1), ("b.ckpt", 2)))
    assert Chosen.read(chosen.written()) == chosen
    nothing = Chosen.of((Kept(), Kept()))
    assert Chosen.read(nothing.written()) == nothing == Chosen(NOTHING, ())


def test_what_replicas_tell_does_not_grow_with_their_number():
    assert len(has(3, VOTE, ENDED, shards=(REPLICA,) * 5000).written()) < 1000


def test_rank_0_alone_reads_what_all_ranks_have_kept(monkeypatch):
    values, read = {f"kept/{rank}": Kept().written() for rank in range(3)}, list[str]()
    store = SimpleNamespace(set=values.__setitem__, wait=lambda keys: None)
    store.get = lambda key: read.append(key) or values[key]
    store.multi_get = lambda keys: [store.get(key) for key in keys]
    monkeypatch.setattr("nvrx_lightning.restart.memory.dist.PrefixStore", lambda prefix, store: store)
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(parallel_devices=[torch.device("cpu")]),
        world_size=3,
        callbacks=[],
        lightning_module=None,
    )
    for rank in (0, 2):
        memory = FitMemory(trainer, lightning.pytorch.__name__, on=True)
        assert memory.choose(store, rank, 3, SavedCheckpoints()) == ""
    assert read == ["kept/0", "kept/1", "kept/2", "chosen", "chosen"]


def test_hooks_before_a_step_are_those_of_the_optimizer_and_of_all():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    assert not _have_hooks([optimizer])
    for register in (register_optimizer_step_pre_hook, optimizer.register_step_pre_hook):
        hook = register(lambda *_: None)
        try:
            assert _have_hooks([optimizer])
        finally:
            hook.remove()


def test_the_persistent_buffers_of_a_module_do_not_depend_on_a_state_dict_of_its_own():
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)
            self.register_buffer("kept", torch.ones(1))
            self.register_buffer("volatile", torch.ones(1), persistent=False)

        def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
            return {}

    expected = {"kept", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert _persistent_buffers(Model()).keys() == expected
