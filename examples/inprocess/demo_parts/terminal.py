"""Lines that stay, and one bar below them that is redrawn in place where the output is a terminal."""

from __future__ import annotations

import enum
import os
from typing import TextIO

__all__ = ["Style", "Terminal"]


NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"


class Style(enum.Enum):
    """How a piece of text looks, where colours are shown."""

    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    BLUE = "34"


class Terminal:
    """Writes to a stream; `interactive` says whether a bar can be redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        self.interactive = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colours = self.interactive and "NO_COLOR" not in os.environ
        self._stream = stream
        self._bar = ""

    def styled(self, text: str, style: Style) -> str:
        """The text in a style, or as it is where colours are not shown."""
        return f"\x1b[{style.value}m{text}\x1b[0m" if self._colours else text

    def say(self, text: str = "", style: Style | None = None) -> None:
        """A line that stays, above the bar."""
        self._write(f"{self._erase()}{self.styled(text, style) if style else text}\n{self._bar}")

    def bar(self, text: str) -> None:
        """Replaces the bar; only where it can be redrawn."""
        erase, self._bar = self._erase(), f"{NO_WRAP}{text}{WRAP}"
        self._write(f"{erase}{self._bar}")

    def end_bar(self) -> None:
        """The bar is taken away."""
        erase, self._bar = self._erase(), ""
        self._write(erase)

    def _erase(self) -> str:
        return "\r\x1b[2K" if self._bar else ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
