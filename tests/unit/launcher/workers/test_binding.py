"""Bindings of workers to processors and memory."""

from __future__ import annotations

import os

import pytest
from nvrx_launcher.arguments import parse_arguments
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.binding import Binding, bindings, processors_of

from nvrx_core.errors import ConfigurationError


def options(*argv, **environ):
    given = parse_arguments(["--nproc-per-node", "2", *argv, "train.py"], environ)[0]
    return LaunchOptions.of(given, lambda _: 2, environ)


def nothing(mode, workers):
    raise AssertionError(mode, workers)


def test_lists_of_processors_are_the_kernels():
    assert processors_of("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert processors_of("\n") == frozenset()


def test_nothing_is_bound_unless_it_is_asked_for():
    assert bindings(options(), True, nothing) == [None, None]


def test_torch_is_asked_for_its_modes():
    near = [frozenset({0}), frozenset({1})]
    found = bindings(options("--numa-binding", "exclusive"), True, lambda mode, n: near if mode == "exclusive" else [])
    assert found == [Binding(each) for each in near]


def test_the_workers_of_a_nodes_gpus_share_it():
    here = frozenset(os.sched_getaffinity(0))
    strict = bindings(options(NVRX_GPUS_PER_NUMA="2"), True, nothing)
    assert [each.processors for each in strict] == [here, here]
    loose = bindings(options(NVRX_GPUS_PER_NUMA="2"), False, nothing)
    assert [each.memory for each in loose] == [None, None]


def test_a_node_that_is_not_there_is_named():
    with pytest.raises(ConfigurationError, match="NVRX_GPUS_PER_NUMA: there is no NUMA node 1"):
        bindings(options(NVRX_GPUS_PER_NUMA="1"), True, nothing)
