"""Megatron-LM's flags: names, defaults, rules, and what becomes of them."""

from __future__ import annotations

import argparse

import pytest
from nvrx_megatron import add_arguments, megatron_rank_assignment, ranks
from nvrx_megatron.arguments import InprocessArguments, inprocess_arguments, take_own_arguments

from nvrx_core.errors import ParameterError

FLAGS = {
    "restart": False, "max-iterations": None, "monitor-thread-interval": 1.0, "monitor-process-interval": 1.0,
    "progress-watchdog-interval": 1.0, "heartbeat-interval": 30, "soft-timeout": 60, "hard-timeout": 90,
    "heartbeat-timeout": 60, "barrier-timeout": 120, "completion-timeout": 120, "termination-grace-time": 1,
    "granularity": "node", "active-world-size": 4, "empty-cuda-cache": False,
}  # fmt: skip
"""The flags of core_v0.16.1 with their defaults, but for `--inprocess-last-call-wait`."""


@pytest.fixture(autouse=True)
def four_ranks(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(ranks, "ranks_of_a_node", lambda: 2)


def parse(*words):
    return add_arguments(argparse.ArgumentParser()).parse_args(words)


def test_the_flags_are_those_of_megatron_lm():
    given = vars(parse())
    assert given.pop("inprocess_last_call_wait") == 0
    assert given.pop("nvrx_live_state") == "auto"
    assert given == {f"inprocess_{name.replace('-', '_')}": default for name, default in FLAGS.items()}


def test_each_flag_arrives():
    words = ["--inprocess-restart", "--inprocess-empty-cuda-cache", "--inprocess-granularity", "rank"]
    times = [name for name in FLAGS if name.endswith(("interval", "timeout", "time"))]
    words += [word for name in times for word in (f"--inprocess-{name}", "7.5")]
    words += ["--inprocess-max-iterations", "9", "--inprocess-active-world-size", "3", "--inprocess-last-call-wait=2"]
    given = inprocess_arguments(parse(*words), words)
    assert given == InprocessArguments(
        restart=True, empty_cuda_cache=True, granularity="rank", max_iterations=9, active_world_size=3,
        last_call_wait=2, **{name.replace("-", "_"): 7.5 for name in times},
    )  # fmt: skip


def test_the_wait_for_late_faults_counts_only_when_it_is_asked_for():
    upstream = argparse.Namespace(inprocess_restart=True, inprocess_last_call_wait=1, inprocess_active_world_size=4)
    assert inprocess_arguments(upstream, []).last_call_wait == 0
    assert inprocess_arguments(upstream, ["--inprocess-last-call-wait", "1"]).last_call_wait == 1


def test_arguments_of_a_parser_without_the_flags_mean_no_restart():
    given = inprocess_arguments(argparse.Namespace(), [])
    assert (given.restart, given.active_world_size) == (False, 4)


@pytest.mark.parametrize(
    ("name", "value"), [("active_world_size", 0), ("active_world_size", 5), ("granularity", "pod")]
)
def test_a_value_that_cannot_be_is_refused_with_its_flag(name, value):
    with pytest.raises(ParameterError, match="--inprocess-" + name.replace("_", "-")):
        InprocessArguments(**{name: value})


@pytest.mark.parametrize("text", ["0", "four", "-1"])
def test_a_world_size_that_is_none_is_named(monkeypatch, text):
    monkeypatch.setenv("WORLD_SIZE", text)
    with pytest.raises(ValueError, match=f"WORLD_SIZE='{text}'"):
        parse()


def test_a_flag_that_is_there_already_is_refused():
    with pytest.raises(argparse.ArgumentError):
        add_arguments(add_arguments(argparse.ArgumentParser()))


def test_granularity_node_keeps_nodes_whole():
    tree = megatron_rank_assignment(InprocessArguments(active_world_size=2))
    assert [(layer.min_ranks, layer.max_ranks) for layer in tree.layers] == [(2, 2), (2, 2)]


def test_granularity_rank_has_the_root_alone():
    tree = megatron_rank_assignment(parse("--inprocess-granularity", "rank", "--inprocess-active-world-size", "3"))
    assert [(layer.min_ranks, layer.max_ranks) for layer in tree.layers] == [(3, 3)]


def test_an_active_world_size_that_splits_a_node_is_refused():
    with pytest.raises(ParameterError, match="a multiple of the 2 ranks of a node"):
        megatron_rank_assignment(InprocessArguments(active_world_size=3))


def test_nvrxs_own_flag_is_taken_from_the_command_line_that_megatron_lm_parses():
    words = ["pretrain_gpt.py", "--lr", "1e-3", "--nvrx-live-state", "on", "--nvrx-live", "x"]
    assert take_own_arguments(words).nvrx_live_state == "on"
    assert words == ["pretrain_gpt.py", "--lr", "1e-3", "--nvrx-live", "x"]
    assert take_own_arguments(words).nvrx_live_state == "auto"
    assert inprocess_arguments(parse("--nvrx-live-state", "off"), []).live_state == "off"
    assert inprocess_arguments(argparse.Namespace(), []).live_state == "auto", "without the flag"
    with pytest.raises(ParameterError, match="auto, on or off"):
        InprocessArguments(live_state="maybe")
