"""Torch elastic's events, for `--event-log-handler`: the ones that torchrun records, with the same fields.

Imports torch when a handler other than "null" is selected.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any, Protocol

from nvrx_core.errors import ConfigurationError
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.environment import Placement
from nvrx_launcher.workers.worker import Failure, Worker

__all__ = ["EventRecorder", "NoEvents", "TorchEvents", "event_recorder"]


class EventRecorder(Protocol):
    """The receiver of the events that torchrun records."""

    def started(self, placement: Placement, workers: Mapping[int, Worker]) -> None:
        """The workers of a cycle have been started."""

    def ended(self, code: int, failures: Mapping[int, Failure]) -> None:
        """The job has ended, with the workers of the last cycle that have failed, by local rank."""


class NoEvents:
    """Records nothing."""

    def started(self, placement: Placement, workers: Mapping[int, Worker]) -> None:
        """Do nothing."""

    def ended(self, code: int, failures: Mapping[int, Failure]) -> None:
        """Do nothing."""


def event_recorder(options: LaunchOptions) -> EventRecorder:
    """Return the recorder that the options select.

    Raises:
        ConfigurationError: when the handler is not registered.
    """
    return NoEvents() if options.event_log_handler == "null" else TorchEvents(options)


class TorchEvents:
    """Records by a handler that is registered with torch elastic.

    Args:
        options: the job, and the handler's name.

    Raises:
        ConfigurationError: when the handler is not registered.
    """

    def __init__(self, options: LaunchOptions) -> None:
        from torch.distributed.elastic import events

        self._options, self._events, self._begin = options, events, time.monotonic()
        self._handler, self._host = options.event_log_handler, socket.getfqdn()
        self._placement: Placement | None = None
        self._pids = dict[int, int]()
        try:
            events.get_logging_handler(self._handler)
        except KeyError:
            problem, advice = f"torch elastic has no handler {self._handler!r}", "write console, or register it"
            raise ConfigurationError("command line", "--event-log-handler", problem, advice) from None

    def started(self, placement: Placement, workers: Mapping[int, Worker]) -> None:
        """Record the start of each worker."""
        self._placement = placement
        self._pids = {local_rank: worker.pid for local_rank, worker in workers.items()}
        for local_rank in self._pids:
            self._record("START", local_rank)

    def ended(self, code: int, failures: Mapping[int, Failure]) -> None:
        """Record how each worker has ended, and the launcher."""
        for local_rank in self._pids:
            failure = failures.get(local_rank)
            ended = "FAILED" if failure is not None else "TERMINATED" if code else "SUCCEEDED"
            self._record(ended, local_rank, failure)
        self._record("FAILED" if code else "SUCCEEDED")

    def _record(self, state: str, local_rank: int | None = None, failure: Failure | None = None) -> None:
        source = self._events.EventSource.AGENT if local_rank is None else self._events.EventSource.WORKER
        metadata = self._metadata(state, local_rank, failure)
        self._events.record(
            self._events.Event(f"torchelastic.worker.status.{state}", source, metadata=metadata), self._handler
        )

    def _metadata(self, state: str, local_rank: int | None, failure: Failure | None) -> dict[str, Any]:
        place, options = self._placement, self._options
        rank = None if place is None or local_rank is None else place.first_rank + local_rank
        details: dict[str, Any] = {
            "group_world_size": place and place.group_world_size, "entry_point": options.script,
        }  # fmt: skip
        if place is not None and local_rank is not None:
            details |= {
                "local_rank": (local_rank,), "role_rank": (rank,), "role_world_size": (place.world_size,),
                "exit_code": (failure and failure.code,), "worker_pid": (failure and failure.pid,),
            }  # fmt: skip
        return {
            "run_id": options.run_id, "global_rank": rank, "group_rank": place and place.group_rank,
            "worker_id": None if local_rank is None else str(self._pids[local_rank]), "role": options.role,
            "hostname": self._host, "state": state, "total_run_time": int(time.monotonic() - self._begin),
            "rdzv_backend": options.backend, "raw_error": failure and failure.raw_error(),
            "metadata": json.dumps(details), "agent_restarts": place.cycle if place else 0, "duration_ms": None,
        }  # fmt: skip
