"""Signals to the launcher, as events of its loop."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.process.signals import signal_name
from nvrx_launcher.exit_codes import SIGNALLED

__all__ = ["EarlyEnd", "end_by_signals", "signal_numbers", "signals_as_events"]

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What ends a launcher before it has joined its job."""
LINE_TIMEOUT: Final = 1.0
"""Seconds for a line on a standard error that takes nothing."""


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


class EarlyEnd:
    """The line of a launcher that a signal ends before it has joined its job.

    Attributes:
        formatter: that of the launcher's log, as soon as the options are known.
    """

    def __init__(self) -> None:
        self.formatter = logging.Formatter("ft_launcher: %(message)s")

    def line(self, code: int, number: int) -> str:
        """Return the line of an exit code and a signal."""
        told = f"the launcher ends with code {code}: it has received {signal_name(number)}"
        made = {"name": "nvrx_launcher", "levelno": logging.INFO, "levelname": "INFO", "msg": told}
        return f"{self.formatter.format(logging.makeLogRecord(made))}\n"


def end_by_signals(end: EarlyEnd) -> None:
    """Let signals end this process with 128 + their number, and a line, until they are events; ignored ones stay so.

    The default dispositions do not end PID 1 of a namespace, and a KeyboardInterrupt could be raised in torch's C++
    code, which aborts the process, or where it is swallowed. While the main thread is in such code no handler of
    Python's runs, so a thread waits for the signals. Where none can be started, the dispositions stay as they are.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    with suppress(RuntimeError):  # the limit of processes is reached: the launcher says so where it needs the next one
        threading.Thread(target=_end_by_the_next, args=(reader, end), name="nvrx-signals", daemon=True).start()
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _ignore)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)


def _end_by_the_next(reader: int, end: EarlyEnd) -> None:
    while True:
        for number in os.read(reader, 64):
            if number in ENDING:
                code = SIGNALLED + number
                telling = threading.Thread(target=_tell, args=(end.line(code, number),), daemon=True)
                telling.start()
                telling.join(LINE_TIMEOUT)
                os._exit(code)


def _tell(text: str) -> None:
    """Write to standard error, which may take nothing."""
    with suppress(OSError):
        os.write(2, text.encode())


@contextmanager
def signals_as_events(
    signals: Iterable[int], received: Callable[[int], object]
) -> Iterator[tuple[int, Callable[[], None]]]:
    """Handle signals in a loop, not in a handler; outside the main thread Python allows none.

    Args:
        signals: which ones; SIGHUP stays ignored where it is, as under `nohup`.
        received: called for each signal that has arrived, in the loop.

    Yields:
        The descriptor to watch, and what to call when it is readable.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    is_main = threading.current_thread() is threading.main_thread()
    handled = [each for each in signals if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _ignore) for number in handled} if is_main else {}
    for ending in ENDING:
        if is_main and ending not in before and signal.getsignal(ending) is _ignore:  # not to be handled
            signal.signal(ending, signal.SIG_DFL)
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
