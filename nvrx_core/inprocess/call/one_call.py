"""The limit of one wrapped call at a time: a process is one rank of the job."""

from __future__ import annotations

import os
import threading
from typing import Final

from nvrx_core.errors import RestartAbort

__all__ = ["OneCall"]

Holder = tuple[int, int]
"""The process and the thread that run a wrapped function."""
_running: Final[dict[str, Holder]] = {}


class OneCall:
    """A context that reserves the process for one call.

    It is not a generator: `contextlib` assigns the traceback of an exception, which a frozen dataclass refuses.
    """

    def __enter__(self) -> None:
        """Reserve the process.

        Raises:
            RestartAbort: when a call is in progress in this process, or in the one that it was forked from.
        """
        mine = os.getpid(), threading.get_ident()
        holder = _running.setdefault("call", mine)  # atomic: two threads may come at once
        if holder is not mine:
            raise _refusal(holder, mine)

    def __exit__(self, *error: object) -> None:
        _running.pop("call", None)


def _refusal(holder: Holder, mine: Holder) -> RestartAbort:
    if holder[0] != mine[0]:
        return RestartAbort(
            f"a wrapped function was called in process {mine[0]}, a child of the rank in process {holder[0]}, which "
            "runs one",
            advice="call it in the rank only; a child that is to be a rank is started anew, with a RANK of its own",
        )
    if holder[1] != mine[1]:
        return RestartAbort(
            "a wrapped function was called in a second thread while another thread runs one",
            advice="call one after the other: a process is one rank, and runs one wrapped function at a time",
        )
    return RestartAbort(
        "a wrapped function was called inside another wrapped function",
        advice="wrap the outer function only; its restarts cover what it calls",
    )
