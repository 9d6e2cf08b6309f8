"""The timeouts of progress of a call, and what is derived from them. Pure."""

from __future__ import annotations

from typing import Final

from nvrx_core.values import value

__all__ = ["HangTimeouts"]

MAX_UNWIND: Final = 10.0
"""Seconds that cleanup in the function may take, at most, before it is interrupted as well."""


@value
class HangTimeouts:
    """When a rank without progress counts as hung, and how often progress is recorded; seconds.

    Attributes:
        soft: after so long, all ranks restart.
        hard: after so long, the rank's process is ended.
        watchdog: between two heartbeats of the watchdog thread, as the user asks for.
        heartbeat: between two renewals of the lease, likewise.
        heartbeat_timeout: after so long without one, a rank counts as lost.
    """

    soft: float
    hard: float
    watchdog: float
    heartbeat: float
    heartbeat_timeout: float

    @property
    def watchdog_interval(self) -> float:
        """The time between two heartbeats of the watchdog thread."""
        return min(self.watchdog, self.soft / 20)

    @property
    def lease_interval(self) -> float:
        """The time between two renewals of the lease, in which the others see how far this rank is."""
        return min(self.heartbeat, self.soft / 4)

    @property
    def sibling_interval(self) -> float:
        """The time between two observations of a sibling's lease, at least."""
        return max(self.lease_interval, self.heartbeat_timeout / 10)

    @property
    def stalled_after(self) -> float:
        """The time without a sign of life after which a rank counts as stalled, where another one is hung."""
        return self.soft / 2

    @property
    def gil_silence(self) -> float:
        """The time without a heartbeat of the watchdog thread after which the rank's threads do not run."""
        return 1.5 * self.watchdog_interval + 0.25

    @property
    def after_soft(self) -> float:
        """The time from the soft to the hard timeout, within which a rank must be helped out of its function."""
        return self.hard - self.soft

    @property
    def unwind(self) -> float:
        """The time that cleanup in the function may take before it is interrupted as well."""
        return min(MAX_UNWIND, self.after_soft / 2)

    @property
    def hold(self) -> float:
        """The time for which anything but an import may defer an interruption: the hard timeout counts from it."""
        return self.hard - 2 * self.unwind

    @property
    def unheard_query_interval(self) -> float:
        """The time between two questions whether a round goes on without the rank."""
        return self.hard / 4

    @property
    def unheard_renewal(self) -> float:
        """The time from an answer that the round is over until the rank, which does not hear of it, connects again."""
        return self.hard / 8

    @property
    def unheard_end(self) -> float:
        """The time from that answer until the rank is ended, which is within the hard timeout of the round's end."""
        return self.hard / 2
