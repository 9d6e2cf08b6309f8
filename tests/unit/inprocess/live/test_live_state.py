"""What a function does to a model that outlives it, before it resumes, is noticed."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch._dynamo  # noqa: F401 - the first optimizer does; it sets an environment variable

from nvrx_core.inprocess import LiveState
from nvrx_core.inprocess.call.handles import PassedVotes
from nvrx_core.inprocess.live import objects as tensors
from nvrx_core.inprocess.live.memory import Mark, Memory, Stamp
from nvrx_core.inprocess.live.objects import Left, Objects
from nvrx_core.inprocess.live_state import _Ports

AT, NEXT = Stamp(0, 4), Stamp(0, 5)


def in_vote(model, optimizer):
    """Return a live state that was interrupted in a vote, with its objects and how it has left them."""
    model(torch.ones(2, 3)).sum().backward()
    objects = registered(model, optimizer)
    live = LiveState()
    live._training.memory = Memory(objects, AT, Mark(NEXT, 0, None, due=True), Mark(AT, 0, None, due=True))
    return live, objects, Left.of(objects)


def registered(model, optimizer):
    return Objects.of(model, (optimizer,), optimizer.step, shared={}, local={}, averages=())


def reaches(live, stamp):
    return live._training.memory.holding((), (), 1).reaches(stamp)


@pytest.fixture
def model():
    return torch.nn.Linear(3, 3)


@pytest.fixture
def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1.0)


def test_who_comes_back_with_its_objects_as_they_were_can_do_the_interrupted_step(model, optimizer):
    live, _, left = in_vote(model, optimizer)
    optimizer.param_groups[0]["lr"] = 2.0  # as a scheduler does that is made anew
    live._notice_changes(left, registered(model, optimizer))
    assert reaches(live, NEXT)
    assert reaches(live, AT)
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_who_has_dropped_its_gradients_cannot_do_the_interrupted_step(model, optimizer):
    live, _, left = in_vote(model, optimizer)
    optimizer.zero_grad()
    live._notice_changes(left, registered(model, optimizer))
    assert not reaches(live, NEXT)
    assert reaches(live, AT)


def test_who_has_loaded_a_checkpoint_has_lost_its_step(model, optimizer, caplog):
    live, _, left = in_vote(model, optimizer)
    model.load_state_dict(torch.nn.Linear(3, 3).state_dict())
    with caplog.at_level(logging.WARNING, "nvrx_core.inprocess"):
        live._notice_changes(left, registered(model, optimizer))
    assert not reaches(live, NEXT)
    assert not reaches(live, AT)
    assert "weight was changed before resume()" in caplog.text


def test_a_change_that_autograd_does_not_count_is_noticed_by_a_value(model, optimizer, caplog):
    live, _, left = in_vote(model, optimizer)
    model.weight.data.mul_(0.9)
    with caplog.at_level(logging.WARNING, "nvrx_core.inprocess"):
        live._notice_changes(left, registered(model, optimizer))
    assert not reaches(live, AT)
    assert "weight was changed before resume()" in caplog.text


def test_what_happens_to_another_model_does_not_matter(model, optimizer):
    live, _, left = in_vote(model, optimizer)
    with torch.no_grad():
        model.weight.add_(1)
    new = torch.nn.Linear(3, 3)
    live._notice_changes(left, registered(new, torch.optim.AdamW(new.parameters())))
    assert reaches(live, NEXT)


def test_each_iteration_resumes():
    live = LiveState()
    live._ports = SimpleNamespace(call="of another iteration")
    with pytest.raises(RuntimeError, match=r"commit\(\) before resume\(\) in this iteration"):
        live.commit(1)


class Trainer:
    """It outlives the function, which replaces its optimizer."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.model = torch.nn.Linear(3, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.model(torch.ones(2, 3)).sum().backward()

    def advance(self):
        self.optimizer.step()


def ports_for(new, monkeypatch, **found):
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    return _Ports(None, new, replicate=True, left=None, **{"failed": None, **found})


def advance(ports, objects):
    next(ports.advance(objects).__await__())()


def given(trainer, advance):
    return Objects.of(trainer.model, (trainer.optimizer,), advance, shared={}, local={}, averages=())


def test_an_advance_that_steps_the_new_optimizer_for_the_old_one_has_torn_the_objects(monkeypatch):
    trainer = Trainer()
    old = given(trainer, trainer.advance)
    trainer.reset()
    ports = ports_for(given(trainer, trainer.advance), monkeypatch)
    with pytest.raises(RuntimeError, match="steps the optimizer of the new one"):
        advance(ports, old)
    assert ports.is_changed()


