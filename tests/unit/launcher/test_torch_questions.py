"""What the launcher asks of torch; the private names that it asks for."""

from __future__ import annotations

import os

import pytest
import torch
from nvrx_launcher import torch_questions
from torch.numa import binding

from nvrx_core.errors import ConfigurationError

TWO_DEVICES = """\
from torch.numa import binding
binding._get_numa_node_index_for_gpu_index = lambda *, gpu_index: 0
binding._get_gpu_count = lambda: 2
"""


def test_torch_has_the_private_names():
    assert callable(torch._utils.cpu_count), "torch._utils.cpu_count has moved: see torch_questions.COUNT"
    assert callable(binding._get_logical_cpus_to_bind_to), "see torch_questions.PROCESSORS"


@pytest.mark.parametrize("mode", ["node", "socket"])
def test_a_worker_is_bound_where_torch_binds_it(monkeypatch, mode):
    monkeypatch.setattr(torch_questions, "PROCESSORS", TWO_DEVICES + torch_questions.PROCESSORS)
    here = frozenset(os.sched_getaffinity(0))
    assert torch_questions.processors_near_devices(mode, 2) == [here, here]


def test_without_devices_nothing_is_near():
    with pytest.raises(ConfigurationError, match=r"--numa-binding: node: .*; leave it out"):
        torch_questions.processors_near_devices("node", 1)


def test_processors_are_counted():
    assert torch_questions.count_devices("cpu") == len(os.sched_getaffinity(0))
    with pytest.raises(ConfigurationError, match="--nproc-per-node: gpu: torch finds no gpu; write a number"):
        torch_questions.count_devices("gpu")
