"""What a function does to a model that outlives it, before it resumes, is noticed."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # noqa: F401 - the first optimizer does; it sets an environment variable

from nvrx_core.inprocess import LiveState
from nvrx_core.inprocess.live.memory import Mark, Memory, Stamp
from nvrx_core.inprocess.live.objects import Left, Objects

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
    with pytest.raises(RuntimeError, match=r"commit\(\) before resume\(\)"):
        live.commit(1)
