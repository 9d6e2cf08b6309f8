"""The setting of a test fit: one value, passed to the ranks as JSON in the environment."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from typing import Any

__all__ = ["VARIABLE", "Fault", "Setting"]

VARIABLE = "NVRX_TEST_FIT"


@dataclass(frozen=True)
class Fault:
    """One fault: `kind` is injected into the initial rank once it is at this point, in this attempt."""

    rank: int
    step: int
    kind: str = "raise"  # raise, kill, hang, sleep, interrupt, exit, stop
    where: str = "train"  # train, before_forward, batch_start, batch_end, validation, setup, save, load
    attempt: int | None = 0  # None: in every one


@dataclass(frozen=True)
class Setting:
    """One fit."""

    faults: tuple[Fault, ...] = ()
    strategy: str = "InProcessDDPStrategy"
    options: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    checkpoint: dict[str, Any] | None = field(default_factory=lambda: {"every_n_train_steps": 5, "save_top_k": -1})
    loader: dict[str, Any] = field(default_factory=dict)
    samples: int = 80
    batch: int = 4
    dropout: float = 0.0
    batch_norm: bool = False
    late_layer: bool = False  # made in setup
    validate: bool = False
    amp: bool = False
    data: str = "map"  # map, iterable, stateful, continued, own_sampler, own_batches, drawn, generator
    early_stopping: bool = False
    callbacks: tuple[str, ...] = ()  # those of Lightning that change the training: accumulation, averaging, finetuning
    loggers: tuple[str, ...] = ()
    bar: str = ""
    io: str = ""  # async, refusing
    step_seconds: float = 0.0
    then: tuple[str, ...] = ()  # validate, fit, test
    restarts: int = 0  # raise in every rank in turn, so many times
    spoil: str = ""  # what is done to the newest checkpoint before the fault
    manual: bool = False
    hooks_step: bool = False  # its optimizer has a hook that runs before each step
    epoch_metrics: bool = False  # logs its loss over the epoch, too
    plateau: str = ""  # the metric that its scheduler looks at
    callback: bool = False  # nvrx's, too
    warmup: bool = False  # its schedule asks for `estimated_stepping_batches`
    stop_at: int = 0  # the step after whose batch the model sets `should_stop`
    patience: int = 50  # of the early stopping
    monitor: str = "loss"  # of the early stopping
    best: bool = False  # a second `ModelCheckpoint`, of the validations
    saves_in: str = ""  # a hook in which a callback saves a checkpoint each time
    ckpt_path: str | None = None
    active: int = 0  # how many ranks train; the others wait in reserve
    logs: bool = False  # also the lines that are no warnings

    def plain(self) -> Setting:
        """The same training under Lightning's own strategy, without faults and irrelevant options."""
        own = "ModelParallelStrategy" if self.strategy.endswith("ModelParallelStrategy") else "DDPStrategy"
        kept: tuple[str, ...] = ("samples", "batch", "dropout", "batch_norm", "late_layer", "amp", "data", "manual")
        kept += ("trainer", "callbacks")
        kept += ("validate", "checkpoint") if self.dropout or self.batch_norm else ()
        alike = self.dropout or self.data == "generator"
        loader = {name: each for name, each in self.loader.items() if name == "drop_last" or alike}
        return Setting(strategy=own, loader=loader, **{name: getattr(self, name) for name in kept})

    def written(self) -> dict[str, str]:
        """The setting as variables."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def read(cls) -> Setting:
        """The setting of this rank."""
        fields = json.loads(os.environ[VARIABLE])
        fields["faults"] = tuple(Fault(**each) for each in fields["faults"])
        return cls(**fields)
