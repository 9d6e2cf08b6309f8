"""Signals to the launcher, as events of its loop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from nvrx_core.errors import ConfigurationError

__all__ = ["end_by_interrupt", "signal_numbers", "signals_as_events"]


def signal_numbers(names: Iterable[str]) -> list[signal.Signals]:
    """Return signals by name.

    Raises:
        ConfigurationError: when there is no such signal, or it cannot be handled.
    """
    found = []
    for name in names:
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            problem = f"{name!r} is no signal that can be handled"
            raise ConfigurationError("command line", "--signals-to-handle", problem, "write names as in SIGTERM,SIGINT")
        found.append(signal.Signals[name])
    return found


def end_by_interrupt() -> None:
    """Let SIGINT end this process as SIGTERM does, until signals are events; an ignored SIGINT stays ignored.

    A KeyboardInterrupt could be raised in torch's C++ code, which aborts the process, or where it is swallowed.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def signals_as_events(
    signals: Iterable[int], received: Callable[[int], object]
) -> Iterator[tuple[int, Callable[[], None]]]:
    """Handle signals in a loop, not in a handler; outside the main thread Python allows none.

    Args:
        signals: which ones.
        received: called for each signal that has arrived, in the loop.

    Yields:
        The descriptor to watch, and what to call when it is readable.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, _ignore) for number in signals} if is_main else {}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False) if is_main else -1

    def read() -> None:
        for number in os.read(reader, 4096):
            if number in before:
                received(number)

    try:
        yield reader, read
    finally:
        if is_main:
            signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _ignore(_: int, __: FrameType | None) -> None:
    """Do nothing: the number arrives over the wakeup descriptor."""
