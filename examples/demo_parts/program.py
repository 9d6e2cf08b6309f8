"""What every demo does around its runs: it writes to the terminal, and ends in order when a signal asks it to."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

from demo_parts.signals import Ended, raise_on_signals
from demo_parts.terminal import Terminal

__all__ = ["run_program"]


def run_program(show: Callable[[Terminal], int]) -> int:
    """Runs a demo; returns its exit code, 128 + n after signal n."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    raise_on_signals()
    terminal = Terminal(sys.stdout)
    try:
        return show(terminal)
    except Ended as ended:
        terminal.end_bar()
        terminal.say(f"Ended by {ended.signal.name}; every process of the run has been ended, too.")
        return 128 + ended.signal
