"""An explicit-state checker of one rank, its monitor and a peer, tick by tick, over all reachable states.

In a tick the rank moves or does not, the peer gets ahead or falls behind, and the monitor is lost, is woken, or is not.
The hang detector is rebuilt from its state in every step, so that the state is shown to be all that it depends on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

from nvrx_core.progress.stage import Stage

from .explorer import Space
from .monitor_mutants import Modules

__all__ = ["Ticks", "World"]


TICK: Final = 0.5
TIMEOUT: Final = 3.0
GRACE: Final = 2.0
INTERVAL: Final = 1.0
START: Final = 1000.0
FIRST_LOOK: Final = 1.0
COLLECTIVE: Final = 2.0
"""Seconds for which waiting in a collective is an excuse."""
UNWATCHED: Final = 2.0
"""Seconds without a monitor, or with one that has only just come, at most, while the rank does not move."""
KILLED_EVERY: Final = 1.0
MOST: Final = 5.0
"""Seconds; longer ago is all the same."""

MAX_SAMPLES: Final = 3
"""Of a look that ends."""
ALIVE: Final = {"seen": math.inf, "excused": math.inf}
"""What of the detector's state does not count after the signal."""


@dataclass(frozen=True)
class World:
    """What there is; times in seconds before or after now.

    Attributes:
        silence: since the rank has moved.
        clear: since the rank last had an excuse: the peer was behind it, or it waited in a collective.
        detector: the state of the monitor's hang detector.
        due: until the monitor's next look.
        unwatched: for how long there was no monitor since the rank has moved.
        signalled: since the rank has had its signal.
        killed: since it was killed; a process in the kernel's hands may outlive that.
    """

    silence: float = 0.0
    clear: float = MOST
    detector: Any = None
    due: float = 0.0
    unwatched: float = 0.0
    signalled: float = -math.inf
    killed: float = math.inf

    def later(self, *, moves: bool, behind: bool) -> World:
        """The world after a tick, in which the monitor has not looked; all that counts after the signal is the time."""
        if self.signalled >= 0:
            after = replace(self, silence=TIMEOUT, clear=MOST, due=max(0.0, self.due - TICK), unwatched=0.0)
            after = replace(after, detector=replace(self.detector, **ALIVE))
            return replace(after, signalled=min(self.signalled + TICK, GRACE + TICK), killed=self.killed + TICK)
        return World(
            silence=0.0 if moves else self.silence + TICK,
            clear=0.0 if behind else min(self.clear + TICK, MOST),
            detector=self.detector,
            due=max(0.0, self.due - TICK),
            unwatched=0.0 if moves else self.unwatched,
        )


