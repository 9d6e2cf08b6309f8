"""What one launch of the benchmark is told to do: a frozen value that travels to each rank as JSON.

Used by both sides (the entry and the rank process), so it stands on the standard library alone: the ranks of the
compared package run in an environment where nothing of this repository is installed.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

__all__ = ["RUN", "Fault", "Job"]

RUN = 1000
"""Iterations that are counted between two runs of a repeated job."""


@dataclass(frozen=True)
class Fault:
    """A fault injected into the target `after` seconds into its iteration.

    Attributes:
        kind: `exception`, `kill`, `sleep`, `lock`, `recv` or `gil`.
        after: seconds from the first step of the iteration to the fault.
    """

    kind: str
    after: float


@dataclass(frozen=True)
class Job:
    """One launch: the function the ranks run and the faults that hit it, fault i in iteration i.

    Attributes:
        impl: module that offers `Wrapper` and `CallWrapper`.
        workload: `training` (steps, with faults), `model` (the same with a DDP model made inside the function),
            `trivial` (returns at once) or `calls` (times `ping` and `atomic`).
        wrapper: arguments of `Wrapper` that are durations, in seconds.
        collectives: an all_reduce in every step.
        backend: of the user's group, `gloo` or `nccl`; all ranks share the machine's devices.
        group_timeout: timeout of the user's process group in seconds.
        own_store: the function builds a new store on a new port in each iteration, instead of plain `env://`.
        busy: what the main thread does in a step: `sleep`, `loop`, `operations` or `asyncio`.
        repeat: how often the job is run, each time by new processes that a rank's first one forks; 0: once, by itself.
    """

    impl: str
    workload: str = "training"
    wrapper: dict[str, float] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    target: int = 1
    collectives: bool = False
    backend: str = "gloo"
    group_timeout: float = 10.0
    own_store: bool = False
    busy: str = "sleep"
    repeat: int = 0

    @property
    def device(self) -> str:
        """Where the tensors of the collectives are."""
        return "cuda" if self.backend == "nccl" else "cpu"

    def to_json(self) -> str:
        """Returns the text that `from_json` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Builds a job from the text of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "faults": tuple(Fault(**fault) for fault in fields["faults"])})
