"""The evidence of this node's ranks on a hang: each rank's monitor is asked, and none is waited for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from nvrx_core.fault.hang_report import HangReport
from nvrx_core.fault_tolerance.evidence import EVIDENCE
from nvrx_core.fault_tolerance.wire import Connection, WireError, close_all, connect
from nvrx_core.parsing import string
from nvrx_launcher.loop import EventLoop

__all__ = ["NodeEvidence"]


class NodeEvidence:
    """One question at a time to the monitors of this node.

    Args:
        loop: the event loop that watches the connections.
        sockets: those of the monitors, by local rank.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, loop: EventLoop, sockets: Iterable[Path]) -> None:
        self._loop, self._sockets = loop, list(sockets)
        self._asked, self._found = dict[int, Connection](), dict[int, HangReport]()
        self._answer: Callable[[Mapping[int, HangReport]], object] | None = None
        self.deadline = math.inf

    def ask(self, answer: Callable[[Mapping[int, HangReport]], object], *, until: float) -> None:
        """Ask all monitors; answer with the reports that come until then, monotonic seconds, by local rank."""
        self.close()
        self._found, self._answer, self.deadline = {}, answer, until
        for local_rank, path in enumerate(self._sockets):
            with suppress(OSError):
                connection = connect(path, within=0.0)
                self._asked[local_rank] = connection
                self._loop.watch(connection.fileno(), partial(self._receive, local_rank))
                connection.send({"type": EVIDENCE, "until": until})
        if not self._asked:
            self._finish()

    def tick(self, *, now: float) -> None:
        """Answer with what there is, if the time is over."""
        if now >= self.deadline:
            self._finish()

    def close(self) -> None:
        """Stop waiting."""
        self._answer, self.deadline = None, math.inf
        for local_rank in list(self._asked):
            self._forget(local_rank)

    def _receive(self, local_rank: int) -> None:
        with suppress(WireError, ValueError):
            message, descriptors = self._asked[local_rank].receive()
            close_all(descriptors)
            if text := string(message.get("report")):
                self._found[local_rank] = HangReport.decode(text)
        self._forget(local_rank)
        if not self._asked:
            self._finish()

    def _forget(self, local_rank: int) -> None:
        connection = self._asked.pop(local_rank)
        self._loop.forget(connection.fileno())
        connection.close()

    def _finish(self) -> None:
        answer, found = self._answer, self._found
        self.close()
        if answer is not None:
            answer(found)
