"""The options become a wrapper, and wrong ones are refused before anything is started."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from nvrx_lightning.options import InProcessOptions
from nvrx_lightning.restart.preparation import stands_in

from nvrx_core.inprocess.finalize import Finalize


class Theirs(Finalize):
    def __call__(self, state: Any) -> Any:
        return state


def test_the_wrapper_gives_up_after_three_equal_failures_unless_told_otherwise():
    assert InProcessOptions().make_wrapper().no_progress_limit == 3
    assert InProcessOptions(wrapper={"no_progress_limit": None}).make_wrapper().no_progress_limit is None


@pytest.mark.parametrize(
    ("given", "soft", "hard", "barrier"),
    [
        ({}, 60, 90, 120),
        ({"soft_timeout": 300}, 300, 450, 480),
        ({"hard_timeout": 20}, 10, 20, 120),
        ({"soft_timeout": 2, "hard_timeout": 4}, 2, 4, 120),
    ],
)
def test_timeouts_that_are_not_given_fit_those_that_are(given, soft, hard, barrier):
    times = {name: timedelta(seconds=value) for name, value in given.items()}
    wrapper = InProcessOptions(**times).make_wrapper()
    assert wrapper.soft_timeout == timedelta(seconds=soft)
    assert wrapper.hard_timeout == timedelta(seconds=hard)
    assert wrapper.barrier_timeout == timedelta(seconds=barrier)


def test_plug_ins_of_the_users_are_kept_beside_ours():
    options = InProcessOptions(wrapper={"finalize": Theirs()}, max_restarts=2, min_ranks=3)
    wrapper = options.make_wrapper(finalize=Theirs())
    assert len(wrapper.finalize.instances) == 2  # type: ignore[union-attr]
    assert (wrapper.initialize.max_iterations, wrapper.initialize.min_world_size) == (3, 3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_ranks": 0},
        {"max_restarts": -1},
        {"soft_timeout": 60},
        {"resume": 3},
        {"abort": "x"},
        {"keep_initial_weights": "yes"},
        {"wrapper": {"soft_timeot": timedelta(1)}},
        {"soft_timeout": timedelta(seconds=9), "hard_timeout": timedelta(seconds=3)},
    ],
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        InProcessOptions(**wrong)


@pytest.mark.parametrize(
    ("mine", "places", "per_node", "expected"),
    [
        ((0, 0), [(0, 0), (0, 1)], True, False),  # Lightning's own does it
        ((0, 1), [(0, 1), (0, 2)], True, True),
        ((0, 2), [(0, 1), (0, 2)], True, False),
        ((1, 1), [(0, 0), (1, 1), (1, 2)], True, True),
        ((1, 1), [(0, 0), (1, 1), (1, 2)], False, False),
        ((0, 1), [(0, 1), (1, 0)], False, True),
        ((1, 0), [(0, 1), (1, 0)], False, False),
    ],
)
def test_one_rank_stands_in_for_the_one_that_prepares_data(mine, places, per_node, expected):
    assert stands_in(mine, places, per_node=per_node) is expected
