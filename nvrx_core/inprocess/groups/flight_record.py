"""The flight record: torch's record of the collectives of an iteration, written before they are aborted.

torch keeps one for NCCL and one for gloo. Stack traces are omitted: to symbolize their frames, torch acquires the GIL
while it holds a lock of its recorder.
"""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Final

from nvrx_core.inprocess.groups.torch_groups import flight_recorders
from nvrx_core.process.bounded import call_all_bounded
from nvrx_core.rank_assignment.base import FrozenState

__all__ = ["write_flight_record"]

log = logging.getLogger("nvrx_core.inprocess")
WITHIN: Final = timedelta(seconds=2)


def write_flight_record(directory: str | os.PathLike[str], state: FrozenState) -> None:
    """Write `<directory>/iter_<iteration>/rank_<initial rank>.<recorder>.json`, torch's JSON, for each recorder.

    A failure, or a disk that takes longer than `WITHIN`, is logged as one warning.
    """
    folder = Path(directory) / f"iter_{state.iteration}"
    errors = call_all_bounded({"flight record": lambda: _write(folder, state.initial_rank)}, WITHIN)
    for error in errors.values():
        log.warning("no flight record in %s: %s: %s", folder, type(error).__name__, error)


def _write(folder: Path, rank: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for recorder, dump in flight_recorders().items():
        _write_atomically(folder / f"rank_{rank}.{recorder}.json", dump())


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
