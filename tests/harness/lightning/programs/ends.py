"""When a fit ends, validates and saves."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import AsyncCheckpointIO

from tests.harness.lightning.programs.base import Net, checkpoint, plain, saved_at_epochs
from tests.harness.lightning.programs.expectation import differs, same

__all__: list[str] = []


@same
def early_stopping() -> Any:
    """`EarlyStopping`, which stops in the second epoch"""
    return plain(Rising(), callbacks.EarlyStopping("rising", patience=1), max_epochs=5)


class Rising(Net):
    def on_validation_epoch_end(self) -> None:
        self.log("rising", float(self.current_epoch))


class StopsAtStep(Callback):
    """Stops when a step is done."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 9:
            trainer.should_stop = True


@same
def should_stop() -> Any:
    """`trainer.should_stop` in the middle of an epoch"""
    return plain(None, StopsAtStep(), checkpoints=[checkpoint(every_n_train_steps=3)])


@same
def max_steps() -> Any:
    """`max_steps` in the middle of an epoch"""
    return plain(max_steps=15, max_epochs=-1)


@same
def validations_in_an_epoch() -> Any:
    """`val_check_interval`: two validations in an epoch"""
    return plain(val_check_interval=3)


@same
def validation_each_second_epoch() -> Any:
    """`check_val_every_n_epoch=2`"""
    return plain(check_val_every_n_epoch=2)


@same
def saves_of_epochs() -> Any:
    """checkpoints at the ends of epochs only"""
    return plain(checkpoints=[saved_at_epochs()])


@same
def no_saves() -> Any:
    """no checkpoint at all"""
    return plain(checkpoints=[], enable_checkpointing=False)


@same
def best_models() -> Any:
    """`save_top_k=2` of a validation, `save_last`"""
    best = checkpoint(every_n_train_steps=None, monitor="val_loss", save_top_k=2, save_last=True)
    return plain(checkpoints=[best], val_check_interval=3)


@same
def two_saves_in_a_step() -> Any:
    """two `ModelCheckpoint`s that save in the same step, with a `CSVLogger`"""
    saves = [checkpoint(dirpath="all"), checkpoint(dirpath="last", every_n_train_steps=2, save_top_k=1)]
    return plain(checkpoints=saves, logger=CSVLogger("logs"))


class SavesAtStart(Net):
    def on_train_epoch_start(self) -> None:
        self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/start-{self.current_epoch}.ckpt")


@same
def saves_at_the_start_of_an_epoch() -> Any:
    """`trainer.save_checkpoint` in `on_train_epoch_start`"""
    return plain(SavesAtStart(), checkpoints=[])


class SavesBeforeZeroGrad(Net):
    def on_before_zero_grad(self, optimizer: Any) -> None:
        if self.trainer.global_step % 4 == 2:
            self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/zero-{self.trainer.global_step}.ckpt")


@differs(
    "^random numbers$",
    warned=r"saved in the middle of a batch \(in on_before_zero_grad\): .* Save it in on_train_batch_end",
)
def saves_in_on_before_zero_grad() -> Any:
    """`trainer.save_checkpoint` in `on_before_zero_grad`"""
    return plain(SavesBeforeZeroGrad(), checkpoints=[])


class SavesBeforeABatch(Net):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step % 4 == 2:
            self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/batch-{self.trainer.global_step}.ckpt")


@same
def saves_in_on_train_batch_start() -> Any:
    """`trainer.save_checkpoint` in `on_train_batch_start`"""
    return plain(SavesBeforeABatch(), checkpoints=[])


@same
def asynchronous_saves() -> Any:
    """`AsyncCheckpointIO`"""
    return plain(plugins=[AsyncCheckpointIO()])


class SavesAtEpochEnd(Net):
    def on_train_epoch_end(self) -> None:
        self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/epoch-{self.current_epoch}.ckpt")


@same
def saves_in_on_train_epoch_end() -> Any:
    """`trainer.save_checkpoint` in `on_train_epoch_end`"""
    return plain(SavesAtEpochEnd(), checkpoints=[])


class SavesAtValidationEnd(Net):
    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/val-{self.trainer.global_step}.ckpt")


@differs(r"^checkpoint file val-\d+\.ckpt")
def saves_in_on_validation_end() -> Any:
    """`trainer.save_checkpoint` in `on_validation_end`, twice in an epoch"""
    return plain(SavesAtValidationEnd(), checkpoints=[], val_check_interval=3)


class SavesInABatch(Net):
    def on_after_backward(self) -> None:
        if self.trainer.global_step % 4 == 2:
            self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/backward-{self.trainer.global_step}.ckpt")


@differs(
    "^random numbers$",
    warned=r"saved in the middle of a batch \(in on_after_backward\): .* Save it in on_train_batch_end",
)
def saves_in_on_after_backward() -> Any:
    """`trainer.save_checkpoint` in the middle of a batch"""
    return plain(SavesInABatch(), checkpoints=[])


@same
def saves_on_exception() -> Any:
    """`OnExceptionCheckpoint`"""
    return plain(None, callbacks.OnExceptionCheckpoint("exceptions"))


@same
def validations_by_steps() -> Any:
    """`check_val_every_n_epoch=None`: a validation after each fourth step, across epochs"""
    return plain(check_val_every_n_epoch=None, val_check_interval=4)


@same
def early_stopping_of_training() -> Any:
    """`EarlyStopping` of a training metric"""
    stop = callbacks.EarlyStopping("train_loss_epoch", mode="max", patience=1, check_on_train_epoch_end=True)
    return plain(None, stop, max_epochs=5)


class EndsEpochs(Net):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 5 else None


@same
def epochs_that_a_hook_ends() -> Any:
    """epochs that `on_train_batch_start` ends, by -1"""
    return plain(EndsEpochs(), checkpoints=[checkpoint(every_n_train_steps=3)])


@same
def overfitting() -> Any:
    """`overfit_batches=4`"""
    return plain(overfit_batches=4, checkpoints=[checkpoint(every_n_train_steps=3)])


@same
def last_of_steps() -> Any:
    """`save_last` with `every_n_train_steps`"""
    return plain(checkpoints=[checkpoint(save_last=True)])


@same
def steps_and_best_models() -> Any:
    """a `ModelCheckpoint` of steps, and one of each validation, in the same steps"""
    best = checkpoint(dirpath="best", every_n_train_steps=None, monitor="val_loss", filename="{step}")
    return plain(val_check_interval=2, checkpoints=[checkpoint(), best])
