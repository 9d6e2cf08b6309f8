"""Forms of values that the operating system and `logging` name: signals and log levels."""

from __future__ import annotations

import logging
import signal
from typing import Final

from nvrx_core.settings.forms import INTEGER, Form, Misread
from nvrx_core.settings.parameter import ValueRule

__all__ = ["ENDS_A_PROCESS", "LOG_LEVEL", "SIGNAL"]

_SPARING: Final = frozenset({
    signal.SIGCHLD, signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGURG,
    signal.SIGWINCH,
})  # fmt: skip
_LEVELS: Final = {name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}
_NAMES: Final = _LEVELS | {"DBG": logging.DEBUG, "WARN": logging.WARNING, "FATAL": logging.CRITICAL}

ENDS_A_PROCESS: Final = ValueRule("one that ends a process", lambda value: value not in _SPARING)


def _signal(value: object) -> signal.Signals:
    name = value.strip().upper().removeprefix("SIG") if isinstance(value, str) else ""
    try:
        return signal.Signals.__members__.get(f"SIG{name}") or signal.Signals(INTEGER.read(value))
    except ValueError:
        raise Misread(value, SIGNAL.text) from None


def _log_level(value: object) -> int:
    level = _NAMES.get(value.strip().upper()) if isinstance(value, str) else None
    try:
        level = INTEGER.read(value) if level is None else level
    except Misread:
        level = -1
    if level < 0:
        raise Misread(value, LOG_LEVEL.text)
    return level


def _level_name(level: int) -> str | int:
    return next((name for name, value in _LEVELS.items() if value == level), level)


SIGNAL: Final = Form(
    text="the name or the number of a signal",
    read=_signal,
    write=lambda value: value.name,
    example="SIGKILL",
    metavar="SIGNAL",
)
LOG_LEVEL: Final = Form(
    text="DEBUG, INFO, WARNING, ERROR, CRITICAL or a level's number",
    read=_log_level,
    write=_level_name,
    example="INFO",
    metavar="LEVEL",
)
