"""The values that rank, rank monitor and launcher exchange. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "HeartbeatTimeouts",
    "InvalidStateTransitionException",
    "RankInfo",
    "RankMonitorClientError",
    "SectionTimeouts",
    "WorkloadAction",
    "WorkloadControlRequest",
]


class RankMonitorClientError(Exception):
    """A call of `RankMonitorClient` that fails; the message says what to do."""


class InvalidStateTransitionException(Exception):
    """A transition that the rank monitor's state machine does not have."""


class WorkloadAction(enum.IntEnum):
    """The actions that a rank can request of the launcher.

    Attributes:
        Continue: none.
        ExcludeThisNode: this node takes no further part in the job.
        ShutdownWorkload: the job ends and is not restarted.
    """

    Continue = 0
    ExcludeThisNode = 1
    ShutdownWorkload = 2


class SectionAction(enum.IntEnum):
    """What a rank may do with its sections; nvrx's client does it by methods.

    Attributes:
        OPEN: `RankMonitorClient.start_section`.
        CLOSE: `end_section`.
        CLOSE_ALL: `end_all_sections`.
    """

    OPEN = 1
    CLOSE = 2
    CLOSE_ALL = 3


@dataclass(frozen=True)
class WorkloadControlRequest:
    """A request of a rank to the launcher, sent by `RankMonitorClient.send_workload_control_request`.

    Attributes:
        action: the action.
        description: the reason, for the launcher's log.
    """

    action: WorkloadAction
    description: str = ""


@dataclass(frozen=True)
class RankInfo:
    """The identity of a rank.

    Attributes:
        global_rank: its number in the job.
        local_rank: its number on its host.
        host: the name of its host.
        pid: its process.
    """

    global_rank: int
    local_rank: int
    host: str
    pid: int


@dataclass(frozen=True)
class HeartbeatTimeouts:
    """Timeouts between heartbeats, in seconds; None is no timeout.

    Attributes:
        initial: from the start of monitoring to the first heartbeat.
        subsequent: between two heartbeats.
        were_calculated: whether they were learned, not configured.
    """

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool = False

    @property
    def are_valid(self) -> bool:
        """Whether there are both timeouts; for code that was written for nvidia-resiliency-ext."""
        return self.initial is not None and self.subsequent is not None


@dataclass(frozen=True)
class SectionTimeouts:
    """Timeouts of sections, in seconds; None is no timeout.

    Attributes:
        section: by name of the section.
        out_of_section: with no section open.
        calculated_sections: the names of sections whose timeouts were learned.
        is_out_of_section_calculated: whether `out_of_section` was learned.
    """

    section: Mapping[str, float | None] = field(default_factory=dict)
    out_of_section: float | None = None
    calculated_sections: frozenset[str] = frozenset()
    is_out_of_section_calculated: bool = False

    @property
    def are_valid(self) -> bool:
        """Whether no timeout is missing; for code that was written for nvidia-resiliency-ext."""
        return self.out_of_section is not None and None not in self.section.values()

    @property
    def were_calculated(self) -> bool:
        """Whether all of these timeouts were learned."""
        return self.is_out_of_section_calculated and self.calculated_sections >= set(self.section)
