"""What a signal is called, the real-time ones included, of which `signal.Signals` names two."""

from __future__ import annotations

import signal

__all__ = ["signal_name"]


def signal_name(number: int) -> str:
    """Return the name of a signal, as SIGKILL or SIGRTMIN+8; never an error."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"signal {number}"
