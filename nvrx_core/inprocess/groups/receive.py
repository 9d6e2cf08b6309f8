"""A receive from any rank, waited for where a signal ends the wait.

gloo tells no such receive that a connection has ended, so nothing frees the thread that waits for it before the group's
timeout. The main thread waits for another thread, which waits for gloo; that one is left behind when the function ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["InterruptibleWork", "interruptible"]


class InterruptibleWork:
    """A work of torch's with another `wait`; all else is the work's.

    Args:
        work: the work.
    """

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait as the work does, in the main thread so that a signal ends it.

        Raises:
            BaseException: whatever the work's own `wait` raises.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._work.wait(*args, **kwargs)
        waiting = _Waiting(lambda: self._work.wait(*args, **kwargs))
        waiting.done.wait()
        return waiting.outcome()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class _Waiting:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.done = threading.Event()
        self._call, self._result = call, None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="nvrx-receive", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # boundary: the thread ends here, the one that waits gets the error
            self._error = error
        finally:
            self.done.set()

    def outcome(self) -> Any:
        """What the call returned.

        Raises:
            BaseException: what it raised.
        """
        if self._error is not None:
            raise self._error
        return self._result


def interruptible(receive: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes works of receives, with `InterruptibleWork` instead."""
    return lambda *args, **kwargs: InterruptibleWork(receive(*args, **kwargs))
