"""What this rank had done when a round ended; its report on a hang, and the verdict: one line of one rank for the job.

The monitor thread looks where the main thread is as soon as a round ends, before the function is interrupted: it takes
a fraction of a millisecond. All the rest is done in a thread of its own, beside the restart: if the round was ended by
a soft timeout, the report is written to the store, and the rank whose report is the last one gives the verdict, or the
first one where some have not come in time. No restart waits for it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nvrx_core.events.log import EventLog
from nvrx_core.fault.blame import RankProgress
from nvrx_core.fault.hang_report import HangReport, RankCondition, Waiting
from nvrx_core.fault.hang_verdict import HangVerdict, judge
from nvrx_core.fault.interruption import Interruption
from nvrx_core.hang_evidence import observe_thread, report_of, with_page
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.state import State
from nvrx_core.process import torch_calls
from nvrx_core.process.helper_thread import HelperThread
from nvrx_core.process.thread_wait import dead_children
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import Mode
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.values import value

__all__ = ["HangReporter", "RoundProgress"]

log = logging.getLogger("nvrx_core.inprocess")
RECOUNTS: Final = (0.02, 0.03, 0.05, 0.1, 0.1, 0.15)
"""Seconds before each further count of the reports; then the verdict is given without those missing."""
UNHURRIED: Final = 0.05
"""Seconds for which a rank that has not stalled leaves the store to the restart."""
ENDS_WITHIN: Final = 1.0
_REPORTED: Final = (Stage.STARTING, Stage.RUNNING, Stage.WAITING)
_OWN: Final = "/nvrx_core/inprocess/"
"""The handler of an interruption, which has come before, and what stands between the function and torch."""


@value
class _EndedRound:
    """The members of the round that has ended; the page may have the next one meanwhile."""

    iteration: int
    members: frozenset[InitialRank]
    world_size: int


class RoundProgress:
    """The progress of this rank when a round ended, sampled once, as soon as the round's event is received.

    Later the counters change: the abort clears torch's groups, and an interrupted function runs its cleanup.

    Args:
        page: the rank's page.
        stalled_after: seconds without a sign of life after which a rank counts as stalled.
        observe: updates the page's count of collectives, and returns the counts of the other groups.

    Attributes:
        progress: the progress of the rank.
        stalled: it had shown no sign of life for so long, or was reported.
    """

    def __init__(self, page: Page, stalled_after: float, observe: Callable[[], tuple[tuple[int, int], ...]]) -> None:
        self.page, self._stalled_after, self._observe = page, stalled_after, observe
        self.iteration = -1
        self.progress, self.stalled = RankProgress(), False

    def take(self, iteration: int) -> None:
        """Take the sample of this round; a rank that has not started the iteration has no progress."""
        if iteration == self.iteration:
            return
        page, self.progress, self.stalled = self.page, RankProgress(), False
        if page[ProgressField.ITERATION] == iteration:
            groups = self._observe()
            silent = time.monotonic() - page.alive_at() > self._stalled_after
            silent = silent and page[ProgressField.STAGE] == Stage.RUNNING
            self.stalled = silent or page[ProgressField.STALLED] == iteration + 1
            self.progress = RankProgress(
                rendezvous=page[ProgressField.RENDEZVOUS_COUNT],
                inside=page[ProgressField.RENDEZVOUS_DEPTH],
                collectives=page[ProgressField.COLLECTIVES],
                step=page[ProgressField.STEP],
                groups=groups,
            )
        self.iteration = iteration


class HangReporter:
    """Reports the hangs of one call, created in the thread that runs the function.

    Args:
        state: the state of this rank.
        page: its progress page.
        events: the event file.
        sample: the progress of the rank when the round ended.
        control_store: the call's operations, on a connection on which nobody waits.
        shortest: seconds; a round that was shorter was not ended by a soft timeout.
    """

    def __init__(
        self,
        state: State,
        page: Page,
        events: EventLog,
        *,
        sample: RoundProgress,
        control_store: ControlStore,
        shortest: float,
    ) -> None:
        self._state, self._page, self._events = state, page, events
        self._sample, self._store, self._shortest = sample, control_store, shortest
        self._ident, self._native_id, self._host = (
            threading.get_ident(),
            threading.get_native_id(),
            socket.gethostname(),
        )
        self._began_at = time.monotonic()
        self._older = frozenset[tuple[str, str]]()
        self._closed = threading.Event()
        self._threads = list[HelperThread]()

    def notice(self, iteration: int) -> None:
        """Look where the main thread is, now that the round has ended; report it if that was for a hang.

        Of a rank whose threads did not run, its monitor process has told that: a signal may have ended the call.
        """
        now, page, stalled = time.monotonic(), self._page, self._sample.stalled
        is_reported = page[ProgressField.HANG_REPORTED] == iteration + 1 or page[ProgressField.STAGE] not in _REPORTED
        began_at, self._began_at = self._began_at, now
        if self._closed.is_set() or now < began_at + self._shortest or is_reported:
            return
        ended = _EndedRound(iteration, page.members(), page[ProgressField.WORLD_SIZE])
        try:
            report = self._report(now)
            thread = HelperThread(
                lambda: self._share(ended, report, 0.0 if stalled else UNHURRIED),
                name="nvrx-hang-report",
                failed=lambda error: log.warning("there is no report of the hang: %s", error),
            )
            thread.start()
        except Exception:  # boundary: a restart does not depend on a report, and objects of the user's are looked at
            log.warning("initial rank %d does not report where it is", self._state.initial_rank, exc_info=True)
            return
        self._threads = [*filter(HelperThread.is_alive, self._threads), thread]

    def finish(self) -> None:
        """Wait until what has begun is reported, within a bound: afterwards the call's keys may be deleted."""
        self._join()
        self._closed.set()

    def close(self) -> None:
        """Write nothing more, and end the thread within a bound."""
        self._closed.set()
        self._join()

    def _join(self) -> None:
        deadline = time.monotonic() + ENDS_WITHIN
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _report(self, now: float) -> HangReport:
        """Return the report; no other thread runs bytecode meanwhile, unless a file of /proc takes long to read."""
        page, state, sample = self._page, self._state, self._sample
        out = None
        if page[ProgressField.STAGE] == Stage.WAITING:
            out = RankCondition.COMPLETED if state.mode is Mode.ACTIVE else RankCondition.RESERVE
        observed = observe_thread(
            self._ident, self._native_id, pending=self._is_pending(), out=out,
            in_rendezvous=bool(page[ProgressField.RENDEZVOUS_DEPTH]), handler=_OWN,
        )  # fmt: skip
        is_suspect = sample.stalled and observed.waiting is Waiting.ELSEWHERE  # its cleanup may reap its children
        in_group = torch_calls.rank_and_size()
        rank = state.rank if state.active_rank is None else state.active_rank
        report = report_of(
            observed, rank=rank if in_group is None else in_group[0], initial_rank=state.initial_rank, pid=os.getpid(),
            host=self._host, begun=torch_calls.counts_of_groups(),
        )  # fmt: skip
        return with_page(
            report, page, alive_at=page.alive_at(), stalled=sample.stalled, step=page[ProgressField.STEP] - 1, now=now,
            rendezvous=page[ProgressField.RENDEZVOUS_COUNT],
            children=dead_children(os.getpid()) if is_suspect else (),
        )  # fmt: skip

    def _is_pending(self) -> bool | None:
        """Return whether an operation of a group of this round may be pending, None if torch does not tell."""
        status = torch_calls.flight_status()
        if status is None:
            return None
        older, self._older = self._older, frozenset(status)
        told = [pending for key, pending in status.items() if key not in older]
        return any(told) if told else None  # a recorder that is off knows no group, nor one of an older round

    def _share(self, ended: _EndedRound, report: HangReport, delay: float) -> None:
        """Write the report, if a soft timeout has ended the round, and give the verdict, if that is up to this rank."""
        iteration, members = ended.iteration, len(ended.members)
        if delay and self._closed.wait(delay):
            return
        with suppress(StoreFailure):
            fault = self._store.rounds.read_event(iteration)
            if fault is None or fault.interruption != Interruption.SOFT_TIMEOUT.name or self._closed.is_set():
                return
            written = self._store.hangs.put(iteration, report)
            is_first = written.by_ranks == 1
            for pause in RECOUNTS if is_first else ():
                if sum(written) >= members or self._closed.wait(pause):
                    break
                written = self._store.hangs.written(iteration)
            if (is_first or sum(written) >= members) and self._store.hangs.claim(iteration, self._state.initial_rank):
                self._judge(ended)

    def _judge(self, ended: _EndedRound) -> None:
        """Give the verdict. A reserve has no rank among those that run the function, and nobody waits for it."""
        reports = self._store.hangs.read(ended.iteration, ended.members)
        by_rank = {report.rank: report for report in reports.values() if report.condition is not RankCondition.RESERVE}
        reserves = {report.rank for report in reports.values() if report.condition is RankCondition.RESERVE}
        missing = len(ended.members - reports.keys())
        unreported = sorted(set(range(ended.world_size)) - by_rank.keys() - reserves)[:missing]
        say(judge(by_rank, [*by_rank, *unreported]), ended.iteration, self._events)


def say(verdict: HangVerdict, iteration: int, events: EventLog) -> None:
    """Log the verdict, and write its event."""
    log.error("hang: %s", verdict.sentence)
    events.write("hang_verdict", iteration, **verdict.event_fields())
