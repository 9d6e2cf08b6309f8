"""What a rank is told about the run, on its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from demo_parts.schedule import PlannedFault

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """One training.

    Attributes:
        folder: everything the ranks write lies in it.
        ranks: how many ranks train; further processes wait in reserve.
        steps: how many steps the training takes.
        seed: of the model's first weights and of the order of the samples.
        faults: which to inject.
        checkpoint_every: steps between two checkpoints.
    """

    folder: str
    ranks: int
    steps: int
    seed: int
    faults: tuple[PlannedFault, ...]
    checkpoint_every: int

    @property
    def records(self) -> Path:
        """The folder of the journals and of the wrapper's events."""
        return Path(self.folder) / "records"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return Path(self.folder) / "checkpoints"

    def to_json(self) -> str:
        """The settings as one argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The reverse of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "faults": tuple(PlannedFault(**fault) for fault in fields["faults"])})
