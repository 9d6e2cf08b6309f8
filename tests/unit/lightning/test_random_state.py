"""Random numbers go on from a state that was taken."""

from __future__ import annotations

import random

import numpy
import torch
from nvrx_lightning.restart.random_state import RandomState


def draw() -> tuple[float, float, float]:
    return random.random(), numpy.random.random(), torch.rand(1).item()


def test_all_generators_go_on_from_a_state():
    state = RandomState.now()
    drawn = [draw(), draw()]
    state.restore()
    assert [draw(), draw()] == drawn
