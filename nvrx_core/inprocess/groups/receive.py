"""An interruptible wait for a receive from any rank.

gloo does not fail such a receive when a connection closes, so a thread that waits for it blocks until the group's
timeout. The main thread therefore waits for another thread, which waits for gloo and is abandoned when the function
ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["InterruptibleWork", "interruptible"]


class InterruptibleWork:
    """A proxy of a torch work that replaces its `wait`.

    Args:
        work: the work.
    """

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait as the work does; in the main thread, a signal ends the wait.

        Raises:
            BaseException: the exception of the work's own `wait`.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._work.wait(*args, **kwargs)
        waiting = _Waiting(lambda: self._work.wait(*args, **kwargs))
        waiting.done.wait()
        return waiting.outcome()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class _Waiting:
    """A call in its own thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.done = threading.Event()
        self._call, self._result = call, None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="nvrx-receive", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # boundary: the thread ends here, the waiting thread gets the error
            self._error = error
        finally:
            self.done.set()

    def outcome(self) -> Any:
        """Return the result of the call.

        Raises:
            BaseException: the exception of the call.
        """
        if self._error is not None:
            raise self._error
        return self._result


def interruptible(receive: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that returns the work of a receive, so that it returns an `InterruptibleWork`."""
    return lambda *args, **kwargs: InterruptibleWork(receive(*args, **kwargs))