def test_an_advance_of_its_own_objects_does_the_interrupted_step(monkeypatch):
    trainer = Trainer()
    old = given(trainer, trainer.optimizer.step)
    trainer.reset()
    ports = ports_for(given(trainer, trainer.optimizer.step), monkeypatch)
    advance(ports, old)
    assert old.optimizers[0].state
    assert ports.failed is None


def test_a_step_that_has_ended_is_a_change_where_an_exception_lands_behind_it(monkeypatch):
    """It would be done again."""
    trainer = Trainer()
    objects = given(trainer, trainer.optimizer.step)
    ports = ports_for(objects, monkeypatch)
    advance(ports, objects)
    assert ports.is_changed()


def test_an_interrupted_step_that_fails_twice_is_given_up(monkeypatch):
    def fail():
        raise ArithmeticError("inf")

    trainer = Trainer()
    old, new = given(trainer, fail), given(Trainer(), fail)
    first = ports_for(new, monkeypatch)
    with pytest.raises(ArithmeticError):
        advance(first, old)
    assert not first.is_changed()
    second = ports_for(new, monkeypatch, failed=first.failed)
    with pytest.raises(ArithmeticError):
        advance(second, old)
    assert second.is_changed()


def test_a_second_model_in_an_iteration_is_refused(model, optimizer, monkeypatch):
    """It would take over the tensors of the first one where both have the same layout, as with DQN."""
    live, _, _ = in_vote(model, optimizer)
    call = SimpleNamespace()
    monkeypatch.setattr("nvrx_core.inprocess.live_state.current_call", lambda: call)
    live._ports = SimpleNamespace(call=call, has_resumed=True)
    with pytest.raises(RuntimeError, match="twice in an iteration"):
        live.resume(model, optimizer, optimizer.step)


def test_a_scheduler_of_an_optimizer_is_seen(model, optimizer):
    assert not tensors.is_scheduled(registered(model, optimizer))
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    assert tensors.is_scheduled(registered(model, optimizer))


def test_what_a_rank_holds_is_told_as_it_is(model, optimizer):
    live, _, left = in_vote(model, optimizer)
    live._ports = SimpleNamespace(left=left)
    holding = live.holding()
    assert (holding.pending, holding.passed) == ((NEXT, 0), (AT, 0))
    assert live.passed_vote() == AT


def test_who_has_dropped_old_gradients_keeps_the_branch_that_it_has_come_to(model, optimizer):
    """Its vote was passed, and a fault came before the new objects were taken over."""
    live, _, left = in_vote(model, optimizer)
    begun = Mark(Stamp(1, 4), 0, None, due=False)
    live._training.memory = replace(live._training.memory, pending=begun, passed=begun)
    optimizer.zero_grad()
    live._notice_changes(left, registered(model, optimizer))
    assert reaches(live, begun.stamp)


class Recording:
    """A training that records the steps that it is given."""

    def __init__(self):
        self.memory, self.steps = Memory(), []

    async def start(self, ports, step):
        self.steps.append(step)
        objects = SimpleNamespace(device=torch.device("cpu"), parameters=(), buffers={}, shared={}, optimizers=())
        self.memory = Memory(objects)

    commit = start


@pytest.mark.parametrize("step", [np.int64(5), torch.tensor(5), True], ids=["numpy", "tensor", "bool"])
def test_a_step_of_another_integer_type_is_an_integer(step, monkeypatch):
    """It is told in an arrival, which is JSON."""
    live = LiveState()
    live._training = Recording()
    live._ports = SimpleNamespace(call=None, before=(), left=None, settled=None, communicates=False)
    monkeypatch.setattr("nvrx_core.inprocess.live_state.tensors.versions", lambda objects: ())
    live.start(step)
    live.commit(step)
    assert live._training.steps == [int(step)] * 2
    assert {type(each) for each in live._training.steps} == {int}


def test_a_step_that_is_no_integer_is_refused():
    live = LiveState()
    live._ports = SimpleNamespace(call=None)
    for call in (live.start, live.commit):
        with pytest.raises(TypeError):
            call(5.0)


def test_a_live_state_without_a_past_has_passed_no_vote():
    assert LiveState().passed_vote() == ()


