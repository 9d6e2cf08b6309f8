"""The terminal: lines that stay, and one bar below them that is redrawn in place; and the viewer's keyboard."""

from __future__ import annotations

import enum
import os
import re
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

__all__ = ["Recording", "Style", "Terminal", "keyboard", "pressed"]

NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
STYLING = re.compile(r"\x1b\[\d+m")


class Style(enum.Enum):
    """How a piece of text looks, where colours are shown."""

    PLAIN = "0"
    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    BLUE = "34"


@dataclass
class Recording:
    """What was shown, with styling, and when: the lines that stayed, and what the bar showed."""

    lines: list[tuple[float, str]] = field(default_factory=list)
    bars: list[tuple[float, str]] = field(default_factory=list)


class Terminal:
    """Writes to a stream.

    Args:
        stream: where to.
        clock: monotonic seconds, for the recording.

    Attributes:
        interactive: whether a bar can be redrawn in place.
        recording: all that was shown, in colours and with the bar, also where the stream has neither.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.interactive = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.recording = Recording()
        self._colours = self.interactive and "NO_COLOR" not in os.environ
        self._stream, self._clock = stream, clock
        self._bar = ""

    @staticmethod
    def styled(text: str, style: Style) -> str:
        """The text in a style."""
        return f"\x1b[{style.value}m{text}\x1b[0m"

    def say(self, text: str = "", style: Style = Style.PLAIN) -> None:
        """Lines that stay, above the bar."""
        for line in text.split("\n"):
            shown = self.styled(line, style) if style is not Style.PLAIN else line
            self.recording.lines.append((self._clock(), shown))
            self._write(f"{self._erase()}{shown}\n{self._bar}")

    def bar(self, text: str) -> None:
        """Replaces the bar."""
        self.recording.bars.append((self._clock(), text))
        if self.interactive:
            erase, self._bar = self._erase(), f"{NO_WRAP}{text}{WRAP}"
            self._write(f"{erase}{self._bar}")

    def end_bar(self) -> None:
        """The bar is taken away."""
        self.recording.bars.append((self._clock(), ""))
        erase, self._bar = self._erase(), ""
        self._write(erase)

    def instead_of_bar(self, text: str) -> None:
        """A line that stays, only where no bar can be redrawn."""
        if not self.interactive:
            self._write(f"{text}\n")

    def _erase(self) -> str:
        return "\r\x1b[2K" if self._bar else ""

    def _write(self, text: str) -> None:
        self._stream.write(text if self._colours else STYLING.sub("", text))
        self._stream.flush()


@contextmanager
def keyboard() -> Iterator[int | None]:
    """A descriptor that can be read once a key was pressed, Ctrl-C apart; None without a keyboard."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def pressed(descriptor: int) -> str:
    """The next key, waited for; nothing when the keyboard is gone."""
    return os.read(descriptor, 1).decode(errors="replace")
