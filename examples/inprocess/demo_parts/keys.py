"""The viewer's keyboard, key by key, where there is one."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keyboard", "pressed"]


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
