"""Aborts: they end the collectives and other calls that block the wrapped function, so that it can be interrupted.

The user's abort is a chain of independent steps: one that fails does not prevent the others. A composition is taken
apart into its parts, in the order in which it would run them. A part that names an `AbortPhase` goes there; the others
keep their place before or after torch's abort. The parts of phase `MAIN_THREAD` wait for the main thread.
"""

from __future__ import annotations

import abc
import enum
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self

from nvrx_core.errors import ParameterError
from nvrx_core.failpoint import hit
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.groups import transformer_engine
from nvrx_core.inprocess.state import FrozenState
from nvrx_core.process.bounded import call_all_bounded
from nvrx_core.settings.environment import flight_record_directory, flight_recorder_is_on

__all__ = ["Abort", "AbortPhase", "AbortTorchDistributed", "AbortTransformerEngine"]

log = logging.getLogger("nvrx_core.inprocess")
Step = Callable[[FrozenState], Any]
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


_PLACE: Final = {AbortPhase.BEFORE_TORCH: 0, None: 1, AbortPhase.AFTER_TORCH: 2}


def steps_of(abort: Step) -> list[Step]:
    """Return the parts of a composition in the order in which they run, also of one inside another.

    Raises:
        ValueError: when a part's `phase` is none.
    """
    if isinstance(abort, Compose) and type(abort).__call__ is Compose.__call__:
        return [step for part in reversed(abort.instances) for step in steps_of(part)]
    if not isinstance(phase_of(abort), AbortPhase | None):
        expected = "a member of nvrx_core.inprocess.abort.AbortPhase, or None"
        raise ParameterError(f"{_name(abort)}.phase", phase_of(abort), expected)
    return [abort]


def phase_of(step: Step) -> Any:
    """Return the phase that a step names, None for its place in the composition."""
    return getattr(step, "phase", None)


class AbortChain:
    """The steps of one abort.

    Args:
        abort: the user's; None for nothing.

    Attributes:
        beside: those that run beside the function, in order.
        main: those that run in the main thread once it is out of the function.
    """

    def __init__(self, abort: Step | None) -> None:
        steps = [] if abort is None else steps_of(abort)
        self.main = [step for step in steps if phase_of(step) is AbortPhase.MAIN_THREAD]
        self.beside = _in_order([step for step in steps if phase_of(step) is not AbortPhase.MAIN_THREAD])
        self._aborts_groups = abort is not None

    def run(self, state: FrozenState) -> None:
        """Run the steps beside the function; if one fails, torch's groups are aborted all the same."""
        failed = _run(self.beside, state)
        aborted = any(_is_torch_abort(step) and step not in failed for step in self.beside)
        if self._aborts_groups and failed and not aborted:
            _run([AbortTorchDistributed()], state)

    def run_in_main_thread(self, state: FrozenState) -> None:
        """Run the steps that wait for the main thread."""
        _run(self.main, state)


def _in_order(steps: list[Step]) -> list[Step]:
    """Put the steps in the order of their phases; within one they stay in that of the composition."""
    torch_abort = next((number for number, step in enumerate(steps) if _is_torch_abort(step)), None)

    def place(numbered: tuple[int, Step]) -> int:
        number, step = numbered
        if torch_abort is None or phase_of(step) is not None:
            return _PLACE[phase_of(step)]
        return (number > torch_abort) - (number < torch_abort) + 1

    return [step for _, step in sorted(enumerate(steps), key=place)]


def _is_torch_abort(step: Step) -> bool:
    return isinstance(step, AbortTorchDistributed)


def _run(steps: Iterable[Step], state: FrozenState) -> list[Step]:
    """Run each step, whatever those before it did, and log its outcome; return those that failed."""
    failed = list[Step]()
    for step in steps:
        began = time.monotonic()
        try:
            returned = step(state)
        except BaseException:  # boundary: a user's abort; the other steps and the interruption must follow
            failed.append(step)
            log.exception("abort failed in %s after %s", _name(step), _since(began))
        else:
            state = returned if isinstance(returned, FrozenState) else state
            log.debug("abort: %s is done after %s", _name(step), _since(began))
    return failed


def _name(step: Step) -> str:
    return str(getattr(step, "__qualname__", type(step).__qualname__))


def _since(began: float) -> str:
    return f"{(time.monotonic() - began) * 1000:.1f} ms"
