"""The frames of a traceback that are the user's: the line that a message names, and the text without the others. Pure.

A user looks for a line of the own script. A traceback through Lightning has forty frames of libraries around it, and an
error of `os.makedirs` ends in `<frozen os>`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from itertools import groupby
from types import TracebackType
from typing import Any, Final

__all__ = ["is_users", "origin", "origin_in", "raised_at", "shortened"]

_STDLIB: Final = traceback.__file__.rpartition("/")[0] + "/"
_OWN: Final = tuple(f"/{name}/" for name in ("nvrx_core", "nvrx_lightning", "nvrx_megatron", "nvrx_launcher"))
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
_INTERACTIVE: Final = ("<stdin>", "<ipython-input", "<python-input")
UNSHORTENED: Final = 8
"""Frames that are shown where none is the user's, the innermost ones."""
INNERMOST: Final = 3
"""Frames of libraries that are shown where the innermost ones are theirs."""
_NONE: Final = frozenset[str]()
_FRAME: Final = re.compile(r"""^[ |+]*File "(.+)", line (\d+)""", re.MULTILINE)
_BEGIN: Final = "Traceback (most recent call last):"


def is_users(file: str, packages: frozenset[str] = _NONE) -> bool:
    """Return whether a file is the user's.

    Args:
        file: as in a frame.
        packages: the installed packages that are the user's. The others, the standard library and nvrx are not.
    """
    if file.startswith("<"):
        return file.startswith(_INTERACTIVE)
    if installed := _below_packages(file):
        return _top_level(installed) in packages
    return not (file.startswith(_STDLIB) or any(part in file for part in _OWN))


def raised_at(trace: TracebackType | None) -> str:
    """Return file and line of the innermost frame, which has raised; "" for a traceback without frames."""
    return "".join(f"{file}:{line}" for file, line in _places(trace)[-1:])


def origin(trace: TracebackType | None, packages: frozenset[str] = _NONE) -> str:
    """Return file and line of the innermost frame that is the user's, else of the innermost one that has a file.

    "" for a traceback without frames.

    Args:
        trace: the traceback.
        packages: as for `is_users`.
    """
    return _innermost(_places(trace), packages)


def origin_in(text: str, packages: frozenset[str] = _NONE) -> str:
    """Return the same of the text of a traceback, the last one in it; "" if there is none.

    Args:
        text: as the interpreter prints it.
        packages: as for `is_users`.
    """
    last = text.rpartition(_BEGIN)[2]
    return _innermost([(found[1], int(found[2])) for found in _FRAME.finditer(last)], packages)


def _innermost(places: list[tuple[str, int]], packages: frozenset[str]) -> str:
    users = [place for place in places if is_users(place[0], packages)]
    files = [place for place in places if not place[0].startswith("<")]
    found = (users or files or places)[-1:]
    return "".join(f"{file}:{line}" for file, line in found)


def _places(trace: TracebackType | None) -> list[tuple[str, int]]:
    places = list[tuple[str, int]]()
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return places


def shortened(captured: traceback.TracebackException, packages: frozenset[str] = _NONE) -> str:
    """Return the text of an exception and what is chained to it, a run of frames that are not the user's as one line.

    The innermost frames of a traceback are shown in any case, more of them where none is the user's. Only the last
    frame has the carets under its line.

    Args:
        captured: the exception.
        packages: as for `is_users`.
    """
    pending: list[traceback.TracebackException | None] = [captured]
    while pending:
        if (found := pending.pop()) is not None:
            found.stack = _Shortened(_without_libraries(found.stack, packages))
            pending += [found.__cause__, found.__context__, *(found.exceptions or ())]
    return "".join(captured.format())


class _LeftOut(traceback.FrameSummary):
    """A run of frames that are not shown."""

    def __init__(self, frames: list[traceback.FrameSummary]) -> None:
        super().__init__("", 0, "", lookup_line=False, line="")  # no repetition of a frame beside it
        packages = sorted({_package(frame.filename) for frame in frames})
        count = f"{len(frames)} frame{'s' if len(frames) > 1 else ''} of {', '.join(packages)}"
        self.text = f"  [{count}]\n"


class _Shortened(traceback.StackSummary):
    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: Any) -> str:
        """Return the text of a frame, or of a run of frames that is left out."""
        if isinstance(frame_summary, _LeftOut):
            return frame_summary.text
        return super().format_frame_summary(frame_summary, **options)


def _without_libraries(
    frames: Iterable[traceback.FrameSummary], packages: frozenset[str]
) -> list[traceback.FrameSummary]:
    runs = [(users, list(run)) for users, run in groupby(frames, lambda frame: is_users(frame.filename, packages))]
    shown = list[traceback.FrameSummary]()
    for index, (users, run) in enumerate(runs):
        innermost = UNSHORTENED if len(runs) == 1 else INNERMOST if index == len(runs) - 1 else 0
        left_out = [] if users else run[: max(0, len(run) - innermost)]
        shown += [*([_LeftOut(left_out)] if left_out else []), *run[len(left_out) :]]
    for index, frame in enumerate(shown[:-1]):
        if not isinstance(frame, _LeftOut):  # one without the columns that the carets show
            shown[index] = traceback.FrameSummary(frame.filename, frame.lineno, frame.name, lookup_line=False)
    return shown


def _package(file: str) -> str:
    """Return the top-level package of a library's file, "Python" for the standard library."""
    for part in _OWN:
        if part in file:
            return part.strip("/")
    return _top_level(_below_packages(file)) or "Python"


def _below_packages(file: str) -> str:
    """Return the path of an installed file from its top-level package on; "" for any other file."""
    return next((file.rpartition(each)[2] for each in _INSTALLED if each in file), "")


def _top_level(installed: str) -> str:
    return installed.partition("/")[0].removesuffix(".py")
