"""The configuration of a rank monitor, passed when it is started."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

__all__ = ["RankMonitorPlan"]


@dataclass(frozen=True)
class RankMonitorPlan:
    """The configuration of one rank monitor, passed as JSON on its command line.

    Attributes:
        page: the descriptor of the progress page.
        listener: the descriptor of the listening socket.
        path: the path of its socket.
        stacks: the reading and the writing end of the pipe for the rank's stacks.
        launcher: the socket of the launcher, which knows the progress of other nodes; "" for none.
        questions: the monitor's and the rank's end of the sockets over which the rank is asked where it is; none
            without a launcher, or where it gives no verdicts on hangs.
        interval: the maximum number of seconds between two samples of the page.
        termination_signal: the signal that ends a hung rank.
        log_level: of the monitor's own log, on stderr.
        log_format: the form of that log, text or json.
        job: the name of the job, for that log.
        several_nodes: the log names host and job in each line.
        is_restarter_logger: log the transitions of the state machine.
        config: the fault tolerance configuration, sent to a rank when it connects.
    """

    page: int
    listener: int
    path: str
    stacks: Sequence[int]
    interval: float
    launcher: str = ""
    questions: Sequence[int] = ()
    termination_signal: int = signal.SIGKILL
    log_level: int = logging.INFO
    log_format: str = "text"
    job: str = ""
    several_nodes: bool = False
    is_restarter_logger: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the result of `to_json`."""
        return cls(**json.loads(text))
