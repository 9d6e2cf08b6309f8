"""Lets megatron-core train on a CPU over gloo: no file of it is changed, functions of torch.cuda are replaced.

Nothing is undone: a process that calls `install` is a rank of a test.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["CudaToCpu", "install"]

CPU = torch.device("cpu")


class CudaToCpu(TorchFunctionMode):
    """Makes CPU tensors where CUDA ones are asked for; a tensor's type is named as Megatron compares it.

    It belongs to the thread that enters it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        if is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": CPU}
        if func is torch.Tensor.to and len(args) > 1 and is_cuda(args[1]):
            args = (args[0], CPU, *args[2:])
        return func(*args, **kwargs)


def is_cuda(device: object) -> bool:
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return str(device).startswith("cuda") if isinstance(device, str | torch.device) else False


class Nothing:
    """A stream or an event of no device."""

    cuda_stream = stream_id = 0

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: Nothing()

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def elapsed_time(self, other: object) -> float:
        return 0.0

    def query(self) -> bool:
        return True


def install() -> None:
    """Replaces what megatron-core calls; to be called in the thread that trains, before the model is built."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: CPU
    for name in ("synchronize", "empty_cache", "set_device", "set_stream", "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *args, **kwargs: None)
    cuda.manual_seed = cuda.manual_seed_all = torch.default_generator.manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = lambda device=None: torch.get_rng_state()
    cuda.set_rng_state = cuda.random.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    cuda.Stream = cuda.Event = Nothing
    cuda.current_stream = cuda.default_stream = cuda.stream = Nothing
    CudaToCpu().__enter__()
    random_states()
    memory_of_writers()
    tensors_of_writers()


def random_states() -> None:
    """Lets megatron-core's tracker of random states keep those of the CPU."""
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)


def memory_of_writers() -> None:
    """Lets megatron-core write checkpoints without psutil, with which it only logs the memory of its writers."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    if importlib.util.find_spec("psutil") is None:
        filesystem_async._process_memory = lambda: 0


def tensors_of_writers() -> None:
    """Lets a background save write copies, as of tensors on a GPU: the next step changes those of the optimizer."""
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    preload = FileSystemWriterAsync.preload_tensors

    @functools.wraps(preload)
    def copied(*args: Any, **kwargs: Any) -> Any:
        return [
            (file, key, (data, [(item, tensor.clone()) for item, tensor in tensors]))
            for file, key, (data, tensors) in preload(*args, **kwargs)
        ]

    FileSystemWriterAsync.preload_tensors = staticmethod(copied)
