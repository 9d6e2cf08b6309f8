"""The frames of a traceback that are the user's: the line that a message names, and the text without the others. Pure.

A user looks for a line of the own script. A traceback through Lightning has forty frames of libraries around it, and an
error of `os.makedirs` ends in `<frozen os>`.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from itertools import groupby
from types import TracebackType
from typing import Any, Final

__all__ = ["is_users", "origin", "shortened"]

_STDLIB: Final = traceback.__file__.rpartition("/")[0] + "/"
_OWN: Final = tuple(f"/{name}/" for name in ("nvrx_core", "nvrx_lightning", "nvrx_megatron", "nvrx_launcher"))
_INTERACTIVE: Final = ("<stdin>", "<ipython-input", "<python-input")
UNSHORTENED: Final = 8
"""Frames that are shown where none is the user's, the innermost ones."""


def is_users(file: str) -> bool:
    """Return whether a file is neither the standard library's, an installed package's, nor nvrx's."""
    if file.startswith("<"):
        return file.startswith(_INTERACTIVE)
    return not (file.startswith(_STDLIB) or "-packages/" in file or any(part in file for part in _OWN))


def origin(trace: TracebackType | None) -> str:
    """Return file and line of the innermost frame that is the user's, else of the innermost one that has a file.

    "" for a traceback without frames.
    """
    places = list[tuple[str, int]]()
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    users = [place for place in places if is_users(place[0])]
    files = [place for place in places if not place[0].startswith("<")]
    found = (users or files or places)[-1:]
    return "".join(f"{file}:{line}" for file, line in found)


def shortened(captured: traceback.TracebackException) -> str:
    """Return the text of an exception and what is chained to it, a run of frames that are not the user's as one line.

    The innermost frames of a traceback without any of the user's are shown. Only the innermost frame has the carets
    under its line.
    """
    for each in _related(captured):
        each.stack = _Shortened(_without_libraries(each.stack))
    return "".join(captured.format())


def _related(captured: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    pending: list[traceback.TracebackException | None] = [captured]
    while pending:
        if (found := pending.pop()) is not None:
            yield found
            pending += [found.__cause__, found.__context__, *(found.exceptions or ())]


class _LeftOut(traceback.FrameSummary):
    """A run of frames that are not shown."""

    def __init__(self, frames: list[traceback.FrameSummary], *, innermost: bool) -> None:
        last = frames[-1]
        super().__init__(last.filename, last.lineno, last.name, lookup_line=False, line="")
        packages = sorted({_package(frame.filename) for frame in frames})
        count = f"{len(frames)} frame{'s' if len(frames) > 1 else ''} of {', '.join(packages)}"
        where = f", raised in {last.name} at {_within_package(last.filename)}:{last.lineno}" if innermost else ""
        self.text = f"  [{count}{where}]\n"


class _Shortened(traceback.StackSummary):
    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: Any) -> str:
        """Return the text of a frame, or of a run of frames that is left out."""
        if isinstance(frame_summary, _LeftOut):
            return frame_summary.text
        return super().format_frame_summary(frame_summary, **options)


def _without_libraries(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    runs = [(users, list(run)) for users, run in groupby(frames, lambda frame: is_users(frame.filename))]
    if runs and not any(users for users, _ in runs):
        ((_, run),) = runs
        outer, inner = run[:-UNSHORTENED], run[-UNSHORTENED:]
        return [_LeftOut(outer, innermost=False), *inner] if outer else inner
    shown = list[traceback.FrameSummary]()
    for index, (users, run) in enumerate(runs):
        shown += run if users else [_LeftOut(run, innermost=index == len(runs) - 1)]
    last = max(index for index, frame in enumerate(shown) if not isinstance(frame, _LeftOut)) if shown else 0
    return [*map(_without_carets, shown[:last]), *shown[last:]]


def _without_carets(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    if isinstance(frame, _LeftOut):
        return frame
    return traceback.FrameSummary(frame.filename, frame.lineno, frame.name, lookup_line=False)


def _package(file: str) -> str:
    """Return the top-level package of a library's file, "Python" for the standard library."""
    return "Python" if _is_standard(file) else _within_package(file).partition("/")[0].removesuffix(".py")


def _within_package(file: str) -> str:
    """Return a library's file from its top-level package on; a file of the standard library as it is."""
    if _is_standard(file):
        return file
    for part in _OWN:
        if part in file:
            return part[1:] + file.rpartition(part)[2]
    return file.rpartition("-packages/")[2]


def _is_standard(file: str) -> bool:
    return file.startswith("<") or (file.startswith(_STDLIB) and "-packages/" not in file)
