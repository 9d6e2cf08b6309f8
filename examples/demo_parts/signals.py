"""The signals that end the demo early: they raise `Ended` in it, except while it ends its processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

__all__ = ["Ended", "raise_on_signals", "unsignalled"]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal asks the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


def raise_on_signals() -> None:
    """From now on the signals raise `Ended`, in the main thread."""
    for ending in ENDING:
        signal.signal(ending, _raise)


@contextmanager
def unsignalled() -> Iterator[None]:
    """The signals wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _raise(number: int, _: object) -> NoReturn:
    raise Ended(number)
