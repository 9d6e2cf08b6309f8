"""The identity of a suspended flow: its position, and the values of its live local variables."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from types import CoroutineType
from typing import Any, Final

from nvrx_core.flow import Flow
from nvrx_core.inprocess.monitor.judging import Judging
from nvrx_core.inprocess.monitor.policies import CleanExitPolicy, GilStallPolicy, UnheardRoundPolicy
from nvrx_core.inprocess.monitor.watch import Watch
from nvrx_core.inprocess.protocol.death_report import DeathReport
from nvrx_core.inprocess.protocol.flows import MainThread, MonitorThreadFlow
from nvrx_core.inprocess.protocol.join import Join
from nvrx_core.inprocess.protocol.outcome import IterationResult
from nvrx_core.inprocess.protocol.round import Round, Rounds, RoundView
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.rank_assignment.base import AssignmentState

from .chosen import VERDICTS, MemberPage
from .entering import Entering
from .liveness import live_names
from .member_ports import PORTS
from .world import Wish

__all__ = ["canonical", "position"]

_SHARED: Final = frozenset((
    MainThread, MonitorThreadFlow, Watch, Judging, Rounds, AssignmentState, MemberPage, *VERDICTS, *PORTS,
    CleanExitPolicy, Entering, GilStallPolicy, ProgressSample, UnheardRoundPolicy,
))  # fmt: skip
"""Machines, ports, and what these share: a local variable of such a type is no state of the frame.

The state of a machine is in the identity of its member, or it has none that the checker lets change. A sample of the
rank is read before the flow awaits anything else: the hang detector is chosen, and the other policies have no timeouts.
"""


def position(flow: Flow[Any] | None) -> tuple[object, ...]:
    """The position of a flow: its frames, from the outermost, each with its instruction and its local variables."""
    frames: list[object] = []
    suspended: object = flow
    while isinstance(suspended, CoroutineType) and suspended.cr_frame is not None:
        at, values = suspended.cr_frame.f_lasti, suspended.cr_frame.f_locals
        live = (values.get(name) for name in sorted(live_names(suspended.cr_code, at)))
        frames += (suspended.cr_code.co_name, at, *(canonical(value) for value in live if type(value) not in _SHARED))
        suspended = suspended.cr_await
    return tuple(frames)


def canonical(value: Any) -> object:
    """The same for values that mean the same."""
    kind = next((kind for kind in _MEANING if isinstance(value, kind)), None)
    if kind is not None:
        return _MEANING[kind](value)
    return value.__qualname__ if callable(value) and not isinstance(value, type) else value


def _all(values: Iterable[Any]) -> tuple[object, ...]:
    return tuple(map(canonical, values))


def _view(view: RoundView) -> object:
    round_ = view.round
    return round_.state(), round_.deadline < math.inf, view.finished, view.aborted, view.decision


_MEANING: Final[dict[type, Callable[[Any], object]]] = {
    RoundView: _view,
    Round: Round.state,
    Join: lambda join: (join.claimed, join._conflicts),
    DeathReport: lambda report: tuple(vars(report).values()),
    IterationResult: lambda ended: (ended.outcome, type(ended.error), getattr(ended.error, "exit_code", 0)),
    BaseException: lambda error: (type(error), getattr(error, "exit_code", 0)),
    Wish: lambda effect: (type(effect), *_all(getattr(effect, name) for name in effect.__slots__)),
    tuple: _all,
    list: _all,
    deque: _all,
    dict: lambda values: tuple(values.items()),
}