class Ticks(Space[World]):
    """The ticks of the world; they go on for ever.

    Args:
        modules: as shipped or with a mistake.
    """

    runs_end = False

    def __init__(self, modules: Modules) -> None:
        self.limits, self.machine = modules.limits, modules.hang_detector
        self.rules = self.machine.RankMonitorRules(INTERVAL, GRACE)
        self.ended = self.killed = self.excused = 0

    def first(self) -> World:
        """Nothing has happened."""
        return World(detector=self._fresh())

    def of(self, world: World) -> Iterator[tuple[str, World]]:
        """Return what a tick can bring."""
        for moves, behind in product((False, True), repeat=2):
            after = world.later(moves=moves, behind=behind)
            told = f"it {'moves' if moves else 'does not move'}, the peer is {'behind' if behind else 'ahead'}"
            if world.signalled < 0 and world.unwatched < UNWATCHED:
                unwatched = after.unwatched + TICK + FIRST_LOOK
                yield (
                    f"{told}, the monitor is lost",
                    replace(after, detector=self._fresh(), due=0.0, unwatched=unwatched),
                )
            for woken, wakes, waits in product((False, True), repeat=3):
                looks = f"{', the monitor is woken' * woken}{', it moves while the peers are asked' * wakes}"
                looks += ", it waits in a collective" * waits
                yield f"{told}{looks}", self._go_on(after, woken=woken, wakes=wakes, waits=waits)

    def _fresh(self) -> Any:
        return self.machine.HangDetector(self.rules).state(now=0.0)

    def _go_on(self, world: World, *, woken: bool, wakes: bool, waits: bool) -> World:
        """The monitor looks, when it is due or woken by a message.

        Args:
            world: after a tick.
            woken: by a message.
            wakes: the rank moves while the peers are asked.
            waits: its main thread waits in a collective.
        """
        detector = self.machine.HangDetector.from_state(self.rules, world.detector, now=START - TICK)
        if world.due <= 0.0 or woken:
            world = self._look(detector, world, wakes=wakes, waits=waits)
            world = replace(world, due=min(detector.deadline - START, INTERVAL))
        world = replace(world, detector=detector.state(now=START))
        self._check(world)
        return world

    def _look(self, detector: Any, world: World, *, wakes: bool, waits: bool) -> World:
        """The detector is asked until it asks for nothing more."""
        asks = True
        for _ in range(MAX_SAMPLES):
            detector.check()
            asks = False
            for action in detector.evaluate(self.sample(world), now=START):
                if isinstance(action, self.machine.TerminateRank):
                    world = self.end(world)
                elif isinstance(action, self.machine.KillRank):
                    world = self.kill(world)
                else:
                    assert isinstance(action, self.machine.QueryPeers), action
                    asks, world = True, self._answer(detector, world, wakes=wakes, waits=waits)
            if not asks:
                break
        if asks or detector.deadline <= START:
            raise AssertionError(f"the monitor is never done: {world}")
        return world

    def _answer(self, detector: Any, world: World, *, wakes: bool, waits: bool) -> World:
        """The others answer, and then the rank itself."""
        excuses = self.machine.Excuse
        excuse = excuses.PEER_BEHIND if world.clear == 0.0 else excuses.IN_COLLECTIVE if waits else None
        if excuse is excuses.IN_COLLECTIVE and world.silence < TIMEOUT + COLLECTIVE:
            world = replace(world, clear=0.0)
        self.excused += detector.answered(excuse, now=START)
        return replace(world, silence=0.0, unwatched=0.0) if wakes else world

    def end(self, world: World) -> World:
        """The rank is ended."""
        self.ended += 1
        if world.detector.seen == -math.inf:
            raise AssertionError(f"ended at first sight: {world}")
        if world.silence < TIMEOUT:
            raise AssertionError(f"ended though it is not overdue: {world}")
        if world.clear == 0.0 and world.silence < 2 * TIMEOUT:
            raise AssertionError(f"ended though a peer is behind: {world}")
        return replace(world, signalled=0.0)

    def kill(self, world: World) -> World:
        """It is killed."""
        self.killed += 1
        if world.signalled < GRACE or world.killed < KILLED_EVERY:
            raise AssertionError(f"killed too soon: {world}")
        return replace(world, killed=0.0)

    def _check(self, world: World) -> None:
        if world.signalled > GRACE and world.killed > KILLED_EVERY:
            raise AssertionError(f"still there after its signal: {world}")
        overdue = world.silence - world.unwatched - TIMEOUT
        if world.signalled < 0 and (overdue > TIMEOUT + TICK or min(overdue, world.clear - world.unwatched) > 2 * TICK):
            raise AssertionError(f"still there: {world}")

    def sample(self, world: World) -> Any:
        """What its page says."""
        limits = self.limits
        written = limits.RankSample(
            attached_at=0.0, heartbeat_at=START - world.silence, heartbeat_timeout=TIMEOUT,
            sections=(limits.SectionSample("closed", None, TICK, 3),),
        )  # fmt: skip
        return limits.ProgressSample(
            iteration=0, stage=Stage.OUTSIDE, alive_at=0.0,
            limit=limits.earliest(written), max_sample_interval=written.max_sample_interval,
        )  # fmt: skip
