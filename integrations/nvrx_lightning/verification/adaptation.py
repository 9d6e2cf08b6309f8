"""A user's Trainer, made small: few batches, few epochs, and its files in a temporary folder.

Private names of Lightning's callbacks and loggers are used: those of intervals and folders, which have no setters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvrx_lightning.families import family_of, lookup
from nvrx_lightning.strategy import InProcessStrategy
from nvrx_lightning.verification.errors import VerificationError

__all__ = ["RANKS", "check", "redirect", "saves_checkpoints", "scale_down"]

RANKS = 2
_WITHOUT_FOLDER = frozenset({"CometLogger", "LitLogger", "MLFlowLogger", "NeptuneLogger"})
"""Loggers that write to a server or to a place of their own."""


def check(made: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the Trainer and the arguments for its `fit`.

    Raises:
        VerificationError: if they cannot be verified.
    """
    if not isinstance(made, tuple | list) or len(made) < 2:
        raise VerificationError(
            f"make() has returned {type(made).__name__}: let it return `trainer, module`, and what `trainer.fit` takes "
            "after the module: `trainer, module, train_loader, val_loader` or `trainer, module, datamodule`"
        )
    trainer, *arguments = made
    if not hasattr(trainer, "fit_loop") or not hasattr(trainer, "strategy"):
        raise VerificationError(
            f"make() has returned a {type(trainer).__name__} first, and no Trainer: let it return "
            "`trainer, module, ...`"
        )
    module = lookup(family_of(type(trainer)), "LightningModule")
    if not isinstance(arguments[0], module):
        raise VerificationError(
            f"make() has returned a {type(arguments[0]).__name__} second, and no LightningModule of the package of its "
            "Trainer: let it return `trainer, module, ...`"
        )
    _check_devices(trainer)
    return trainer, tuple(arguments)


def _check_devices(trainer: Any) -> None:
    kind = trainer.strategy.root_device.type
    if kind != "cpu":
        raise VerificationError(
            f'the Trainer asks for {kind} devices, and verify runs on {RANKS} CPU ranks: write accelerator="cpu", '
            f"devices={RANKS} in make()"
        )
    if not isinstance(trainer.strategy, InProcessStrategy):
        raise VerificationError(
            f"the Trainer's strategy is {type(trainer.strategy).__name__}, which does not restart in process: write "
            "strategy=nvrx_lightning.InProcessDDPStrategy(), or in_process(...) around a strategy of your own"
        )
    if isinstance(trainer.strategy, lookup(family_of(type(trainer)), "strategies.FSDPStrategy")):
        raise VerificationError(
            f"{type(trainer.strategy).__name__} needs GPUs, and verify runs on {RANKS} CPU ranks: write "
            "strategy=nvrx_lightning.InProcessDDPStrategy() in make(), or InProcessModelParallelStrategy (FSDP2)"
        )
    if (trainer.num_nodes, trainer.num_devices) != (1, RANKS):
        raise VerificationError(
            f"the Trainer asks for {trainer.num_nodes} nodes of {trainer.num_devices} devices, and verify runs on "
            f"{RANKS} CPU ranks: write devices={RANKS}, num_nodes=1 in make()"
        )
    if trainer.fast_dev_run:
        raise VerificationError("fast_dev_run saves no checkpoints and calls no loggers: leave it out in make()")
    for each in trainer.loggers:
        if name := next((kind.__name__ for kind in type(each).__mro__ if kind.__name__ in _WITHOUT_FOLDER), ""):
            raise VerificationError(
                f"each fit of the verification would log to your {name}: write logger=CSVLogger(...) or logger=False "
                "in make()"
            )


def scale_down(trainer: Any, epochs: int, batches: int) -> list[str]:
    """Make a fit short, with its checkpoints, validations and log lines; return what was changed, for people."""
    loop, changed = trainer.fit_loop, []

    def change(owner: Any, name: str, value: Any) -> None:
        changed.append(f"{name} {getattr(owner, name)} -> {value}")
        setattr(owner, name, value)

    if loop.max_epochs is None or not 0 <= loop.max_epochs <= epochs:
        change(loop, "max_epochs", epochs)
    if loop.min_epochs is not None and loop.min_epochs > epochs:
        change(loop, "min_epochs", epochs)
    limits = {"limit_train_batches": batches, "limit_val_batches": 2}
    for name, limit in limits.items():
        given = getattr(trainer, name)
        if given != 0 and (isinstance(given, float) or given > limit):
            change(trainer, name, limit)
    interval = trainer.val_check_interval
    if isinstance(interval, int) and interval > batches:
        change(trainer, "val_check_interval", batches)
    elif isinstance(interval, float) and 0 < interval < 1 / batches:
        change(trainer, "val_check_interval", 1)
    if trainer.log_every_n_steps > batches:
        change(trainer, "log_every_n_steps", 1)
    changed += _scale_down_saves(trainer, batches)
    return changed


def _scale_down_saves(trainer: Any, batches: int) -> list[str]:
    """Let a short fit validate and save before its last epoch, so that a fault has a checkpoint before it."""
    changed: list[str] = []

    def change(owner: Any, name: str, value: Any) -> None:
        changed.append(f"{name.removeprefix('_')} {getattr(owner, name)} -> {value}")
        setattr(owner, name, value)

    before_the_last = max(1, trainer.fit_loop.max_epochs - 1)
    if (trainer.check_val_every_n_epoch or 0) > before_the_last:
        change(trainer, "check_val_every_n_epoch", 1)
    steps = max(1, batches // trainer.accumulate_grad_batches)
    for each in _checkpoints(trainer):
        if each._train_time_interval is not None:
            change(each, "_train_time_interval", None)
            change(each, "_every_n_train_steps", max(1, steps // 2))
        if each._every_n_train_steps > steps:
            change(each, "_every_n_train_steps", max(1, steps // 2))
        if each._every_n_epochs > before_the_last:
            change(each, "_every_n_epochs", 1)
    return changed


def saves_checkpoints(trainer: Any) -> bool:
    """Return whether the Trainer has a callback that is to save checkpoints."""
    return any(each.save_top_k != 0 or each.save_last for each in _checkpoints(trainer))


def redirect(trainer: Any, folder: Path) -> None:
    """Let Trainer, checkpoint callbacks and loggers write into a folder."""
    trainer._default_root_dir = str(folder)
    for number, each in enumerate(_checkpoints(trainer)):
        if each.dirpath is not None:
            each.dirpath = str(folder / f"checkpoints-{number}")
    for each in _of(trainer, "OnExceptionCheckpoint"):
        each.dirpath = str(folder / "exceptions")
    for number, each in enumerate(trainer.loggers):
        own = str(folder / f"logs-{number}")
        for name in ("_root_dir", "_save_dir"):
            if name in vars(each):
                setattr(each, name, own)
        if "_wandb_init" in vars(each):
            each._wandb_init["dir"] = own


def _checkpoints(trainer: Any) -> list[Any]:
    return _of(trainer, "ModelCheckpoint")


def _of(trainer: Any, name: str) -> list[Any]:
    kind = lookup(family_of(type(trainer)), f"callbacks.{name}")
    return [each for each in trainer.callbacks if isinstance(each, kind)]
