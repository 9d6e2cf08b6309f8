"""Simulated faults, to test that a training survives them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nvrx_core.settings import environment
from nvrx_lightning.monitoring.sections import PHASES

if TYPE_CHECKING:
    from nvrx_core.testing.fault_kinds import Kind

__all__ = ["FaultPlace", "SimulatedFaultParams", "SimulatedFaults"]

_PEERS: Final = {"rank_killed": "kill", "rank_hung": "stop"}
"""The types of fault that nvidia-resiliency-ext simulates, by its names."""


class FaultPlace(NamedTuple):
    """Where a fault is injected.

    Attributes:
        rank: the initial rank: the global rank in the first iteration, whatever rank the process has later.
        step: `trainer.global_step` at the injection.
        phase: the one of `sections.PHASES` at whose start the fault is injected.
    """

    rank: int
    step: int
    phase: str


@dataclass(frozen=True)
class SimulatedFaultParams:
    """A fault after a delay, once in a process; the parameters are those of nvidia-resiliency-ext.

    Attributes:
        fault_type: `rank_killed`, `rank_hung`, `random` for either, or the value of an `nvrx_core.testing.FaultKind`.
        base_delay: seconds from the start of the training.
        rand_delay: upper bound of a random number of seconds that is added.
        rank_to_fail: the rank; None: a random one.
    """

    fault_type: str
    base_delay: float
    rand_delay: float = 0.0
    rank_to_fail: int | None = None


class SimulatedFaults:
    """The faults of one process.

    Args:
        faults: by place. Each is injected once, in the first cycle of a launcher.
        params: a fault after a time; None for none.

    Raises:
        ValueError: when a place or a kind does not exist.
    """

    def __init__(self, faults: Mapping[FaultPlace, Kind], params: SimulatedFaultParams | None = None) -> None:
        self._faults, self._params, self._rank = dict(faults), params, -1

    @classmethod
    def of(cls, given: Any) -> SimulatedFaults | None:
        """Return the faults that were asked for.

        Args:
            given: None; text, as in `1:3:backward=kill, 0:7:checkpointing=exception`; a mapping of
                (rank, step, phase) to a kind or its name; or an object with the attributes of `SimulatedFaultParams`.

        Raises:
            ValueError: when it is none of these.
        """
        if given is None or isinstance(given, cls):
            return given
        if hasattr(given, "fault_type"):
            return cls({}, _params(given))
        entries = _entries(given) if isinstance(given, str) else given.items()
        return cls({_place(*place): _kind(kind) for place, kind in entries})

    def begin(self, rank: int, world_size: int) -> None:
        """Start the timer of a fault after a time, in the rank that is to fail."""
        if self._params is None or self._rank >= 0:
            return
        from nvrx_core.testing import inject_fault

        seed = f"{environment.job_name()} {environment.variables('TORCHELASTIC_RESTART_COUNT')}"
        chance = random.Random(seed)  # the same on all ranks
        kind, delay, target = _drawn(self._params, chance, world_size)
        if target == rank:
            inject_fault(kind, delay=delay)

    def finder(self, rank: int, step: Callable[[], int], call: Any) -> Callable[[str], Callable[[], None] | None]:
        """Return what gives the injection at the beginning of a phase; None where no fault is due in it."""
        first_cycle = environment.variables("TORCHELASTIC_RESTART_COUNT").get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        mine = self._rank = rank if self._rank < 0 else self._rank
        phases = {place.phase for place in self._faults if place.rank == mine and first_cycle}

        def find(phase: str) -> Callable[[], None] | None:
            return (lambda: self._inject(FaultPlace(mine, step(), phase), call)) if phase in phases else None

        return find

    def _inject(self, place: FaultPlace, call: Any) -> None:
        kind = self._faults.pop(place, None)
        if kind is not None:
            from nvrx_core.testing import inject

            inject(kind, call=call)


def _entries(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    for entry in filter(None, map(str.strip, text.split(","))):
        place, _, kind = entry.partition("=")
        yield tuple(place.strip().split(":")), kind.strip()


def _place(*given: Any) -> FaultPlace:
    try:
        rank, step, phase = given
        place = FaultPlace(int(rank), int(step), str(phase))
    except (TypeError, ValueError):
        raise ValueError(
            f"simulated_fault_params: {given!r} is no (rank, step, phase); write it as in '1:3:backward=kill'"
        ) from None
    if place.phase not in PHASES:
        raise ValueError(f"simulated_fault_params: {place.phase!r} is no phase; write one of {', '.join(PHASES)}")
    return place


def _kind(given: Any) -> Kind:
    from nvrx_core.testing.faults import FaultKind, kind_of

    try:
        return kind_of(_PEERS.get(given, given)) if isinstance(given, str) else given
    except ValueError:
        known = ", ".join((*_PEERS, *(kind.value for kind in FaultKind), "delay:0.5"))
        raise ValueError(f"simulated_fault_params: {given!r} is no kind of fault; write one of {known}") from None


def _params(given: Any) -> SimulatedFaultParams:
    name = getattr(given.fault_type, "value", given.fault_type)
    if name != "random":
        _kind(name)
    rand_delay, rank = getattr(given, "rand_delay", 0.0), getattr(given, "rank_to_fail", None)
    return SimulatedFaultParams(name, float(given.base_delay), float(rand_delay or 0.0), rank)


def _drawn(params: SimulatedFaultParams, chance: random.Random, world_size: int) -> tuple[Any, float, int]:
    """Which fault, after how many seconds, on which rank."""
    name = chance.choice(sorted(_PEERS)) if params.fault_type == "random" else params.fault_type
    delay = params.base_delay + params.rand_delay * chance.random()
    drawn = chance.randrange(world_size)
    return _kind(name), delay, drawn if params.rank_to_fail is None else params.rank_to_fail
