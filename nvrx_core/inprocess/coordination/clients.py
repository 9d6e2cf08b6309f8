"""The rank that hosts the store exits last: it waits for its clients, the members that still need the store.

A client that no longer needs the store writes `left`, or its monitor process does. The lease of one that is lost with
its monitor process is not renewed: it is not waited for beyond the heartbeat timeout.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection
from typing import Final

from nvrx_core.inprocess.coordination.membership import Membership
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.lease import LeaseTable
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["await_clients"]

log = logging.getLogger("nvrx_core.inprocess")
SAID_AFTER: Final = 2.0
"""Seconds after which a wait is logged."""
TURN: Final = 0.5
"""Seconds between two questions to the store: a wait inside it would hold signals off, Ctrl-C among them."""


def await_clients(membership: Membership, members: Collection[InitialRank], heartbeat_timeout: float) -> None:
    """Wait until all members have left or are unresponsive.

    Args:
        membership: knows which clients have left.
        members: the clients.
        heartbeat_timeout: seconds without a renewal of its lease after which a client is unresponsive.

    Raises:
        StoreFailure: when the store is lost.
    """
    table, awaited, awake = LeaseTable[InitialRank](heartbeat_timeout), sorted(members), AwakeClock()
    pause, look_at, say_at = threading.Event(), 0.0, awake.at(time.monotonic()) + SAID_AFTER
    while not membership.have_left(awaited):
        now = awake.at(time.monotonic())
        if now >= say_at:
            log.warning("this rank hosts the control store and waits for its clients, the ranks that still run")
            say_at = math.inf
        if now >= look_at:
            look_at = now + heartbeat_timeout / 4
            leases = membership.leases(awaited)
            for member in awaited:
                table.observe(member, leases.get(member, ""), now=now)
            silent = table.stale(now=now)
            awaited = [member for member in awaited if member not in silent]
        meant = time.monotonic() + TURN
        pause.wait(TURN)
        awake.woke(meant, now=time.monotonic())
