"""The main thread's part in a round: it plays the round's machine and waits for what others decide.

It blocks in the store for single quick operations only. For everything that takes another rank it waits on the monitor
thread's condition, where a signal reaches it, and no longer than the machine's deadline.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from nvrx_core.errors import BarrierTimeout
from nvrx_core.failpoint import hit
from nvrx_core.inprocess.decision import Arrival, Decision
from nvrx_core.inprocess.equipment import Equipment
from nvrx_core.inprocess.garbage import collect_garbage
from nvrx_core.inprocess.monitor_thread import RoundView
from nvrx_core.inprocess.round import Action, AskHolders, GiveUp, LateCompletion, WaitFor
from nvrx_core.progress.stage import Stage

__all__ = ["Barrier"]

log = logging.getLogger("nvrx_core.inprocess")


class Barrier:
    """Where the main thread of a call meets the other ranks.

    Args:
        kit: the call's equipment.
    """

    def __init__(self, kit: Equipment) -> None:
        self.kit = kit

    def arrive(self, arrival: Arrival) -> Decision:
        """Arrive at the end of the round and wait for its decision.

        Raises:
            BarrierTimeout: when not all ranks arrive in time.
            StoreLost, RestartAbort: when the store is gone, or a part of this rank that it cannot do without.
        """
        kit, view = self.kit, self.kit.thread.view
        hit("barrier-before", view.round.iteration)
        kit.enter(Stage.ARRIVED)
        self.play(view, view.round.arrive(arrival, now=time.monotonic()))
        if view.round.iteration >= 0:
            collect_garbage()
        self.wait(view, lambda: view.decision is not None)
        kit.mark("decided")
        kit.enter(Stage.STARTING)
        assert view.decision is not None
        return view.decision

    def play(self, view: RoundView, actions: tuple[Action, ...]) -> None:
        """Carry out what the machine asks for.

        Raises:
            BarrierTimeout: when it gives up.
        """
        kit = self.kit
        for action in kit.board.play(view.round, actions):
            if isinstance(action, AskHolders):
                found = kit.board.holders(view.round.iteration, action.members, kit.member)
                self.play(view, view.round.held_up(found, now=time.monotonic()))
            elif isinstance(action, WaitFor):
                log.warning("%s", action.reason)
            elif isinstance(action, LateCompletion):
                now = time.monotonic()
                fault = kit.faults.late_completion(action.reason, kit.state.rank, now)
                self.play(view, view.round.fault(fault, now=now))
                kit.tell(fault)
            elif isinstance(action, GiveUp) and kit.board.decision(view.round.iteration) is None:
                seconds = kit.parameters.barrier_timeout.total_seconds()
                raise BarrierTimeout(action.reason, barrier="iteration", seconds=seconds)

    def wait(self, view: RoundView, arrived: Callable[[], bool]) -> None:
        """Wait until the monitor thread has brought what is awaited.

        Raises:
            BarrierTimeout, StoreLost, RestartAbort: as `arrive` does.
        """
        kit = self.kit
        with kit.thread.changed:
            while not arrived() and kit.departure.reason is None:
                now = time.monotonic()
                actions = view.round.tick(now=now)
                if actions:
                    self.play(view, actions)
                kit.thread.changed.wait(min(view.round.deadline - now, threading.TIMEOUT_MAX))
        if kit.departure.reason is not None and not arrived():
            raise kit.departure.reason()
