"""Joining a generation of keys: the shell of `Join` on the control store.

The monitor process completes it for a rank that died while it joined. Another process with the RANK of this one may
have joined the other ranks earlier. A job that has just begun is then ended on all ranks: nothing shows which of the
two processes is the intended one. A job that has run for longer continues, and only the late process exits.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from datetime import timedelta
from typing import Final

from nvrx_core.errors import BarrierTimeout, JobMismatch, RankDiscarded
from nvrx_core.events.log import boot_id
from nvrx_core.fault.record import JOB_MISMATCH, FaultRecord
from nvrx_core.flow import operation, run
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.coordination.control_store import RoundOperations
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore, guard
from nvrx_core.inprocess.coordination.presence import Presence, Reminders, claimed_ranks, find_presence
from nvrx_core.inprocess.protocol.join import (
    CONFLICT,
    EXPIRED,
    MET,
    MOVED,
    Conflicting,
    Expired,
    Join,
    Joined,
    Superseded,
    process_of,
    shared_with,
)
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.parsing import parse_object
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks
from nvrx_core.store.keys import StoreKeys
from nvrx_core.values import value

__all__ = ["Duplicate", "JoinOperations", "JoinRequest", "Joining", "end_job", "join_for_dead"]


log = logging.getLogger("nvrx_core.inprocess")
THREAD_ENDS_WITHIN: Final = 10.0
READ_WITHIN: Final = timedelta(seconds=2)
REMINDERS: Final = Reminders()


@value
class JoinRequest:
    """The rank that joins.

    Attributes:
        member: its initial rank.
        restarts: a launcher restarts all ranks when one has exited.
        terms: the terms that must be equal on all ranks of the job, as JSON.
        incarnation: identifies this call of this process; includes host and pid, for people.
    """

    member: InitialRank
    restarts: bool
    terms: str = ""
    incarnation: str = field(default_factory=lambda: f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}")


class JoinOperations:
    """The keys of the generations, as the port of `Join`. Each operation raises `StoreFailure` when the store fails.

    Args:
        store: the connection.
        keys: the keys of the call, in any generation.
        member: the rank that joins.
        page: the progress page, where its monitor process reads what it claims.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys, member: InitialRank, page: Page) -> None:
        self._store, self._keys, self._member, self._page = store, keys, member, page

    @operation
    def read_verdict(self, generation: int) -> str | None:
        """Return the generation's verdict, None while it has none."""
        with guard():
            verdict = self._store.try_get(self._keys.verdict(generation))
            return None if verdict is None else verdict.decode()

    @operation
    def claim(self, generation: int, incarnation: str) -> str:
        """Claim this rank's place, unless it is taken; return the present claim."""
        self._page[ProgressField.CLAIMED] = generation + 1
        with guard():
            return self._store.put_once(self._keys.of(generation).claim(self._member), incarnation).decode()

    @operation
    def agree(self, generation: int, terms: str) -> str:
        """Write this rank's terms, unless there are some; return the present ones, a JSON object."""
        with guard():
            present = self._store.put_once(self._keys.of(generation).terms(), terms).decode()
            parse_object(present)
            return present

    @operation
    def count_claim(self, generation: int) -> int:
        """Count the claim; return how many were counted, this one included."""
        return self._store.count(self._keys.of(generation).claims())

    @operation
    def all_claimed(self, generation: int) -> bool:
        """Return whether every place is taken."""
        keys = self._keys.of(generation)
        return self._store.has([keys.claim(rank) for rank in initial_ranks(self._page.world_size)])

    @operation
    def close(self, generation: int, verdict: str) -> str:
        """Write the verdict on the generation, unless it has one; return the present one."""
        if verdict == MOVED:
            log.info("generation %d of the store's keys is of an earlier start of this job", generation)
        with guard():
            return self._store.put_once(self._keys.verdict(generation), verdict).decode()


