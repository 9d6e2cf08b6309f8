"""The hooks of a fit, as its profiler reports them, and a fault at one of them.

Lightning tells `trainer.profiler` of each hook that it calls: of the module, the data module, the callbacks and the
strategy, and of a few steps of its loops. So a fault can be injected at the beginning of any of them, and nothing is
patched.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Self

from nvrx_core.inprocess import current_call
from nvrx_lightning.monitoring.profiler import ActionListener, PhaseProfiler

__all__ = ["HookCall", "HookCalls", "HookFault", "choose"]


@dataclass(frozen=True)
class HookCall:
    """The call of a hook.

    Attributes:
        action: the name by which the profiler knows the hook, such as `[Callback]EMA.on_train_batch_end`.
        number: of the call among those of the action, from 0.
        step: `trainer.global_step`.
        epoch: `trainer.current_epoch`.
    """

    action: str
    number: int
    step: int
    epoch: int

    @property
    def hook(self) -> str:
        """The name of the method."""
        return self.action.rpartition(".")[2]


@dataclass(frozen=True)
class HookFault:
    """A fault at the beginning of a call, on one rank."""

    rank: int
    call: HookCall

    def written(self) -> dict[str, Any]:
        """Return the form of a JSON file."""
        return asdict(self)

    @classmethod
    def read(cls, written: dict[str, Any]) -> Self:
        """Return the fault of a JSON file."""
        return cls(written["rank"], HookCall(**written["call"]))

    def __str__(self) -> str:
        who, _, hook = self.call.action.rpartition(".")
        owner = who.rpartition("]")[2].partition("{")[0]
        return f"{owner}.{hook}" if owner else hook


class HookCalls:
    """The calls of hooks in a fit of this process; one of them fails.

    Args:
        trainer: the Trainer; its profiler is wrapped.
        fault: the fault of this rank; None for none.
        leave_out: the name of an object whose hooks do not count.
    """

    def __init__(self, trainer: Any, fault: HookFault | None, leave_out: str) -> None:
        self._trainer, self._leave_out = trainer, f"]{leave_out}."
        self._fault = None if fault is None else (fault.call.action, fault.call.number)
        self._counts = Counter[str]()
        self.calls: list[HookCall] = []
        self.injected = False
        trainer.profiler = PhaseProfiler(trainer.profiler, self._listener)

    def _listener(self, action: str) -> ActionListener | None:
        if self._leave_out in action:
            return None
        return ActionListener(lambda: self._begin(action), _nothing, _nothing)

    def _begin(self, action: str) -> None:
        if current_call() is None:  # before the fit or after it, where a fault ends the script
            return
        number = self._counts[action]
        self._counts[action] += 1
        self.calls.append(HookCall(action, number, self._trainer.global_step, self._trainer.current_epoch))
        if self._fault == (action, number) and not self.injected:
            self.injected = True
            from nvrx_core.testing import FaultKind, inject

            inject(FaultKind.EXCEPTION)


def _nothing() -> None: ...


def choose(calls: list[list[HookCall]], *, every: bool) -> list[HookFault]:
    """Return the faults to inject: one at each hook, in turn on each rank.

    A hook that several objects have fails at the last of them, when the others have done their part. Of its calls, one
    is chosen whose restart goes on in the middle of an epoch, if there is one, else one after a checkpoint.

    Args:
        calls: of a fit without a fault, by rank, in their order.
        every: one at each hook of each object, and one at its first call, too.
    """
    restarts = [_lost(each) for each in calls]
    faults: list[HookFault] = []
    for number, hook in enumerate(dict.fromkeys(each.hook for rank in calls for each in rank)):
        ranks = [rank for rank in range(len(calls)) if any(each.hook == hook for each in calls[rank])]
        rank = ranks[(number + 1) % len(ranks)]
        actions = list(dict.fromkeys(each.action for each in calls[rank] if each.hook == hook))
        for action in actions if every else actions[-1:]:
            found = [each for each in calls[rank] if each.action == action]
            best = max(restarts[rank][each] for each in found)
            equal = [each for each in found if restarts[rank][each] == best]
            chosen = [equal[len(equal) // 2]]
            if every and found[0] not in chosen:
                chosen.append(found[0])
            faults += [HookFault(rank, each) for each in chosen]
    return faults


def _lost(calls: list[HookCall]) -> dict[HookCall, int]:
    """Return how much a restart from a call has to bring back: the higher, the more.

    3 for steps after a checkpoint of the same epoch, 2 for steps after one of an earlier epoch, 1 for a call directly
    after a checkpoint, 0 for one before the first.
    """
    saved: HookCall | None = None
    found = {}
    for each in calls:
        if saved is None:
            found[each] = 0
        elif each.step == saved.step:
            found[each] = 1
        else:
            found[each] = 3 if each.epoch == saved.epoch else 2
        if each.hook == "save_checkpoint":
            saved = each
    return found
