"""Another process with the RANK of this one, which joined the other ranks earlier.

A job that has just begun is ended on all ranks: nothing shows which of the two processes is the intended one. A job
that has run for longer continues, and only the late process exits.
"""

from __future__ import annotations

import math
import os
import socket
import time
from typing import Final

from nvrx_core.events.log import boot_id
from nvrx_core.fault.record import JOB_MISMATCH, FaultRecord
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.round_operations import RoundOperations
from nvrx_core.inprocess.protocol.join import MET
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.store.keys import StoreKeys

__all__ = ["Duplicate", "end_job"]

YOUNG: Final = 60.0
"""Seconds after its start in which a job has just begun."""


class Duplicate:
    """The process that holds this rank's claim in the previous generation, if there is one.

    It is alive if its lease is renewed while this process waits: the monitor process of a dead one no longer renews it.

    Args:
        store: the connection.
        keys: the keys of the previous generation.
        member: this rank.
        every: seconds between two reads of its lease.

    Attributes:
        claim: its incarnation, "" if there is none.
        due: when the next read is due, monotonic seconds.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys, member: InitialRank, every: float) -> None:
        self._store, self._keys, self._member, self._every = store, keys, member, every
        met = keys.generation >= 0 and store.try_get(keys.verdict(keys.generation)) == MET.encode()
        self.claim = (store.try_get(keys.claim(member)) or b"").decode(errors="replace") if met else ""
        self.due = time.monotonic() + every if self.claim else math.inf
        self._lease = b""

    def lives(self) -> bool:
        """Read its lease; return whether it was renewed since the last read."""
        before, self._lease = self._lease, self._store.try_get(self._keys.lease(self._member)) or b""
        self.due = time.monotonic() + self._every
        return bool(before) and before != self._lease

    def end_young_job(self, text: str, lease_interval: float) -> None:
        """End the job on all ranks, if it has just begun.

        Args:
            text: the reason, for people.
            lease_interval: seconds between two renewals of a lease; their number shows how long the job has run, which
                the clocks of two hosts cannot.
        """
        renewals = self._lease.partition(b"/")[0]
        if renewals.isdigit() and int(renewals) * lease_interval <= YOUNG:
            end_job(self._store, self._keys, self._member, text)


def end_job(store: GuardedStore, keys: StoreKeys, member: InitialRank, text: str) -> None:
    """Announce in the first iteration of a generation that the ranks contradict each other."""
    now = time.monotonic()
    fault = FaultRecord(
        initial_rank=member,
        rank=member,
        interruption="BASE_EXCEPTION",
        message=text,
        error_type=JOB_MISMATCH,
        occurred=now,
        announced=now,
        wall=time.time(),
        boot_id=boot_id(),
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    RoundOperations(store, keys).announce(0, fault)
