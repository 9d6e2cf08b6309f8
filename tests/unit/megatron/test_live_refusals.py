"""What is not kept in memory, and why."""

from __future__ import annotations

import argparse

import pytest
import torch
from nvrx_megatron import internals, live_state
from nvrx_megatron.live_refusals import refused_arguments, refused_objects

PROVED = {
    "transformer_impl": "local", "optimizer": "adam", "context_parallel_size": 1, "expert_model_parallel_size": 1,
    "rerun_mode": "validate_results", "dataloader_type": "single", "fp8": None, "num_experts": None,
    "cuda_graph_impl": "none", "iterations_to_skip": [], "overlap_param_gather": False,
}  # fmt: skip


def test_arguments_that_are_proved_are_not_refused():
    assert refused_arguments(argparse.Namespace(**PROVED)) == ""
    assert refused_arguments(argparse.Namespace()) == "", "a version that lacks an option does not use it"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fp8", "hybrid"), ("optimizer_cpu_offload", True), ("use_precision_aware_optimizer", True),
        ("overlap_param_gather", True), ("num_experts", 2), ("use_torch_fsdp2", True), ("qk_clip", True),
        ("perform_rl_step", True), ("iterations_to_skip", [3]), ("virtual_pipeline_model_parallel_size", 2),
    ],
)  # fmt: skip
def test_an_option_that_is_not_proved_is_named(name, value):
    refused = refused_arguments(argparse.Namespace(**{**PROVED, name: value}))
    assert refused == f"--{name.replace('_', '-')} has not been shown to be exact"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transformer_impl", "transformer_engine"), ("context_parallel_size", 2), ("expert_model_parallel_size", 4),
        ("dataloader_type", "external"), ("dataloader_type", "cyclic"), ("optimizer", "muon"),
        ("rerun_mode", "report_stats"), ("cuda_graph_impl", "local"),
    ],
)  # fmt: skip
def test_an_option_with_a_value_that_is_not_proved_is_named_with_it(name, value):
    refused = refused_arguments(argparse.Namespace(**{**PROVED, name: value}))
    assert refused == f"--{name.replace('_', '-')} {value} has not been shown to be exact"


def test_a_backend_of_gpus_is_refused():
    assert refused_arguments(argparse.Namespace(**PROVED, distributed_backend="gloo")) == ""
    assert refused_arguments(argparse.Namespace(**PROVED, distributed_backend="nccl")) == "it has not run on a GPU"


def test_a_megatron_core_that_lacks_a_name_is_refused_by_the_name():
    assert refused_objects([], None) == (
        "this megatron-core does not have MixedPrecisionOptimizer.step_with_ready_grads"
    ), "this process has imported none"


def test_what_cannot_be_examined_is_refused(monkeypatch):
    monkeypatch.setattr(internals, "names_gone_for_live_state", lambda: "")
    assert refused_objects([], None).startswith("the model cannot be examined: ")
    monkeypatch.setattr(internals, "parallelism_besides", lambda: ["context", "expert"])
    assert refused_objects([], None) == "context and expert parallelism has not been shown to be exact"


def test_large_buffers_that_would_go_with_each_vote_are_refused(monkeypatch):
    for name, found in (("names_gone_for_live_state", ""), ("parallelism_besides", []), ("is_data_parallel", True)):
        monkeypatch.setattr(internals, name, lambda *_, found=found: found)
    model = torch.nn.Linear(1, 1)
    model.ddp_config = argparse.Namespace()
    model.register_buffer("cache", torch.zeros(1 << 20), persistent=False)
    assert "of buffers" not in refused_objects([model], None), "it is in no checkpoint either"
    model.register_buffer("table", torch.zeros(1 << 19))
    assert refused_objects([model], None) == "2.0 MB of buffers would be copied to all ranks at each step"


def test_a_model_whose_state_dict_raises_is_refused(monkeypatch):
    class Model(torch.nn.Linear):
        def state_dict(self, *args, **kwargs):
            raise NotImplementedError("use sharded_state_dict")

    monkeypatch.setattr(live_state, "refused_objects", lambda *_: "")
    for name, found in (("chained_optimizers", []), ("part_of_model", 0), ("is_distributed", False)):
        monkeypatch.setattr(internals, name, lambda *_, found=found: found)
    chunk = argparse.Namespace(module=Model(1, 1))
    assert live_state._refused([chunk], None) == (
        "the model cannot be examined: NotImplementedError: use sharded_state_dict"
    )
