"""Texts of values: equal if and only if the values are, bit by bit."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from nvrx_lightning.verification.digests import contents, entries, generators

DIFFERENT = [
    (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])),
    (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])),
    (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float16)),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    (torch.tensor(0.1), torch.tensor(0.2)),
    (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse()),
    (np.zeros(2), np.ones(2)),
    ([1], [1, 2]), ((1,), [1]), ({1: 2}, {1: 3}), ({1, 2}, {1, 3}), (deque([1]), deque()), ("a" * 500, "a" * 499 + "b"),
    (list(range(400)), [*range(399), 0]),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_values_have_different_texts(one, other):
    assert contents(one) == contents(one)
    assert contents(one) != contents(other)


def test_a_transposed_tensor_is_equal_to_a_contiguous_one():
    assert contents(torch.arange(6.0).reshape(2, 3).T) == contents(torch.arange(6.0).reshape(2, 3).T.contiguous())


def test_what_cannot_be_compared_has_no_text():
    assert [contents(each) for each in (object(), [object()], {"a": object()})] == [None, None, None]


def test_the_leaves_of_a_nested_state_have_their_paths():
    state = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}], "none": {}, "no": object()}
    assert entries(state) == {"state.0.step": "3.0", "param_groups.0.lr": "0.1", "none": "empty"}


def test_a_drawn_number_changes_the_text_of_the_generators():
    before = torch.get_rng_state()
    text = generators()
    torch.rand(1)
    assert generators() != text
    torch.set_rng_state(before)
    assert generators() == text