class Alone:
    """A job of one rank, which trains a model in a loop of its own."""

    def __init__(self, caplog, *, shared=("scheduler",), make=None, **given):
        self.caplog, self.live, self.step = caplog, LiveState(**given), 0
        self.model = torch.nn.Linear(3, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1.0)
        make = make or (lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100))
        self.scheduler = make(self.optimizer)
        self.inside = [self.take_step]
        self.kept = SimpleNamespace(state_dict=dict, load_state_dict=dict)
        named = {name: getattr(self, name) for name in shared}
        self.live.resume(self.model, self.optimizer, lambda: [each() for each in self.inside], shared=named)
        self.live.start(0)

    def take_step(self):
        self.optimizer.step()  # also if a scheduler has wrapped it since

    def passes(self, count, *behind):
        """Train; return the warnings."""
        with self.caplog.at_level(logging.WARNING, "nvrx_core.inprocess"):
            for _ in range(count):
                self.model(torch.ones(2, 3)).sum().backward()
                self.live.commit(self.step)
                self.step += 1
                for each in behind:
                    each()
        return self.caplog.text


def test_a_scheduler_that_steps_outside_of_commit_is_named_once(caplog):
    """Of one whose learning rate changes every 100 steps, the number of its steps tells it in the second one."""
    job = Alone(caplog)
    assert job.passes(1, job.scheduler.step) == ""
    text = job.passes(4, job.scheduler.step)
    assert text.count("shared object 'scheduler' changed outside of commit()") == 1


def test_a_scheduler_that_steps_in_the_advance_is_right(caplog):
    job = Alone(caplog)
    job.inside.append(job.scheduler.step)
    assert job.passes(3) == ""


def test_a_caller_that_takes_its_schedulers_back_may_step_them_anywhere(caplog):
    job = Alone(caplog, schedules_advance=False)
    assert job.passes(3, job.scheduler.step) == ""


def test_settings_that_a_scheduler_changes_outside_of_commit_are_told(caplog):
    """As of one of a list, which is registered by an object of the user's."""
    job = Alone(caplog, shared=("kept",), make=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
    assert "the settings of an optimizer changed outside of commit()" in job.passes(2, job.scheduler.step)


def test_a_loop_may_set_the_learning_rate_of_each_step_itself(caplog):
    job = Alone(caplog, shared=(), make=lambda optimizer: None)

    def set_rate():
        job.optimizer.param_groups[0]["lr"] = 1 / (1 + job.step)

    assert job.passes(3, set_rate) == ""


def test_an_update_of_a_scaler_outside_of_commit_is_told(caplog):
    job = Alone(caplog, make=lambda optimizer: torch.amp.GradScaler("cpu"))
    job.scheduler.scale(torch.ones(()))
    job.inside = [lambda: job.scheduler.step(job.optimizer)]
    assert "shared object 'scheduler' changed outside of commit()" in job.passes(3, job.scheduler.update)


def test_an_update_of_a_scaler_in_the_advance_is_right(caplog):
    job = Alone(caplog, make=lambda optimizer: torch.amp.GradScaler("cpu"))
    job.scheduler.scale(torch.ones(()))
    job.inside = [lambda: job.scheduler.step(job.optimizer), job.scheduler.update]
    assert job.passes(3) == ""


def test_a_scheduler_that_is_made_after_resume_is_told(caplog):
    job = Alone(caplog, shared=(), make=lambda optimizer: None)
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 100)
    job.inside.append(scheduler.step)
    assert job.passes(2).count("an optimizer has a scheduler, and resume() got no `shared`") == 1


def test_a_change_is_told_after_another_warning(caplog):
    job = Alone(caplog, shared=(), make=lambda optimizer: None)
    with caplog.at_level(logging.WARNING, "nvrx_core.inprocess"):
        job.live.commit(0)
    job.step = 1
    assert "has a gradient in commit()" in caplog.text
    with torch.no_grad():
        job.model.weight.add_(1)
    assert "weight was changed outside of commit()" in job.passes(1)


@pytest.mark.parametrize("replicate", [True, False])
def test_a_loop_runs_as_one_process_without_a_process_group(caplog, replicate):
    """As a debugger has it, or a run on a laptop."""
    job = Alone(caplog, replicate=replicate)
    job.inside.append(job.scheduler.step)
    before = job.model.weight.clone()
    assert job.passes(2) == ""
    assert not torch.equal(before, job.model.weight)
    assert job.scheduler.last_epoch == 2
    assert job.live.resume(job.model, job.optimizer, job.optimizer.step) is None, "nothing is kept"


class Call:
    """The handle of a wrapped function, as far as a live state uses it before its first vote."""

    iteration = 0

    def __init__(self):
        self._handles = SimpleNamespace(votes=PassedVotes())

    def atomic(self):
        return None


