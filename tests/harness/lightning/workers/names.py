"""Looks for the private names of Lightning that nvrx uses, in each of its packages, and runs the other package once."""

from __future__ import annotations

import inspect
import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
from nvrx_lightning import FaultToleranceCallback, registration, strategy
from nvrx_lightning.families import FAMILIES, lookup
from nvrx_lightning.restart.snapshot import PRIVATE_ATTRIBUTES, PRIVATE_NAMES

from tests.harness.process.workers.record import Record

__all__: list[str] = []


def missing(family: str) -> list[str]:
    """The names that are missing."""
    found = []
    for path, attributes in PRIVATE_NAMES.items():
        try:
            owner = lookup(family, path)
        except ImportError:
            found.append(path)
            continue
        found += [f"{path}.{name}" for name in attributes if not hasattr(owner, name)]
    return found + [f"{kind}: {name}" for kind, name in _missing_attributes(family)]


def _missing_attributes(family: str) -> list[tuple[str, str]]:
    trainer = lookup(family, "Trainer")(
        accelerator="cpu", devices=1, strategy="ddp_inprocess", logger=True, max_epochs=1, max_time={"hours": 1}
    )
    owners: dict[str, Any] = {
        "Trainer": trainer,
        "fit_loop": trainer.fit_loop,
        "epoch_loop": trainer.fit_loop.epoch_loop,
        "automatic_optimization": trainer.fit_loop.epoch_loop.automatic_optimization,
        "Closure": lookup(family, "loops.optimization.automatic.Closure")(step_fn=lambda: None),
        "val_loop": trainer.fit_loop.epoch_loop.val_loop,
        "checkpoint_connector": trainer._checkpoint_connector,
        "logger_connector": trainer._logger_connector,
        "strategy": trainer.strategy,
        "logger": lookup(family, "loggers.CSVLogger")("logs"),
        "csv_writer": lookup(family, "loggers.CSVLogger")("logs", name=family).experiment,
        "tensorboard": lookup(family, "loggers.TensorBoardLogger")("logs"),
        "ModelCheckpoint": lookup(family, "callbacks.ModelCheckpoint")(),
        "StochasticWeightAveraging": lookup(family, "callbacks.StochasticWeightAveraging")(1e-2),
        "LightningModule": lookup(family, "LightningModule")(),
        "Timer": lookup(family, "callbacks.Timer")(),
        "TQDMProgressBar": lookup(family, "callbacks.TQDMProgressBar")(),
        "AsyncCheckpointIO": lookup(family, "plugins.io.AsyncCheckpointIO")(),
        "GradScaler": torch.amp.GradScaler("cpu"),
    }
    names = ((kind, name) for kind, names in PRIVATE_ATTRIBUTES.items() for name in names)
    return [(kind, name) for kind, name in names if not hasattr(owners[kind], name)]


def kinds(family: str) -> dict[str, bool]:
    """Whether each class is one of Lightning's own, under its registered name."""
    registry = lookup(family, "strategies.StrategyRegistry")
    own = {name: strategy.strategy_class(kind, family) for name, kind in registration.NAMES.items()}
    return {
        name: isinstance(registry.get(name), lookup(family, f"strategies.{strategy.STRATEGIES[kind.__name__]}"))
        for name, kind in own.items()
        if name != "fsdp_inprocess"  # whose constructor asks for a GPU
    }


def options_of(family: str) -> dict[str, Any]:
    """The results of in_process() for a class, an instance, and invalid arguments."""
    base, single = lookup(family, "strategies.DDPStrategy"), lookup(family, "strategies.SingleDeviceStrategy")
    made = strategy.in_process(base, max_restarts=3)
    instance = base(find_unused_parameters=True)
    copied = strategy.in_process(instance, max_restarts=4)
    return {
        "class": made(max_restarts=2).in_process_options.max_restarts,
        "default": made().in_process_options.max_restarts,
        "instance": copied.in_process_options.max_restarts,
        "its own": copied._ddp_kwargs["find_unused_parameters"],
        "is one": isinstance(copied, base) and not isinstance(instance, strategy.InProcessStrategy),
        "parameters": list(inspect.signature(strategy.strategy_class("InProcessDDPStrategy", family)).parameters),
        "single": refusal(strategy.in_process, single),
        "stranger": refusal(strategy.in_process, dict),
        "misspelt": refusal(made, max_restart=3),
        "misspelt for DDP": refusal(made, find_unused_paramters=True),
        "unknown": refusal(strategy.strategy_class("InProcessDDPStrategy", family), qqqq=1),
        "misspelt in a call": refusal(strategy.in_process, base, soft_timeot=3),
        "a class of the user's": refusal(of_the_users(base), mine=1),
        "misspelt in a class of the user's": refusal(of_the_users(base), max_restart=1),
        "misspelt in the callback": refusal(FaultToleranceCallback, autoresum=True),
        "a time for the callback": refusal(FaultToleranceCallback, minimum_timeout=timedelta(seconds=30)),
        "spawn": refusal(
            lookup(family, "Trainer"), accelerator="cpu", devices=2, logger=False, strategy=made(start_method="spawn")
        ),
    }


def of_the_users(base: Any) -> Any:
    """A strategy whose constructor takes an option of its own."""

    class Theirs(base):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            kwargs.pop("mine", None)
            super().__init__(**kwargs)

    return strategy.in_process(Theirs)


def refusal(act: Any, *args: Any, **kwargs: Any) -> str:
    """The error that a call raises."""
    try:
        act(*args, **kwargs)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def restarted_fit(family: str) -> int:
    """The last step of a fit with a fault, under this family's own names."""
    faults = ["a fault"]

    class Model(lookup(family, "demos.boring_classes.BoringModel")):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 3 and faults:
                raise RuntimeError(faults.pop())
            return super().training_step(batch, batch_idx)

    trainer = lookup(family, "Trainer")(
        accelerator="cpu", devices=1, strategy="ddp_inprocess", logger=False, max_steps=7, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model())
    return 0 if faults else int(trainer.global_step)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    record = Record.of_environment()
    for family in FAMILIES:
        record(
            "names",
            family=family,
            missing=missing(family),
            kinds=kinds(family),
            step=restarted_fit(family),
            **options_of(family),
        )
    sys.exit(0)
