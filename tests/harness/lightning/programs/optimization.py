"""Optimization: schedules, accumulation, clipping, precision, strategies."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import nvrx_lightning
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities import grad_norm
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import fully_shard

from tests.harness.lightning.programs.base import Net, checkpoint, make_trainer, plain, train_loader
from tests.harness.lightning.programs.expectation import differs, refused, same

__all__: list[str] = []


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log("train_loss", loss)

    def on_train_epoch_end(self) -> None:
        scheduler: Any = self.lr_schedulers()
        scheduler.step()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-2, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


@same
def usual() -> Any:
    """dropout, shuffled data, a validation after each epoch"""
    return plain()


@same
def manual_optimization() -> Any:
    """manual optimization with a scheduler"""
    return plain(Manual())


class Gan(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        real = batch[0]
        first, second = self.optimizers()  # type: ignore[misc]
        score = torch.nn.functional.binary_cross_entropy_with_logits
        made = self.generator(torch.randn(len(real), 4))
        self.toggle_optimizer(first)
        loss = score(self.discriminator(made), torch.ones(len(real), 1))
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        wrong = score(self.discriminator(made.detach()), torch.zeros(len(real), 1))
        right = score(self.discriminator(real), torch.ones(len(real), 1))
        second.zero_grad()
        self.manual_backward(wrong + right)
        second.step()
        self.untoggle_optimizer(second)
        self.log_dict({"generator": loss, "discriminator": wrong + right}, on_epoch=True)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(each.parameters(), lr=1e-2) for each in (self.generator, self.discriminator)]


@same
def gan() -> Any:
    """a GAN: two optimizers, toggled, and random inputs"""
    return (
        make_trainer(strategy=nvrx_lightning.InProcessDDPStrategy(find_unused_parameters=True)),
        Gan(),
        train_loader(),
    )


@same
def accumulation() -> Any:
    """`accumulate_grad_batches=2`"""
    return plain(accumulate_grad_batches=2, checkpoints=[checkpoint(every_n_train_steps=2)])


@same
def accumulation_scheduler() -> Any:
    """`GradientAccumulationScheduler`"""
    return plain(None, callbacks.GradientAccumulationScheduler({0: 1, 1: 2}))


@same
def clipping() -> Any:
    """gradient clipping"""
    return plain(gradient_clip_val=0.1, gradient_clip_algorithm="norm")


class WarmUpByHand(Net):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * min(1.0, (self.trainer.global_step + 1) / 8)


@same
def warm_up_by_hand() -> Any:
    """a warm-up in `optimizer_step`"""
    return plain(WarmUpByHand())


class WarmUp(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


@same
def warm_up() -> Any:
    """a warm-up schedule by `trainer.estimated_stepping_batches`"""
    return plain(WarmUp())


class Plateau(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


@same
def plateau() -> Any:
    """`ReduceLROnPlateau` of a validation"""
    return plain(Plateau())


class PlateauOfRank(Net):
    """A rate that falls on rank 0 alone: what it follows gets better on the other rank."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("of_rank", loss.detach() * (1 - 2 * self.global_rank), on_step=True, on_epoch=False)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)
        followed = {"scheduler": scheduler, "monitor": "of_rank", "interval": "step", "frequency": 3}
        return {"optimizer": optimizer, "lr_scheduler": followed}


@differs("^(weights|output of training_step)", warned="the learning rate of this rank is .* with sync_dist=True")
def plateau_in_validations() -> Any:
    """`ReduceLROnPlateau` of each rank's own metric, and a checkpoint in each of two validations of an epoch"""
    saved = checkpoint(every_n_train_steps=None, monitor="val_loss", save_top_k=-1, filename="{step}")
    return plain(PlateauOfRank(), val_check_interval=3, checkpoints=[saved])


class PlateauOfSteps(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)
        followed = {"scheduler": scheduler, "monitor": "val_loss", "interval": "step", "frequency": 3}
        return {"optimizer": optimizer, "lr_scheduler": followed}


@same
def plateau_after_each_validation() -> Any:
    """`ReduceLROnPlateau` with `interval="step"`, after each of two validations of an epoch"""
    return plain(PlateauOfSteps(), val_check_interval=3)