def test_a_wrapped_function_that_resumes_without_a_process_group_is_told(model, optimizer, monkeypatch):
    call = Call()
    monkeypatch.setattr("nvrx_core.inprocess.live_state.current_call", lambda: call)
    with pytest.raises(RuntimeError, match=r"resume\(\) without a process group: call init_process_group\(\)"):
        LiveState().resume(model, optimizer, optimizer.step)


@pytest.mark.parametrize(("inside", "told"), [(True, 1), (False, 0)])
def test_a_live_state_that_is_made_inside_of_the_function_is_told(model, optimizer, monkeypatch, caplog, inside, told):
    outside, call = LiveState(), Call()
    monkeypatch.setattr("nvrx_core.inprocess.live_state.current_call", lambda: call)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    live = LiveState() if inside else outside
    with caplog.at_level(logging.WARNING, "nvrx_core.inprocess"), pytest.raises(ValueError, match="Default"):
        live.resume(model, optimizer, optimizer.step)  # there is no group after all
    assert caplog.text.count("was made inside of the wrapped function") == told


@pytest.mark.parametrize(
    ("starts", "text"), [(True, "start with different steps: 0, 5"), (False, "commit different steps: -1, 4")]
)
def test_different_steps_are_told_as_they_were_given(model, optimizer, monkeypatch, starts, text):
    ports = ports_for(registered(model, optimizer), monkeypatch)
    ports.starts = starts
    with pytest.raises(RuntimeError, match=f"ranks {text}"):
        ports._refuse_different([4, -1, 4])


class Groups:
    """How many collectives the groups have begun."""

    def __init__(self, monkeypatch):
        self.begun = 0
        monkeypatch.setattr("nvrx_core.inprocess.live_state.counts_of_groups", lambda: {"0": self.begun})

    def reduce(self):
        self.begun += 1


def test_an_advance_that_communicates_each_time_is_told_once(caplog, monkeypatch):
    groups, job = Groups(monkeypatch), Alone(caplog, shared=(), make=lambda optimizer: None)
    job.inside.append(groups.reduce)
    assert job.passes(2) == "", "they may be those of a thread"
    assert job.passes(3).count("communicates with other ranks") == 1


def test_a_collective_of_a_thread_during_an_advance_is_none_of_it(caplog, monkeypatch):
    groups, job = Groups(monkeypatch), Alone(caplog, shared=(), make=lambda optimizer: None)
    job.inside.append(groups.reduce)
    job.passes(1)
    job.inside.append(groups.reduce)
    assert job.passes(3) == ""


def test_an_advance_that_has_begun_no_collective_at_first_is_not_asked_again(caplog, monkeypatch):
    job = Alone(caplog, shared=(), make=lambda optimizer: None)
    job.passes(1)
    monkeypatch.setattr("nvrx_core.inprocess.live_state.counts_of_groups", lambda: pytest.fail("asked"))
    assert job.passes(3) == ""


def replicas(monkeypatch, model, ranks):
    """Return ports of rank 0, whose shard the given other ranks have as well, or not; and what was hashed."""
    hashed = []
    objects = registered(model, torch.optim.SGD(model.parameters(), lr=0.1))
    ports = ports_for(objects, monkeypatch)
    ports._is_alone = False
    monkeypatch.setattr(
        ports, "_gather_numbers",
        lambda *mine: [mine, *(mine if same else (number, *mine[1:]) for number, same in enumerate(ranks))],
    )  # fmt: skip
    monkeypatch.setattr("nvrx_core.inprocess.live_state.tensors.digests", lambda objects: hashed.append(1) or (7,))
    return ports, objects, hashed


@pytest.mark.parametrize(("ranks", "times"), [((), 0), ((False, False), 0), ((False, True), 1)])
def test_parameters_are_hashed_only_where_two_ranks_have_the_same(monkeypatch, model, ranks, times):
    ports, objects, hashed = replicas(monkeypatch, model, ranks)
    assert ports.different_replicas(objects, 3) == ""
    assert len(hashed) == times


def test_an_interrupted_step_that_would_wait_for_others_is_given_up(monkeypatch):
    """Those who have done it have its parameters; where nobody has them, a checkpoint has."""
    trainer = Trainer()
    old = given(trainer, trainer.optimizer.step)
    trainer.reset()
    ports = ports_for(given(trainer, trainer.optimizer.step), monkeypatch)
    ports.old_communicates = True
    with pytest.raises(RuntimeError, match="the interrupted step cannot be done"):
        advance(ports, old)
    assert ports.is_changed()
    assert ports.communicates, "also after a further fault"
