"""One simulated rank in one call: the production flows of its two threads and its monitor process, in virtual time.

The ports of the flows model what those of production do, at once or after a delay.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.errors import StoreLost
from nvrx_core.fault.record import FaultRecord
from nvrx_core.flow import Flow
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.interruption.policy import InterruptPolicy
from nvrx_core.inprocess.protocol.flows import MainThread, MonitorThreadFlow
from nvrx_core.inprocess.protocol.outcome import IterationResult
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.progress.stage import Stage as About
from nvrx_core.rank_assignment.identity import InitialRank

from .entry import Entry
from .function import Function
from .hosted import lose_store
from .rank_thread import ThreadPort
from .virtual_ports import VirtualRank
from .watch import SimulatedPage, taking_over, watch_of
from .world import Task

if TYPE_CHECKING:
    from .call import Call

__all__ = ["Rank", "Stage"]

NOBODY: Final[frozenset[InitialRank]] = frozenset()


class Stage(enum.Enum):
    """The state of a rank."""

    ALIVE = "alive"
    FINISHED = "finished"
    LEFT = "left"
    DEAD = "dead"
    LOST = "lost the store"


class Rank(VirtualRank):
    """One rank.

    Args:
        call: the call that it takes part in; the first one it enters with all others at once.
        member: its initial rank.
        process: which process of the job it is.

    Attributes:
        gone: its process has ended together with its monitor process.
        expired: it has given up at the entry of the call.
        leaving: its function has left the job by an exception of its own.
        page: its progress page, with the stage of its main thread.
        lost, noticed, aborting: as the page has them.
        now: the time.
        awake: of its monitor process; `beat_at`: when that has last run.
    """

    awake: AwakeClock
    policy: InterruptPolicy
    cause: FaultRecord | None = None

    def __init__(self, call: Call, member: InitialRank, process: int) -> None:
        super().__init__(member, call.members, call.timeouts)
        self.call, self.world, self.process = call, call.world, process
        self.stage = Stage.ALIVE
        self.gone = self.expired = self.leaving = False
        self.lost = NOBODY
        self.inside: int | None = None
        self.function = Function(self)
        self.noticed = self.aborting = -2
        self.page = SimulatedPage(self, About.OUTSIDE if call.number else About.STARTING)
        self.woken, self.paused_until, self.thaws_at = False, 0.0, 0.0
        self.now = self.world.time
        self.beat_at = self.world.now
        self.entry = Entry(self) if call.number else None
        if self.entry is not None:
            self.main = self.thread = self._task("", self.entry.run, self._check_loss)
        else:
            self.begin()
        self.monitor = self._begin_monitor(replaces=False)

    @property
    def name(self) -> str:
        """Its name in the history."""
        return f"{self.member} of call {self.call.number}" if self.call.number else f"{self.member}"

    def begin(self) -> None:
        """It has met the others: run its two threads."""
        call = self.call
        ports = call.main_port(self).ports()
        flow = MainThread(self.rounds, self.state, call.rules_of(self.member), ports=ports, now=self.now)
        self.main = self._task("", flow.run, self._over)
        port = ThreadPort(self)
        thread = MonitorThreadFlow(self.rounds, port, port)
        self.thread = self._task("thread", thread.run, self._thread_over)

    def _task(self, part: str, begin: Callable[[], Flow[Any]], ended: Callable[[Any], None]) -> Task:
        return Task(self.world, self, part, begin, self.call.wire, ended)

    def poke(self) -> None:
        """Notify its threads that a condition may have changed."""
        self.main.poke()
        self.thread.poke()

    def go(self, inside: int | None) -> None:
        """Enter a function, or leave it."""
        self.call.moves(self.inside, inside)
        self.inside = inside

    def is_dead(self) -> bool:
        """Its process has ended."""
        return self.stage is Stage.DEAD

    def goes_on(self) -> bool:
        """Its process lives, and is in a call or on its way to the next one."""
        return self.stage is Stage.ALIVE or (self.stage is Stage.FINISHED and self.call.goes_on)

    def enter(self, about: About) -> None:
        """Set the stage on the page; the monitor process looks when something may hang."""
        self.page.stage = about
        if self.call.hangs or about is About.LEFT:
            self.wake_monitor()

    def wake_monitor(self) -> None:
        """Have the monitor process look at the page."""
        self.woken = True
        self.monitor.poke()

    def has_met(self) -> bool:
        """The others of its process group can be reached."""
        return self.iteration == 0 or self.call.slots[self.iteration].hosted

    def fault(self, kind: Interruption, exit_code: int = 0) -> FaultRecord:
        """Return a fault of this rank, without its exit code, which no simulated rank looks at."""
        return FaultRecord(
            initial_rank=self.member, rank=self.state.rank, interruption=kind.name, occurred=self.world.now
        )

    # Injected faults

    def die(self, *, node: bool) -> None:
        """Kill the process at its current position, or between two calls."""
        self.world.note(self.name, "dies with its node" if node else "dies", self.iteration)
        self.stage, self.gone = Stage.DEAD, node
        self.main.end()
        self.thread.end()
        self.go(None)
        if node:
            self.monitor.end()
        self.monitor.poke()
        self.call.ended(self)

    def replace_monitor(self) -> None:
        """Kill the monitor process; after a while another one starts from the state on the page."""
        if self.gone or not self.monitor.alive:
            return
        self.world.note(f"{self.name}'s monitor", "is killed", self.iteration)
        self.monitor.end()

        def again() -> None:
            if not self.gone:
                self.monitor = self._begin_monitor(replaces=True)
                if self.thaws_at > self.world.now:
                    self.monitor.freeze()

        self.world.after(self.world.rng.uniform(0.0, 0.02), again)

    def pause_monitor(self, seconds: float) -> None:
        """Stop the monitor process, or the renewal of its lease, for a while."""
        self.paused_until = self.world.now + seconds

    def resume_monitor(self) -> None:
        """Resume it."""
        if self.paused_until > self.world.now:
            self.paused_until = self.world.now
            self.monitor.poke()

    def freeze(self, seconds: float) -> None:
        """Stop the process and its monitor process, as a paused machine does; then they go on where they were."""
        self.world.note(self.name, f"is paused for {seconds:.3f} s", self.iteration)
        self.thaws_at = self.world.now + seconds
        for task in self._tasks():
            task.freeze()
        self.world.after(seconds, self._thaw)

    def _thaw(self) -> None:
        if self.world.now >= self.thaws_at:
            self.world.note(self.name, "goes on", self.iteration)
            for task in self._tasks():
                task.thaw()

    def _tasks(self) -> Iterable[Task]:
        """Its tasks, in the same order in each process; on entry, one task stands for both of its threads."""
        return dict.fromkeys((self.main, self.thread, self.monitor))

    def _over(self, ended: IterationResult | BaseException) -> None:
        """The flow of the main thread has ended, or the loss of the store has ended it."""
        if isinstance(ended, IterationResult):
            if isinstance(ended.error, AssertionError):
                raise ended.error  # a violation, which the flow has taken for an error of the user's
        else:
            self._check_loss(ended)
        if self.stage is not Stage.LOST:
            self.stage = Stage.FINISHED if self.rounds.view.finished else Stage.LEFT
        self.world.note(self.name, f"has {self.stage.value}", self.iteration)
        self.thread.end()
        self.enter(About.LEFT)
        self.call.ended(self)
        if self.goes_on():
            self.call.schedule.continues(self)

    def give_up(self) -> None:
        """Leave the call, which not all ranks have entered."""
        self.world.note(self.name, "gives up", self.iteration)
        self.stage, self.expired = Stage.LEFT, True
        self.enter(About.LEFT)
        self.call.ended(self)

    def lose_call(self) -> None:
        """Leave the call, whose store is lost on the way in."""
        self.world.note(self.name, "finds no store", self.iteration)
        self.stage = Stage.LOST
        self.enter(About.LEFT)

    def _thread_over(self, loss: BaseException | None) -> None:
        if loss is not None:
            self._check_loss(loss)
            lose_store(self)
        self.main.poke()

    def _check_loss(self, loss: BaseException | None) -> None:
        """A part of the rank has ended, because the store is lost if there is a loss."""
        if loss is not None and self.call.hosting is None:
            raise loss
        if isinstance(loss, StoreLost):
            assert not self.leaving, f"I17: {self.name} ends with the loss of the store, and has left by itself"
            self.stage = Stage.LOST

    def _begin_monitor(self, *, replaces: bool) -> Task:
        watch = self.watch = watch_of(self, replaces=replaces)
        begin: Callable[[], Flow[None]] = (lambda: taking_over(self, watch)) if replaces else watch.run
        return self._task("monitor", begin, self._check_loss)
