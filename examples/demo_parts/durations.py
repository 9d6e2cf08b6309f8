"""Durations for people: `23 ms`, `9.2 s`, and `2 s + 18 ms` for what had to wait for a timeout first."""

from __future__ import annotations

from demo_parts.schedule import HARD_TIMEOUT, SOFT_TIMEOUT

__all__ = ["after_timeout", "duration"]


def duration(seconds: float) -> str:
    """Milliseconds below a second, tenths of a second above."""
    return f"{1000 * seconds:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def after_timeout(seconds: float) -> str:
    """The same, as the last timeout before and what came after it."""
    timeout = max((timeout for timeout in (0, SOFT_TIMEOUT, HARD_TIMEOUT) if timeout <= seconds), default=0)
    rest = duration(seconds - timeout)
    return f"{timeout:g} s + {rest}" if timeout else rest