class Cosine(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-1)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)]


@same
def schedule_of_epochs() -> Any:
    """a scheduler of epochs, with restarts"""
    return plain(Cosine())


@same
def bf16() -> Any:
    """`precision="bf16-mixed"`"""
    return plain(precision="bf16-mixed")


@same
def fp16() -> Any:
    """mixed precision with a `GradScaler`"""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    return plain(plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])


@same
def double() -> Any:
    """`precision="64-true"`"""
    return plain(precision="64-true")


class WithLbfgs(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


@same
def lbfgs() -> Any:
    """LBFGS, which calls its closure several times in a step"""
    return plain(WithLbfgs())


class AccumulatesByHand(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        self.manual_backward(self.loss(batch) / 2)
        if batch_idx % 2:
            optimizer.step()
            optimizer.zero_grad()


@same
def accumulation_by_hand() -> Any:
    """manual optimization with a step after each second batch"""
    return plain(AccumulatesByHand(), checkpoints=[checkpoint(every_n_train_steps=2)])


class LogsNorms(Net):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log_dict(grad_norm(self, 2))


@same
def gradient_norms() -> Any:
    """norms of gradients, logged in `on_before_optimizer_step`"""
    return plain(LogsNorms(), logger=CSVLogger("logs"), log_every_n_steps=2)


class Clips(Net):
    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        limit = 0.2 if self.current_epoch == 0 else 0.1
        self.clip_gradients(optimizer, gradient_clip_val=limit, gradient_clip_algorithm="value")


@same
def clipping_by_epoch() -> Any:
    """`configure_gradient_clipping` with a limit that depends on the epoch"""
    return plain(Clips())


class Sequential(Net):
    def configure_optimizers(self) -> Any:
        schedules = torch.optim.lr_scheduler
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-1, momentum=0.9)
        parts: list[Any] = [
            schedules.LinearLR(optimizer, 0.1, total_iters=4),
            schedules.CosineAnnealingLR(optimizer, 8),
        ]
        scheduler = schedules.SequentialLR(optimizer, parts, [4])
        return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 2}]


@same
def schedules_in_sequence() -> Any:
    """a linear warm-up and a cosine, with a step after each second batch"""
    return plain(Sequential())


class Searches(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lr, self.batch_size = 1e-3, 4

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)

    def train_dataloader(self) -> Any:
        return train_loader(batch_size=self.batch_size)


@same
def learning_rate_finder() -> Any:
    """`LearningRateFinder`"""
    finder = callbacks.LearningRateFinder(num_training_steps=5, early_stop_threshold=None)
    return make_trainer(callbacks=[finder]), Searches()


@refused("Batch size finder is not supported with distributed strategies")
def batch_size_finder() -> Any:
    """`BatchSizeFinder`, which Lightning itself refuses for several ranks"""
    return make_trainer(callbacks=[callbacks.BatchSizeFinder(max_trials=2)]), Searches()


@same
def compressed_gradients() -> Any:
    """a communication hook that compresses gradients"""
    return plain(strategy=nvrx_lightning.InProcessDDPStrategy(ddp_comm_hook=default_hooks.fp16_compress_hook))


@same
def power_sgd() -> Any:
    """PowerSGD, a communication hook with a state of its own"""
    state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    hook: Any = powerSGD_hook.powerSGD_hook
    return plain(strategy=nvrx_lightning.InProcessDDPStrategy(ddp_comm_state=state, ddp_comm_hook=hook))


@refused(r"needs GPUs, and verify runs on 2 CPU ranks: write strategy=nvrx_lightning.InProcessDDPStrategy\(\)")
def fsdp() -> Any:
    """`InProcessFSDPStrategy`"""
    return plain(strategy=nvrx_lightning.InProcessFSDPStrategy())


class Sharded(Net):
    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]  # type: ignore[index]
        for layer in self.net:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)


@same
def fsdp2() -> Any:
    """FSDP2, by `InProcessModelParallelStrategy`"""
    strategy = nvrx_lightning.InProcessModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    return plain(Sharded(), strategy=strategy)
