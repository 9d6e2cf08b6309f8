"""Leaving out of turn: the store is lost, or a part of the wrapper that a rank must not go on without.

The first reason counts. The main thread is got out of the function, or out of its wait for the others, and the call
ends with the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from nvrx_core.inprocess.interruption.interrupt import Interrupt

__all__ = ["EarlyExit"]


class EarlyExit:
    """Why this rank leaves out of turn, if it does.

    Args:
        interrupt: gets the main thread out of the function.
        wake: gets it out of its wait for the others.
        abort: ends what the function waits in.
        unblock: closes what no signal gets it out of.

    Attributes:
        reason: makes the exception that the call ends with; None while the rank stays.
    """

    def __init__(
        self, interrupt: Interrupt, wake: Callable[[], None], *, abort: Callable[[], None], unblock: Callable[[], None]
    ) -> None:
        self.reason: Callable[[], BaseException] | None = None
        self._deciding = threading.Lock()
        self._interrupt, self._wake, self._abort, self._unblock = interrupt, wake, abort, unblock

    def decide(self, reason: Callable[[], BaseException]) -> bool:
        """Leave for this reason; False when there is one already."""
        with self._deciding:
            first = self.reason is None
            if first:
                self.reason = reason
        return first

    def carry_out(self) -> None:
        """Get the main thread out, wherever it is; in the main thread itself, only note that it has to leave."""
        assert self.reason is not None
        self._interrupt.request(self.reason)
        self._wake()
        if threading.get_ident() != self._interrupt.thread:
            self._abort()
            self._interrupt.drive(self._unblock)
