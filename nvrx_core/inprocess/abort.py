"""Aborts: they end the collectives and other calls that block the wrapped function, so that it can be interrupted."""

from __future__ import annotations

import abc
import enum
import logging
import os
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.groups import transformer_engine
from nvrx_core.inprocess.state import FrozenState
from nvrx_core.process.bounded import call_all_bounded
from nvrx_core.settings.environment import flight_record_directory, flight_recorder_is_on

__all__ = ["Abort", "AbortPhase", "AbortTorchDistributed", "AbortTransformerEngine"]

log = logging.getLogger("nvrx_core.inprocess")
RECORD_WITHIN: Final = timedelta(seconds=2)
"""How long the flight record may take to be written."""


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
            write_flight_record(directory, state)
        hit("abort-during", state.iteration)
        abort_groups()
        return state


def write_flight_record(directory: str | os.PathLike[str], state: FrozenState) -> None:
    """Write `<directory>/iter_<iteration>/rank_<initial rank>.<recorder>.json`, torch's JSON, for each recorder.

    Beside it, `<recorder>_rank_<rank in the iteration>` is a pickle, as torch's `fr_trace` reads it. torch keeps a
    record of the collectives of an iteration for NCCL and one for gloo. Stack traces are omitted: to symbolize
    their frames, torch acquires the GIL while it holds a lock of its recorder.

    A failure, or a disk that takes longer than `RECORD_WITHIN`, is logged as one warning.
    """
    folder = Path(directory) / f"iter_{state.iteration}"
    errors = call_all_bounded({"flight record": lambda: _write(folder, state)}, RECORD_WITHIN)
    for error in errors.values():
        log.warning("no flight record in %s: %s: %s", folder, type(error).__name__, error)


def _write(folder: Path, state: FrozenState) -> None:
    from nvrx_core.inprocess.groups.torch_groups import flight_record, flight_recorders
    from nvrx_core.process.torch_calls import rank_and_size

    folder.mkdir(parents=True, exist_ok=True)
    for recorder, dump in flight_recorders().items():
        _write_atomically(folder / f"rank_{state.initial_rank}.{recorder}.json", dump())
    present = rank_and_size()
    for recorder, record in flight_record().items():
        _write_atomically(folder / f"{recorder}_rank_{state.rank if present is None else present[0]}", record)


def _write_atomically(path: Path, text: bytes) -> None:
    """Write a whole file or none; a symbolic link at `path` is not followed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(draft, "xb") as file:
        try:
            file.write(text)
            file.flush()
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


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
