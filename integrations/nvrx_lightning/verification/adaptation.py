"""A user's Trainer, made small: few batches, few epochs, and its files in a temporary folder.

Private names of Lightning's callbacks and loggers are used: those of intervals and folders, which have no setters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvrx_lightning.families import family_of, lookup
from nvrx_lightning.strategy import InProcessStrategy
from nvrx_lightning.verification.errors import VerificationError

__all__ = ["RANKS", "check", "redirect", "scale_down"]

RANKS = 2


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


def scale_down(trainer: Any, epochs: int, batches: int) -> list[str]:
    """Make a fit short, with its checkpoints, validations and log lines; return what was changed, for people."""
    loop, changed = trainer.fit_loop, []

    def change(owner: Any, name: str, value: Any, shown: str = "") -> None:
        changed.append(f"{shown or name} {getattr(owner, name)} -> {value}")
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
    for each in _checkpoints(trainer):
        if getattr(each, "_every_n_train_steps", 0) > batches:
            change(each, "_every_n_train_steps", max(1, batches // 2), "every_n_train_steps")
    return changed


def redirect(trainer: Any, folder: Path) -> None:
    """Let Trainer, checkpoint callbacks and loggers write into a folder."""
    trainer._default_root_dir = str(folder)
    for number, each in enumerate(_checkpoints(trainer)):
        if each.dirpath is not None:
            each.dirpath = str(folder / f"checkpoints-{number}")
    for number, each in enumerate(trainer.loggers):
        for name in ("_root_dir", "_save_dir"):
            if name in vars(each):
                setattr(each, name, str(folder / f"logs-{number}"))


def _checkpoints(trainer: Any) -> list[Any]:
    kind = lookup(family_of(type(trainer)), "callbacks.ModelCheckpoint")
    return [each for each in trainer.callbacks if isinstance(each, kind)]
