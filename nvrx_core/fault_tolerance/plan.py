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
        listener: that of the listening socket.
        path: where it listens.
        stacks: the reading and the writing end of the pipe for the rank's stacks.
        launcher: where the launcher listens, which knows of other nodes; "" for none.
        interval: seconds between two looks at the page, at most.
        grace: seconds from the termination signal until the rank's process is killed.
        termination_signal: what ends a hung rank.
        log_level: of the monitor's own log, on stderr.
        is_restarter_logger: log the transitions of the state machine.
        config: the fault tolerance configuration, which a rank gets when it connects.
    """

    page: int
    listener: int
    path: str
    stacks: Sequence[int]
    interval: float
    launcher: str = ""
    grace: float = 15.0
    termination_signal: int = signal.SIGKILL
    log_level: int = logging.INFO
    is_restarter_logger: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the plan that `to_json` has made a text of."""
        return cls(**json.loads(text))
