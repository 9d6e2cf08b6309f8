"""The monitor thread: the shell of `nvrx_core.inprocess.protocol.monitor_thread`.

It lives as long as the call and blocks in the store, on a connection of its own: a fault reaches it as a push. The main
thread waits for it on a local condition only, so that nothing but its own function can block the main thread where no
signal reaches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.coordination.round_operations import RoundOperations
from nvrx_core.inprocess.coordination.store_rules import round_rules
from nvrx_core.inprocess.interpretation.interpreter import Rules, interpret
from nvrx_core.inprocess.interruption.interrupt import Interrupt, RankShouldRestart
from nvrx_core.inprocess.interruption.switch_interval import ShortTurns
from nvrx_core.inprocess.protocol import effects, monitor_effects
from nvrx_core.inprocess.protocol.decision import Decision
from nvrx_core.inprocess.protocol.monitor_thread import monitor_thread
from nvrx_core.inprocess.protocol.view import Rounds
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["MonitorThread", "RankShouldRestart"]

log = logging.getLogger("nvrx_core.inprocess")
ENDS_WITHIN: Final = 8.0
"""Seconds; it may be connecting to a store that is lost, which torch tries for up to 5 s."""


class Function(Protocol):
    """The wrapped function, as seen from the thread that ends it."""

    def notice(self, iteration: int) -> None:
        """Record that the round has its event; called before anything is done about it."""

    def begin(self, iteration: int) -> None:
        """Abort the calls in which the function waits."""

    def unblock(self) -> None:
        """Close the connection in which the main thread waits, where no signal reaches it."""

    def release(self) -> None:
        """Release what the function has left: the round is decided, and the main thread continues."""


class Losses(Protocol):
    """The receiver of losses of parts of the wrapper without which the rank must not continue."""

    def watcher_failed(self, error: BaseException) -> None:
        """Record that the calling thread ends with `error`, a `StoreFailure` or another one."""


class MonitorThread:
    """Runs the rounds of one call.

    Args:
        operations: those of a round, on a connection of this thread alone.
        page: the rank's page.
        interrupt: gets the main thread out of the function.
        rounds: shared with the main thread.
        changed: held during a step of either thread's flow; notified after each.
        function: what the thread ends.
        losses: told what has ended the thread.

    Attributes:
        marks: monotonic seconds of the round that ends, by the names of `nvrx_core.events.phases.MARKS`.
    """

    def __init__(
        self,
        *,
        operations: RoundOperations,
        page: Page,
        interrupt: Interrupt,
        rounds: Rounds,
        changed: threading.Condition,
        function: Function,
        losses: Losses,
    ) -> None:
        self.operations, self.page, self.interrupt, self.rounds = operations, page, interrupt, rounds
        self.changed, self._function, self._losses = changed, function, losses
        self.marks = dict[str, float]()
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

    @contextmanager
    def step(self) -> Iterator[None]:
        """Surround a step of a flow: it excludes steps of the other thread, which is notified at its end."""
        with self.changed:
            try:
                yield
            finally:
                self.changed.notify_all()

    def _run(self) -> None:
        try:
            interpret(monitor_thread(self.rounds, time.monotonic), self._rules(), self.step)
        except BaseException as error:  # boundary: the thread ends, and with it the rank's part in the job
            if not self._stopping:
                self._losses.watcher_failed(error)
        finally:
            self._turns.end()

    def _rules(self) -> Rules:
        interrupt = self.interrupt
        return {
            **round_rules(self.operations),
            effects.AwaitEvent: self._await_event,
            effects.AwaitDecision: self._await_decision,
            monitor_effects.NoticeEvent: self._notice,
            monitor_effects.LastCall: self._last_call,
            monitor_effects.InterruptFunction: self._interrupt,
            monitor_effects.AbortFunction: self._abort_function,
            monitor_effects.AwaitOut: lambda effect: interrupt.drive(self._function.unblock),
            monitor_effects.ResetInterrupt: lambda effect: interrupt.reset(),
            monitor_effects.RoundDecided: self._round_decided,
        }

    def _await_event(self, effect: effects.AwaitEvent) -> None:
        self.operations.wait_event(effect.iteration)
        self.page[ProgressField.NOTICED] = effect.iteration + 1
        self.marks = {"noticed": time.monotonic()}

    def _await_decision(self, effect: effects.AwaitDecision) -> Decision:
        decision = self.operations.wait_decision(effect.iteration)
        hit("decision-after", effect.iteration)
        return decision

    def _notice(self, effect: monitor_effects.NoticeEvent) -> None:
        self._turns.begin()
        self._function.notice(effect.iteration)

    def _last_call(self, effect: monitor_effects.LastCall) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self._stopping, effect.seconds)

    def _interrupt(self, effect: monitor_effects.InterruptFunction) -> None:
        self.interrupt.request(lambda: RankShouldRestart(effect.reason))
        self.interrupt.fire()
        self.interrupt.wait_unmasked()

    def _abort_function(self, effect: monitor_effects.AbortFunction) -> None:
        self.page[ProgressField.INTERRUPTING] = effect.iteration + 1
        hit("abort-before", effect.iteration)
        self._function.begin(effect.iteration)
        self.marks["aborted"] = time.monotonic()

    def _round_decided(self, effect: monitor_effects.RoundDecided) -> None:
        self._turns.end()
        self._function.release()
