"""The monitor thread: waits for the round's event, interrupts the main thread, aborts, waits for the decision.

It lives as long as the call and blocks in the store, on a connection of its own: a fault reaches it as a push. The main
thread waits for it on local conditions only, so that nothing but its own function can block the main thread where no
signal reaches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.board import Board
from nvrx_core.inprocess.decision import Decision
from nvrx_core.inprocess.interrupt import Interrupt, RankShouldRestart
from nvrx_core.inprocess.round import Abort, Action, Enter, Finish, ReadEvent, Round, RoundTimeouts
from nvrx_core.inprocess.switch_interval import ShortTurns
from nvrx_core.progress.page import Page, Word

__all__ = ["MonitorThread", "RankShouldRestart", "RoundView"]

log = logging.getLogger("nvrx_core.inprocess")
ENDS_WITHIN: Final = 10.0


@dataclass
class RoundView:
    """A round as both threads of a rank see it; changed under the condition of `MonitorThread`.

    Attributes:
        round: the machine.
        finished: all members completed.
        aborted: the abort is done, the main thread may unwind.
        decision: the round's decision.
        marks: monotonic seconds, by the names of `nvrx_core.events.phases.MARKS`.
    """

    round: Round
    finished: bool = False
    aborted: bool = False
    decision: Decision | None = None
    marks: dict[str, float] = field(default_factory=dict)


class MonitorThread:
    """Runs the rounds of one call.

    Args:
        board: a connection to the store of this thread alone.
        page: the rank's page.
        interrupt: gets the main thread out of the function.
        first: the round to begin with.
        abort: ends what the function waits in; called with the round's machine idle.
        unblock: closes what no signal gets the main thread out of.
        decided: called after each decision, while the main thread goes on.
        failed: called with what has ended the thread, a `StoreFailure` or an error; without it the rank must not go on.

    Attributes:
        noticed: called with the round's number at its event, before anything is done about it.
    """

    def __init__(
        self,
        *,
        board: Board,
        page: Page,
        interrupt: Interrupt,
        first: Round,
        abort: Callable[[], None],
        unblock: Callable[[], None],
        decided: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.board, self.page, self.interrupt = board, page, interrupt
        self.view = RoundView(first)
        self.changed = threading.Condition()
        self._abort, self._unblock, self._decided = abort, unblock, decided
        self.noticed: Callable[[int], None] = lambda iteration: None
        self._failed = failed
        self._turns = ShortTurns()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="nvrx-monitor-thread", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, cut: Callable[[], None]) -> None:
        """End the thread; `cut` ends its wait on the store."""
        self._stopping = True
        self.interrupt.out.set()
        self.interrupt.free.set()
        with self.changed:
            self.changed.notify_all()
        if self._thread.is_alive():
            cut()
        self._thread.join(ENDS_WITHIN)
        if self._thread.is_alive():
            log.warning("the monitor thread does not end within %g s; the rank leaves without it", ENDS_WITHIN)

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except BaseException as error:  # boundary: the thread ends, and with it the rank's part in the job
            if not self._stopping:
                self._failed(error)
        finally:
            self._turns.end()

    def _round(self) -> bool:
        """One round; whether another one follows."""
        view = self.view
        if view.round.iteration >= 0 and not self._ended(view):
            return False
        decision = self.board.wait_decision(view.round.iteration)
        hit("decision-after", view.round.iteration)
        return self._next(view, decision)

    def _ended(self, view: RoundView) -> bool:
        """Wait for the event; whether the round restarts."""
        self.board.wait_event(view.round.iteration)
        view.marks["noticed"] = time.monotonic()
        with self.changed:
            actions = view.round.happened(now=time.monotonic())
        if any(isinstance(action, ReadEvent) for action in actions):
            actions = self._read_event(view)
        for action in actions:
            if isinstance(action, Abort):
                self._end_function(view, action)
        return not view.finished

    def _read_event(self, view: RoundView) -> tuple[Action, ...]:
        cause = self.board.event(view.round.iteration)
        with self.changed:
            actions = view.round.event(cause, now=time.monotonic())
            view.finished = any(isinstance(action, Finish) for action in actions)
            self.changed.notify_all()
        return actions

    def _end_function(self, view: RoundView, abort: Abort) -> None:
        """Fire, then abort: a main thread that is busy would compete with the abort for the interpreter's lock."""
        iteration = view.round.iteration
        self._turns.begin()
        self.noticed(iteration)
        self.page[Word.NOTICED] = iteration + 1
        self._last_call(view.round.timeouts)
        self.interrupt.request(lambda: RankShouldRestart(abort.reason))
        self.interrupt.fire()
        self.interrupt.wait_unmasked()
        self.page[Word.INTERRUPTING] = iteration + 1
        hit("abort-before", iteration)
        self._abort()
        with self.changed:
            view.marks["aborted"] = time.monotonic()
            view.aborted = True
            self.changed.notify_all()
        self.interrupt.drive(self._unblock)

    def _last_call(self, timeouts: RoundTimeouts) -> None:
        """Leave late faults the time that the user has set."""
        if timeouts.last_call > 0:
            with self.changed:
                self.changed.wait_for(lambda: self._stopping, timeouts.last_call)

    def _next(self, view: RoundView, decision: Decision) -> bool:
        """Go on to the next round; False when this rank is not part of it."""
        with self.changed:
            actions = view.round.decided(decision, now=time.monotonic())
            view.decision = decision
            enter = next((action for action in actions if isinstance(action, Enter)), None)
            if enter is not None:
                round_ = view.round
                self.interrupt.reset()
                self.view = RoundView(Round(round_.iteration + 1, round_.member, enter.members, round_.timeouts))
            self.changed.notify_all()
        self._turns.end()
        self._decided()
        return enter is not None
