"""The connection of a process to its rank monitor for the duration of a `fit` call, restarts included."""

from __future__ import annotations

import logging
from typing import Self

from nvrx_core.fault_tolerance import RankMonitorClient, RankMonitorClientError
from nvrx_core.fault_tolerance.attachment import AttachedRank
from nvrx_core.progress import monitored
from nvrx_core.settings import environment

__all__ = ["MonitorConnection"]


class MonitorConnection:
    """The client of the rank monitor: the script's client, if it has one, else a new one.

    Args:
        client: the client.
        is_own: whether the connection created the client and shuts it down.
    """

    def __init__(self, client: RankMonitorClient, *, is_own: bool) -> None:
        self.client, self._is_own = client, is_own

    @classmethod
    def open(cls, log: logging.Logger, least_learned: float | None) -> Self | None:
        """Connect; return None if there is no monitor or it does not answer.

        Args:
            log: logger for a monitor that does not answer.
            least_learned: seconds from which a learned timeout is enforced; None: as the script's client or the
                configuration has it.
        """
        rank = monitored.current()
        if isinstance(rank, AttachedRank) and isinstance(rank.owner, RankMonitorClient):
            given = [each for each in (rank.owner.least_learned, least_learned) if each is not None]
            rank.owner.least_learned = max(given, default=None)
            return cls(rank.owner, is_own=False)
        if environment.rank_monitor_socket() is None:
            return None
        client = RankMonitorClient(least_learned=least_learned)
        try:
            client.init_workload_monitoring()
        except RankMonitorClientError as error:
            log.warning("this training is not watched by a rank monitor: %s", error)
            return None
        return cls(client, is_own=True)

    def close(self) -> None:
        """Stop the monitoring, if this connection started it."""
        if self._is_own:
            self.client.shutdown_workload_monitoring()