class Joining:
    """The joining of the main thread, and how it waits for a verdict.

    Args:
        links: the connections of the call, with its keys in any generation.
        page: the progress page, which the monitor process reads.
        join_request: this rank.
        timeout: how long the others are waited for.
        reminders: when to log the missing ranks.
    """

    def __init__(
        self,
        links: Connections,
        page: Page,
        join_request: JoinRequest,
        *,
        timeout: timedelta,
        lease_interval: float,
        reminders: Reminders = REMINDERS,
    ) -> None:
        self.links, self.store, self.keys = links, links.main_store, links.keys
        self.page, self.size, self.request, self.member = page, page.world_size, join_request, join_request.member
        self.timeout, self.lease_interval = timeout.total_seconds(), lease_interval
        self.started, self.reminders = time.monotonic(), reminders

    def run(self) -> StoreKeys:
        """Join the other ranks; return the keys of the generation.

        Raises:
            JobMismatch: when the ranks contradict each other.
            BarrierTimeout: when not all have joined within `timeout`.
            RankDiscarded: when another process has taken this rank's place.
            StoreFailure: when the store is lost.
        """
        mine, unique = self.request, not self.request.restarts
        store = JoinOperations(self.store, self.keys, self.member, self.page)
        join = Join(store, self, self.size, mine.incarnation, terms=mine.terms, unique=unique)
        step = run(join.run())
        if isinstance(step, Superseded) and unique:
            text = shared_with(mine.terms, step.by)
            end_job(self.store, self.keys.of(step.generation), self.member, text)
            step = Conflicting(step.generation, text)
        if isinstance(step, Superseded):
            raise RankDiscarded(
                f"another process ({process_of(step.by)}) has entered as rank {self.member} after this one "
                f"({process_of(mine.incarnation)})",
                rank=self.member,
            )
        if isinstance(step, Conflicting | Expired):
            self._await_readers(step.generation, mine=join.claimed == step.generation)
        if isinstance(step, Conflicting):
            raise JobMismatch(f"the ranks of this job contradict each other: {step.text}")
        if isinstance(step, Expired):
            raise _timed_out(step.text, self.timeout)
        self.page[ProgressField.GENERATION] = step.generation + 1
        return self.keys.of(step.generation)

    @operation
    def await_verdict(self, generation: int) -> str:
        """Return the verdict on the generation; another thread waits for it, so that signals interrupt this one."""
        key, deadline = self.keys.verdict(generation), self.started + self.timeout
        duplicate = Duplicate(self.store, self.keys.of(generation - 1), self.member, self.reminders.lease)
        with self._waiting_for(key) as answers:
            line_at = time.monotonic() + self.reminders.first
            while (now := time.monotonic()) < deadline:
                try:
                    return _verdict(answers.get(timeout=max(0.0, min(line_at, duplicate.due, deadline) - now)))
                except queue.Empty:
                    now = time.monotonic()
                if now >= duplicate.due and duplicate.lives() and not self.request.restarts:
                    text = shared_with(self.request.terms, duplicate.claim)
                    duplicate.end_young_job(text, self.lease_interval)
                    return self.store.put_once(key, f"{CONFLICT}{text}").decode()
                if line_at <= now < deadline:
                    log.warning("waiting at entry since %.0f s; %s", now - self.started, self._presence(generation))
                    line_at += self.reminders.every
            verdict = f"{EXPIRED}{self._presence(generation).encode()}"
            return self.store.put_once(key, verdict).decode()

    def _presence(self, generation: int) -> Presence:
        return find_presence(self.store, self.keys.of(generation), self.size, self.member)

    @contextmanager
    def _waiting_for(self, key: str) -> Iterator[queue.SimpleQueue[bytes | StoreFailure]]:
        answers = queue.SimpleQueue[bytes | StoreFailure]()

        def wait() -> None:
            try:
                answers.put(self.links.waiting_store.wait_value(key))
            except StoreFailure as failure:
                answers.put(failure)

        thread = threading.Thread(target=wait, name="nvrx-join", daemon=True)
        thread.start()
        try:
            yield answers
        except BaseException:  # boundary: the rank leaves, and its connections with it
            self.links.cut()
            raise
        finally:
            thread.join(THREAD_ENDS_WITHIN)

    def _await_readers(self, generation: int, *, mine: bool) -> None:
        """Wait until all ranks have read the verdict, if the store ends with this process.

        Args:
            generation: the generation.
            mine: the place in it is not another process's.
        """
        keys = self.keys.of(generation)
        if mine:
            self.store.put(keys.left(self.member), "")
        if self.links.is_hosted_by(self.member):
            self.store.wait([keys.left(rank) for rank in claimed_ranks(self.store, keys, self.size)], READ_WITHIN)


def _timed_out(text: str, seconds: float) -> BarrierTimeout:
    with guard():
        present = Presence.decode(text)
    return BarrierTimeout(
        f"not all ranks have entered within {seconds:g} s; {present}",
        barrier="entry",
        arrived=present.entered,
        expected=present.size,
        missing=present.missing,
        seconds=seconds,
        advice="start the missing ranks, look at their logs, or raise barrier_timeout",
    )


def join_for_dead(store: GuardedStore, keys: StoreKeys, page: Page, dead: JoinRequest) -> StoreKeys | None:
    """Complete the joining of a dead rank; return the keys of the generation in which to report its death, if any.

    If a launcher restarts all ranks, a new incarnation must not meet a dead one, so the generation is closed. Otherwise
    the dead rank has no successor: its place is claimed, so that the others can meet and continue without it.

    Raises:
        StoreFailure: when the store is lost.
    """
    if not page[ProgressField.GENERATION]:
        claimed = page[ProgressField.CLAIMED] - 1
        page[ProgressField.GENERATION] = 1 + (
            _close(store, keys, claimed) if dead.restarts else _claim(store, keys, page, dead)
        )
    generation = page[ProgressField.GENERATION] - 1
    return keys.of(generation) if generation >= 0 else None


def _close(store: GuardedStore, keys: StoreKeys, claimed: int) -> int:
    met = claimed >= 0 and store.put_once(keys.verdict(claimed), MOVED) == MET.encode()
    return claimed if met else -1


def _claim(store: GuardedStore, keys: StoreKeys, page: Page, dead: JoinRequest) -> int:
    """Return the generation that the dead rank has claimed; -1 if there is another incarnation."""
    operations = JoinOperations(store, keys, dead.member, page)
    join = Join(operations, None, page.world_size, dead.incarnation, claimed=page[ProgressField.CLAIMED] - 1)
    end = run(join.run())
    return end.generation if isinstance(end, Joined) else -1


def _verdict(answer: bytes | StoreFailure) -> str:
    if isinstance(answer, StoreFailure):
        raise answer
    with guard():
        return answer.decode()


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
