"""Aborts: they end the collectives and other calls that block the wrapped function, so that it can be interrupted."""

from __future__ import annotations

import abc
import enum
import logging
import os
import sys
from collections.abc import Callable, Iterable
from typing import Self

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.groups import transformer_engine
from nvrx_core.inprocess.state import FrozenState
from nvrx_core.settings.environment import flight_record_directory, flight_recorder_is_on

__all__ = ["Abort", "AbortPhase", "AbortTorchDistributed", "AbortTransformerEngine"]

log = logging.getLogger("nvrx_core.inprocess")


class AbortPhase(enum.Enum):
    """When a part of an abort runs."""

    BEFORE_TORCH = "before torch"
    """In the monitor thread while the function runs, before torch's groups are aborted: for what uses them."""
    AFTER_TORCH = "after torch"
    """The same, after torch's groups were aborted."""
    MAIN_THREAD = "main thread"
    """In the main thread, out of the function, before `finalize`: for what no other thread may touch."""


class Abort(abc.ABC):
    """A plug-in that asynchronously ends the calls in which the wrapped function may block.

    It is called in the monitor thread while the function still runs; it must neither wait for the function nor hold
    the GIL for long. An exception is logged with the plug-in's name, the other parts of a composition run all the same,
    and the restart continues.

    Attributes:
        phase: when this part of a composition runs; None: where the composition has it.
    """

    phase: AbortPhase | None = None

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Abort, and return the state for the next plug-in of a composition."""


class AbortTorchDistributed(Abort):
    """An abort that ends the collectives of `torch.distributed` and clears its groups.

    gloo has no abort: its connections are shut down, which ends a blocked collective within milliseconds. torch aborts
    the NCCL communicators, all concurrently. If torch.distributed was not used, nothing happens.

    Args:
        torch_fr_trace_path: the directory for torch's flight record, which is written first if the recorder is enabled;
            default `NVRX_FR_TRACE_PATH`, else no record is written.
    """

    def __init__(self, torch_fr_trace_path: str | os.PathLike[str] | None = None) -> None:
        self.torch_fr_trace_path = torch_fr_trace_path

    def __call__(self, state: FrozenState) -> FrozenState:
        """Abort all process groups."""
        if "torch.distributed" not in sys.modules:
            return state
        from nvrx_core.inprocess.groups.observer import abort_groups, free_reserve
        from nvrx_core.inprocess.groups.torch_groups import has_groups

        free_reserve()
        directory = self.torch_fr_trace_path or flight_record_directory()
        if directory is not None and flight_recorder_is_on() and has_groups():
            from nvrx_core.inprocess.groups.flight_record import write_flight_record

            write_flight_record(directory, state)
        hit("abort-during", state.iteration)
        abort_groups()
        return state


class _TransformerEngine(Abort):
    """The steps of one phase."""

    def __init__(self, phase: AbortPhase, steps: Callable[[], Iterable[transformer_engine.Step]]) -> None:
        self.phase, self._name, self._steps = phase, phase.value, steps

    def __call__(self, state: FrozenState) -> FrozenState:
        """Take them."""
        transformer_engine.run(self._name, self._steps())
        return state


class AbortTransformerEngine(Compose):
    """An abort that ends the communicators, the FP8 state and the flags in the modules of Transformer Engine.

    It is a composition of three parts, one for each `AbortPhase`, so that it may stand anywhere in a composition: what
    is registered with torch's communicators ends before them, what belongs to the main thread waits for it. It uses
    only modules that are imported already; without Transformer Engine it does nothing. The outcome of each step is
    logged.
    """

    def __new__(cls) -> Self:
        """Create an instance that is an `Abort`, too."""
        return super().__new__(cls, *cls._parts())

    def __init__(self) -> None:
        super().__init__(*self._parts())

    @staticmethod
    def _parts() -> tuple[Abort, ...]:
        return (
            _TransformerEngine(AbortPhase.MAIN_THREAD, transformer_engine.on_main_thread),
            _TransformerEngine(AbortPhase.AFTER_TORCH, transformer_engine.after_torch),
            _TransformerEngine(AbortPhase.BEFORE_TORCH, transformer_engine.before_torch),
        )
