"""Checks, in a process that has imported megatron-core, the undocumented names that nvrx uses."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from datetime import timedelta

import torch
from nvrx_megatron import internals, state
from nvrx_megatron.arguments import InprocessArguments
from nvrx_megatron.restart import wrapper_for

from examples.megatron import on_cpu
from nvrx_core.inprocess.initialize import RetryController

__all__: list[str] = []


def missing() -> Iterator[str]:
    """The names that are missing or have changed."""
    for name in internals.CORE_STATE:
        importlib.import_module(name)
    for module, name in internals.DESTROYERS:
        if ".core." in module:
            function = getattr(importlib.import_module(module), name, None)
            if function is None or any(p.default is p.empty for p in inspect.signature(function).parameters.values()):
                yield f"{module}.{name}()"
    if not callable(getattr(importlib.import_module("megatron.core.datasets.utils"), "compile_helpers", None)):
        yield "megatron.core.datasets.utils.compile_helpers"
    yield from missing_of_losses()
    yield from missing_of_saves()


def missing_of_losses() -> Iterator[str]:
    """What adds up losses, and the detector of stragglers, which is configured once in a process."""
    for name in ("moe.moe_utils", "multi_token_prediction", "experimental_attention_variant.dsa"):
        importlib.import_module(f"megatron.core.transformer.{name}")
    found = {name.rpartition(".")[2] for name, *_ in internals.accumulated()}
    if internals.trackers_gone() or "tracker" not in found:
        yield "megatron.core.transformer: the trackers of losses"
    utils = importlib.import_module("megatron.core.utils")
    detector = internals.straggler_detector()
    detector.configure(1, 0)
    was, _ = detector.configured, state.forget_straggler_detector()
    if not was or utils.StragglerDetector().configured:
        yield "megatron.core.utils.StragglerDetector: configured, _configured"


def missing_of_saves() -> Iterator[str]:
    saves = importlib.import_module("megatron.core.dist_checkpointing.strategies.async_utils")
    files = importlib.import_module("megatron.core.dist_checkpointing.strategies.filesystem_async")
    queue = saves.AsyncCallsQueue()
    if (len(queue.async_calls), queue.call_idx, queue.persistent_caller) != (0, -1, None):
        yield "AsyncCallsQueue: async_calls, call_idx, persistent_caller"
    if "async_caller" not in saves._ActiveAsyncRequest._fields:
        yield "_ActiveAsyncRequest.async_caller"
    if not hasattr(saves.TemporalAsyncCaller(), "process"):
        yield "TemporalAsyncCaller.process"
    if not hasattr(files, "_results_queue"):
        yield "filesystem_async._results_queue"
    if not callable(files.FileSystemWriterAsync.write_preloaded_data_multiproc):
        yield "FileSystemWriterAsync.write_preloaded_data_multiproc"


def check_wrapper() -> None:
    """Check that the wrapper has the values of the flags."""
    given = InprocessArguments(soft_timeout=5, hard_timeout=9, max_iterations=4, granularity="rank")
    wrapper = wrapper_for(given)
    assert (wrapper.soft_timeout, wrapper.hard_timeout) == (timedelta(seconds=5), timedelta(seconds=9))
    controller = next(part for part in wrapper.initialize.instances if isinstance(part, RetryController))
    assert (controller.max_iterations, controller.min_world_size) == (4, 1)


def check_copies() -> None:
    """Check that a background save of the tests writes tensors as they were when it began."""
    on_cpu.tensors_of_writers()
    files = importlib.import_module("megatron.core.dist_checkpointing.strategies.filesystem_async")
    tensor = torch.zeros(2)
    (bucket,) = files.FileSystemWriterAsync.preload_tensors([("file", "key", ([], [("item", tensor)]))], False)
    tensor.add_(1)
    assert not bucket[2][1][0][1].any()


if __name__ == "__main__":
    check_wrapper()
    check_copies()
    if moved := list(missing()):
        raise SystemExit(f"megatron-core has moved {', '.join(moved)}: see integrations/nvrx_megatron/internals.py")
