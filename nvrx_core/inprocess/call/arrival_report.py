"""A rank's arrival at a barrier: the record that it writes about itself."""

from __future__ import annotations

from nvrx_core.fault.record import FaultRecord
from nvrx_core.flow import operation
from nvrx_core.inprocess.call.function_abort import RoundProgress
from nvrx_core.inprocess.call.plug_ins import PlugIns
from nvrx_core.inprocess.call.rendezvous import offer
from nvrx_core.inprocess.configuration.parameters import Parameters
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.state import State
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.rank_assignment.base import Mode

__all__ = ["ArrivalReport"]


class ArrivalReport:
    """Describes the arrivals of one rank.

    Args:
        state: the state of the rank.
        page: the progress page, with the step that the rank has reported.
        plug_ins: have evaluated its keys.
        sample: its progress when the round ended.
        connections: offer an endpoint for the rendezvous of the next process group.
        parameters: determine whether the others can compute which endpoint is used.
    """

    def __init__(
        self,
        state: State,
        page: Page,
        plug_ins: PlugIns,
        *,
        sample: RoundProgress,
        connections: Connections,
        parameters: Parameters,
    ) -> None:
        self._state, self._page, self._plug_ins = state, page, plug_ins
        self._sample, self._connections, self._parameters = sample, connections, parameters
        self._step = -1

    @operation
    def describe_arrival(
        self, status: ArrivalStatus, fault: FaultRecord | None, *, completed: bool = False, long: bool = False
    ) -> Arrival:
        """Return the rank's arrival at the end of the round that it is in."""
        state, sample = self._state, self._sample
        self._step = max(self._step, self._page[ProgressField.STEP] - 1)
        return Arrival(
            initial_rank=state.initial_rank, rank=state.rank, status=status, world_size=state.world_size,
            fault=fault, step=self._step, progress=sample.progress if state.mode is Mode.ACTIVE else None,
            stalled=sample.stalled, completed=completed, long=long, keys=self._plug_ins.keys,
            endpoint=offer(self._connections, self._parameters) if status is ArrivalStatus.ALIVE else "",
        )  # fmt: skip
