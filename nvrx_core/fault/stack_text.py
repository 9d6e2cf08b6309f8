"""What faulthandler's text says about a process: where its main thread is. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from nvrx_core.fault.user_frames import is_users

__all__ = ["Frame", "in_one_line", "main_thread", "place_of", "waits_for_peers"]

_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) .*:$", re.MULTILINE)
_COLLECTIVES: Final = "/torch/distributed/"
_INJECTED: Final = "/nvrx_core/testing/"
"""Faults that are injected stand for code of the user's."""
_PROGRAM: Final = "/nvrx_launcher/workers/worker_program.py"
"""What runs the script of a launcher's worker; to a reader the stack begins with the script."""
FRAMES: Final = 3
"""Frames that a line has, the innermost ones."""


class Frame(NamedTuple):
    """A frame of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line} {self.function}"


def main_thread(text: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread, innermost first; empty where the text has none.

    faulthandler writes the threads from the newest to the oldest, which is the main thread.
    """
    stack = _THREAD.split(text)[-1]
    frames = (Frame(m["file"], int(m["line"]), m["function"]) for m in _FRAME.finditer(stack))
    return tuple(frame for frame in frames if not frame.file.endswith(_PROGRAM))


def waits_for_peers(stack: tuple[Frame, ...]) -> bool:
    """Whether the innermost frame is torch's distributed package: the thread waits in a collective, or for a store."""
    return bool(stack) and _COLLECTIVES in stack[0].file


def place_of(stack: Sequence[Frame], packages: frozenset[str]) -> tuple[Frame | None, Frame | None]:
    """Return the user's innermost frame, else the innermost one, and the innermost one where that is another.

    Args:
        stack: innermost first.
        packages: the installed packages that are the user's.
    """
    if not stack:
        return None, None
    users = (each for each in stack if _INJECTED in each.file or is_users(each.file, packages))
    place = next(users, stack[0])
    return place, (None if place is stack[0] else stack[0])


def in_one_line(stack: tuple[Frame, ...]) -> str:
    """Return the innermost frames as text, the innermost first; "" for none."""
    more = ["..."] if len(stack) > FRAMES else []
    return " < ".join([*map(str, stack[:FRAMES]), *more])
