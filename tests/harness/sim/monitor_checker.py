"""An explicit-state checker of one rank, its monitor and a peer, tick by tick, over all reachable states.

In a tick the rank moves or does not, the peer gets ahead or falls behind, and the monitor is lost, is woken, or is not.
The policy is rebuilt from its state in every step, so that the state is shown to be all that it depends on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from types import ModuleType
from typing import Any, Final

from .explorer import Space

__all__ = ["Ticks", "World"]


TICK: Final = 0.5
TIMEOUT: Final = 3.0
GRACE: Final = 2.0
INTERVAL: Final = 1.0
START: Final = 1000.0
FIRST_LOOK: Final = 1.0
UNWATCHED: Final = 2.0
"""Seconds without a monitor, or with one that has only just come, at most, while the rank does not move."""
KILLED_EVERY: Final = 1.0
MOST: Final = 5.0
"""Seconds; longer ago is all the same."""

MAX_SAMPLES: Final = 3
"""Of a turn that ends."""


@dataclass(frozen=True)
class World:
    """What there is; times in seconds before or after now.

    Attributes:
        silence: since the rank has moved.
        clear: since the peer was last behind the rank.
        policy: the state of the monitor's policy.
        due: until the monitor's next look.
        unwatched: for how long there was no monitor since the rank has moved.
        signalled: since the rank has had its signal.
        killed: since it was killed; a process in the kernel's hands may outlive that.
    """

    silence: float = 0.0
    clear: float = MOST
    policy: Any = None
    due: float = 0.0
    unwatched: float = 0.0
    signalled: float = -math.inf
    killed: float = math.inf

    def later(self, *, moves: bool, behind: bool) -> World:
        """The world after a tick, in which the monitor has not looked; all that counts after the signal is the time."""
        if self.signalled >= 0:
            after = replace(self, silence=TIMEOUT, clear=MOST, due=max(0.0, self.due - TICK), unwatched=0.0)
            return replace(after, signalled=min(self.signalled + TICK, GRACE + TICK), killed=self.killed + TICK)
        return World(
            silence=0.0 if moves else self.silence + TICK,
            clear=0.0 if behind else min(self.clear + TICK, MOST),
            policy=self.policy,
            due=max(0.0, self.due - TICK),
            unwatched=0.0 if moves else self.unwatched,
        )


class Judged:
    """The rank, for one turn of its monitor; `world` changes with what the turn does.

    Args:
        ticks: counts what happens.
        policy: of the monitor.
        world: before the turn.
        wakes: the rank moves while the peers are asked.
    """

    def __init__(self, ticks: Ticks, policy: Any, world: World, *, wakes: bool) -> None:
        self.ticks, self.policy, self.world, self.wakes = ticks, policy, world, wakes
        self.samples = 0

    def sample(self) -> Any:
        self.policy.check()
        self.samples += 1
        if self.samples > MAX_SAMPLES:
            raise AssertionError(f"the monitor is never done: {self.world}")
        return self.ticks.sample(self.world)

    async def is_excused(self, query: Any) -> bool:
        self.policy.check()
        excused = self.world.clear == 0.0
        self.ticks.excused += excused
        if self.wakes:
            self.world = replace(self.world, silence=0.0, unwatched=0.0)
        return excused

    def terminate(self, action: Any) -> None:
        self.policy.check()
        self.world = self.ticks.end(self.world)

    def kill(self, action: Any) -> None:
        self.policy.check()
        self.world = self.ticks.kill(self.world)


class Ticks(Space[World]):
    """The ticks of the world; they go on for ever.

    Args:
        limits: the module, as shipped or with a mistake.
        policy: likewise.
        judging: likewise.
    """

    runs_end = False

    def __init__(self, limits: ModuleType, policy: ModuleType, judging: ModuleType) -> None:
        self.limits, self.policy, self.judging = limits, policy, judging
        self.ended = self.killed = self.excused = 0

    def first(self) -> World:
        """Nothing has happened."""
        return World(policy=self._fresh())

    def of(self, world: World) -> Iterator[tuple[str, World]]:
        """Return what a tick can bring."""
        for moves, behind in product((False, True), repeat=2):
            after = world.later(moves=moves, behind=behind)
            told = f"it {'moves' if moves else 'does not move'}, the peer is {'behind' if behind else 'ahead'}"
            if world.signalled < 0 and world.unwatched < UNWATCHED:
                unwatched = after.unwatched + TICK + FIRST_LOOK
                yield f"{told}, the monitor is lost", replace(after, policy=self._fresh(), due=0.0, unwatched=unwatched)
            for woken, wakes in product((False, True), repeat=2):
                looks = f"{', the monitor is woken' * woken}{', it moves while the peers are asked' * wakes}"
                yield f"{told}{looks}", self._go_on(after, woken=woken, wakes=wakes)

    def _fresh(self) -> Any:
        return self.policy.MonitorPolicy(INTERVAL, GRACE).state(now=0.0)

    def _go_on(self, world: World, *, woken: bool, wakes: bool) -> World:
        """The monitor looks, when it is due or woken by a message; the rank may move while the peers are asked."""
        policy = self.policy.MonitorPolicy.from_state(INTERVAL, GRACE, world.policy, now=START - TICK)
        if world.due <= 0.0 or woken:
            world = self._look(policy, world, wakes=wakes)
            world = replace(world, due=min(policy.deadline - START, INTERVAL))
        world = replace(world, policy=policy.state(now=START))
        self._check(world)
        return world

    def _look(self, policy: Any, world: World, *, wakes: bool) -> World:
        """A turn of the monitor's."""
        judged = Judged(self, policy, world, wakes=wakes)
        try:
            self.judging.turn(policy, judged, lambda: START).send(None)
        except StopIteration:
            if policy.deadline <= START:
                raise AssertionError(f"the monitor is never done: {judged.world}") from None
            return judged.world
        raise AssertionError(f"the monitor waits for ever: {judged.world}")

    def end(self, world: World) -> World:
        """The rank is ended."""
        self.ended += 1
        if not world.policy.seen:
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
        closed = self.limits.SectionSample("closed", None, TICK, 3)
        heartbeat_at = START - world.silence
        return self.limits.RankSample(
            attached_at=0.0, heartbeat_at=heartbeat_at, heartbeat_timeout=TIMEOUT, sections=(closed,)
        )
