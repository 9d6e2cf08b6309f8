"""Consoles of launchers: pipes and terminals that are read, or not for a while."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import tty

__all__ = ["Console"]

PIECE = 1 << 16


class Console:
    """One console.

    Args:
        is_terminal: a terminal, not a pipe.

    Attributes:
        theirs: the descriptor that is the launcher's standard output and error.
        text: what was printed.
    """

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal, self._is_stalled = is_terminal, False
        if is_terminal:
            self._ours, self.theirs = os.openpty()
            tty.setraw(self.theirs)
        else:
            self._ours, self.theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._ours, False)
        self.text = ""

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._ours

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it."""
        return not self._is_stalled

    def launched(self) -> None:
        """Close the launcher's end; that of a terminal is needed to stop its output."""
        if not self._is_terminal:
            os.close(self.theirs)
            self.theirs = -1

    def stall(self) -> None:
        """Take nothing, as a terminal after Ctrl-S and a pipe to a pager do."""
        self._is_stalled = True
        if self._is_terminal:
            termios.tcflow(self.theirs, termios.TCOOFF)

    def go_on(self) -> None:
        """Take what is printed, again."""
        self._is_stalled = False
        if self._is_terminal:
            termios.tcflow(self.theirs, termios.TCOON)

    def read(self) -> bool:
        """Read what there is; return False at the end."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._ours, PIECE)
            self.text += data.decode(errors="replace")
            return bool(data)
        return True

    def read_all(self) -> None:
        """Read what is left."""
        while select.select([self._ours], [], [], 0.0)[0] and self.read():
            pass

    def close(self) -> None:
        """Close it."""
        for fd in {self._ours, self.theirs} - {-1}:
            os.close(fd)
