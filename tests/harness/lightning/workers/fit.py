"""A rank that trains a small model with Lightning, as its setting asks."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import signal
import sys
import time
import warnings
import weakref
import zlib
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import nvrx_lightning
import torch
import torch.nn.utils.prune
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    RichProgressBar,
    StochasticWeightAveraging,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from nvrx_core import inprocess
from nvrx_core.inprocess import current_call, live_state
from nvrx_core.inprocess.rank_assignment import FillGaps, MaxActiveWorldSize
from tests.harness.lightning.setting import Fault, Setting
from tests.harness.lightning.workers.loaders import Samples, dist_size, initial_rank, make_loader, shards
from tests.harness.process.workers.record import Record, usage

__all__ = ["Faults", "Model", "attempt_now", "main", "make_trainer"]

INITIAL_RANK = initial_rank()
SHOWN = ("callback_metrics", "logged_metrics", "progress_bar_metrics")


class Faults:
    """Injects the faults of the setting, each once."""

    def __init__(self, setting: Setting, record: Record) -> None:
        self.setting, self.record = setting, record
        self.left = list(setting.faults)

    def __call__(self, where: str, step: int) -> None:
        attempt = attempt_now()
        if where == "train" and attempt in range(self.setting.restarts):
            if step == 6 + attempt % 3 and attempt % int(os.environ["WORLD_SIZE"]) == INITIAL_RANK:
                self.record("fault", kind="raise", step=step, where=where)
                raise RuntimeError(f"fault {attempt}")
            return
        for fault in self.left:
            here = (fault.rank, fault.where, fault.step) == (INITIAL_RANK, where, step)
            if here and fault.attempt in (None, attempt):
                if fault.attempt is not None:
                    self.left.remove(fault)
                self.inject(fault)
                return

    def inject(self, fault: Fault) -> None:
        self.record("fault", kind=fault.kind, step=fault.step, where=fault.where)
        if self.setting.spoil:
            spoil(self.setting.spoil)
        if fault.kind == "raise":
            raise RuntimeError("a fault")
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.kind == "interrupt":
            raise KeyboardInterrupt
        elif fault.kind == "exit":
            sys.exit(3)
        elif fault.kind == "raise during a write":
            self.record.await_others(1, "writing", step=fault.step)
            raise RuntimeError("a fault")
        elif fault.kind == "sleep":
            time.sleep(1000)
        elif fault.kind == "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            ctypes.PyDLL(None).sleep(1000)  # it holds the GIL: nothing interrupts it


def spoil(how: str) -> None:
    """Damage the newest checkpoint."""
    newest = max(checkpoints(), key=lambda each: each.stat().st_mtime_ns)
    if how == "cut":
        os.truncate(newest, newest.stat().st_size // 2)
    elif how == "delete":
        newest.unlink()
    elif how == "garble":
        data = bytearray(newest.read_bytes())
        at = data.find(b"state_dict")
        data[at : at + 4] = b"\xff\xff\xff\xff"
        newest.write_bytes(data)


def folder() -> Path:
    return Path(os.environ["NVRX_TEST_CHECKPOINTS"])


def checkpoints() -> list[Path]:
    return list(folder().glob("*.ckpt"))


def attempt_now() -> int:
    call = current_call()
    return call.iteration if call is not None else -1


class Model(pl.LightningModule):
    def __init__(self, setting: Setting, faults: Faults, record: Record) -> None:
        super().__init__()
        self.setting, self.faults, self.record = setting, faults, record
        self.automatic_optimization = not setting.manual
        self.net: Any = self.make()
        self.mean = MeanMetric()
        self.dumps: Counter[int] = Counter()
        self.lr = 1e-2

    def make(self) -> torch.nn.Sequential:
        layers: list[torch.nn.Module] = [torch.nn.Linear(16, 32), torch.nn.ReLU()]
        if self.setting.batch_norm:
            layers.append(torch.nn.BatchNorm1d(32))
        if self.setting.dropout:
            layers.append(torch.nn.Dropout(self.setting.dropout))
        return torch.nn.Sequential(*layers, torch.nn.Linear(32, 4))

    def prepare_data(self) -> None:
        self.record("prepared", attempt=attempt_now())
        self.faults("prepare", 0)

    def on_save_checkpoint(self, checkpoint: Any) -> None:
        self.dumps[self.global_step] += 1
        self.faults("dump" if self.dumps[self.global_step] == 1 else "second_dump", self.global_step)

    def setup(self, stage: str) -> None:
        self.faults("setup", 0)
        if self.setting.late_layer and len(self.net) == 3:
            self.net.append(torch.nn.Linear(4, 4))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y, index = batch
        self.record(
            "seen", attempt=attempt_now(), epoch=self.current_epoch, step=self.global_step, index=index.tolist(),
            training=self.net.training, rank=self.global_rank, batch=batch_idx,
        )  # fmt: skip
        self.faults("train", self.global_step)
        if self.setting.step_seconds:
            time.sleep(self.setting.step_seconds)
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=self.setting.epoch_metrics)
        self.mean.update(loss)
        if self.setting.manual:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def on_after_backward(self) -> None:
        self.faults("backward", self.global_step)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.faults("before_step", self.global_step)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.faults("scheduler", self.global_step)
        super().lr_scheduler_step(scheduler, metric)

    def on_train_batch_end(self, *_: Any) -> None:
        if self.setting.stop_at and self.global_step >= self.setting.stop_at:
            self.trainer.should_stop = True
        self.faults("after_stop", self.global_step)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.faults("validation", self.global_step)
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)
        if batch_idx == 1:
            self.faults("validation_last", self.global_step)

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW((each for each in self.parameters() if each.requires_grad), lr=self.lr)
        if self.setting.hooks_step:
            optimizer.register_step_pre_hook(lambda *_: None)
        if self.setting.callbacks:
            return optimizer
        if self.setting.warmup:
            steps: Any = self.trainer.estimated_stepping_batches
            cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}
        if self.setting.plateau:
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": self.setting.plateau}}
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class ShardedModel(Model):
    """A model that FSDP2 shards in place."""

    def configure_model(self) -> None:
        if isinstance(self.net, FSDPModule):
            return
        mesh = self.device_mesh["data_parallel"]
        for layer in self.net:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)


class Observer(Callback):
    """Records the callback hooks, and injects faults in them."""

    def __init__(self, faults: Faults, record: Record) -> None:
        self.faults, self.record = faults, record
        self.wrapped: weakref.WeakSet[Any] = weakref.WeakSet()

    def on_restart(self, trainer: Any, module: Any, attempt: int) -> None:
        self.record("on_restart", attempt=attempt, trains=module.training)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self.record("on_exception", error=type(exception).__name__)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.faults("train_start", trainer.global_step)
        self.wrapped.update([trainer.strategy.model, *trainer.strategy.optimizers])
        self.record(
            "train_start", wrapped=len(self.wrapped), attempt=attempt_now(),
            step=trainer.global_step, epoch=trainer.current_epoch,
            batches=trainer.num_training_batches, world=trainer.world_size, rank=trainer.global_rank,
            usage=usage(),
        )  # fmt: skip

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.faults("batch_start", trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.faults("batch_end", trainer.global_step)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.faults("epoch_start", trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.faults("epoch_end", trainer.current_epoch)
        metrics = {name: value.item() for name, value in sorted(trainer.callback_metrics.items())}
        self.record(
            "epoch_ended", step=trainer.global_step, attempt=attempt_now(), metrics=metrics,
            mean=module.mean.compute().item(), epoch=trainer.current_epoch,
        )  # fmt: skip
        module.mean.reset()

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        self.faults("fit_end", 0)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.faults("train_end", 0)
        self.record("train_ended", step=trainer.global_step + 1, attempt=attempt_now())

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        if not trainer.sanity_checking:
            self.record("validated", step=trainer.global_step, attempt=attempt_now())


class InterruptedForward(Callback):
    """Fails between the replacement of `forward` and the call, where DDP broadcasts its buffers."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        trainer.strategy.model.register_forward_pre_hook(lambda *_: self.faults("before_forward", trainer.global_step))


class Finetuning(BaseFinetuning):
    """Trains a layer and its batch norm from the second epoch on."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net[:-1], train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[:-1], optimizer)


class Saving(Callback):
    """Saves a checkpoint each time that a hook is called, as a user's own callback may."""

    def __init__(self, hook: str) -> None:
        self.count = 0
        setattr(self, hook, self.save)

    def save(self, trainer: Any, *_: Any) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            trainer.save_checkpoint(folder() / f"{trainer.global_step}-{self.count}.ckpt")
            self.count += 1


class LargeState(Callback):
    """Has more to copy at each step than is copied."""

    def state_dict(self) -> dict[str, Any]:
        return {"queue": torch.zeros(5 << 20)}


class FailingState(Callback):
    """Has no state at one step, in one of two calls."""

    step, fails = 0, True

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.step = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        if self.step == 6 and self.fails:
            self.fails = False
            raise ValueError("not now")
        return {"step": self.step}


class ObjectState(Callback):
    """Keeps objects from its seventh step on."""

    def __init__(self) -> None:
        self.seen = list[Any]()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.seen.append(object() if trainer.global_step > 6 else None)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = list(state_dict["seen"])


class UnevenState(Callback):
    """Has a large state on rank 1 alone, from the fourth step on, and asks the other rank in each."""

    step = 0

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.step = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        if not torch.distributed.is_initialized():
            return {}
        torch.distributed.all_reduce(seen := torch.ones(1))
        return {"seen": float(seen), "queue": torch.zeros(5 << 20 if INITIAL_RANK == 1 and self.step > 3 else 1)}


class OptimizerAnew(Callback):
    """Begins the optimizer anew after the first epoch."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 0:
            trainer.strategy.setup_optimizers(trainer)


class StepHook(Callback):
    """Registers a hook before the optimizer's step once it knows the optimizer."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.optimizers[0].register_step_pre_hook(lambda *_: None)


class Pruning(Callback):
    """Prunes a layer after the first epoch, which gives its parameters other names."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 0:
            torch.nn.utils.prune.l1_unstructured(pl_module.net[0], "weight", 0.5)


CALLBACKS: dict[str, Any] = {
    "anew": OptimizerAnew,
    "objects": ObjectState,
    "hooking": StepHook,
    "pruning": Pruning,
    "uneven": UnevenState,
    "accumulation": lambda: GradientAccumulationScheduler({0: 1, 1: 4}),
    "large": LargeState,
    "failing": FailingState,
    "averaging": lambda: StochasticWeightAveraging(1e-1, swa_epoch_start=1, annealing_epochs=2),
    "finetuning": Finetuning,
    "lr_find": lambda: LearningRateFinder(num_training_steps=15, early_stop_threshold=None),
}


class SlowIO(TorchCheckpointIO):
    """Its writes take long, and the other ranks wait for their start."""

    record: Record

    def save_checkpoint(self, checkpoint: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        SlowIO.record("writing", step=checkpoint["global_step"])
        time.sleep(1)
        super().save_checkpoint(checkpoint, path, *args, **kwargs)
        SlowIO.record("written", step=checkpoint["global_step"])


class RefusingIO(TorchCheckpointIO):
    """Cannot load the newest checkpoint, once."""

    refused = False

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        if not RefusingIO.refused and INITIAL_RANK == 1:
            RefusingIO.refused = True
            raise OSError(f"cannot read {path}")
        return super().load_checkpoint(path, *args, **kwargs)


def make_strategy(setting: Setting) -> Any:
    options = {"resume": "checkpoint", **setting.options}
    for name in ("soft_timeout", "hard_timeout"):
        if name in options:
            options[name] = timedelta(seconds=options[name])
    if setting.active:
        options["rank_assignment"] = inprocess.Compose(MaxActiveWorldSize(setting.active), FillGaps())
    if setting.strategy == "DDPStrategy":
        own = {name: each for name, each in options.items() if name == "find_unused_parameters"}
        return DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=60), **own)
    if setting.strategy == "ModelParallelStrategy":
        return ModelParallelStrategy(data_parallel_size=dist_size(), tensor_parallel_size=1)
    if setting.strategy == "InProcessModelParallelStrategy":
        return nvrx_lightning.InProcessModelParallelStrategy(
            data_parallel_size=dist_size(), tensor_parallel_size=1, process_group_backend="gloo", **options
        )
    if setting.strategy == "in_process":
        return nvrx_lightning.in_process(DDPStrategy(process_group_backend="gloo"), **options)
    if setting.strategy == "name":
        return "ddp_inprocess"
    return nvrx_lightning.InProcessDDPStrategy(process_group_backend="gloo", **options)


def make_trainer(setting: Setting, faults: Faults, record: Record) -> pl.Trainer:
    callbacks: list[Callback] = [Observer(faults, record), InterruptedForward(faults)]
    if setting.checkpoint is not None:
        callbacks.append(ModelCheckpoint(**{"dirpath": folder(), **setting.checkpoint}))
    if setting.best:
        callbacks.append(ModelCheckpoint(folder(), "best-{step}", monitor="val_loss", save_top_k=-1))
    if setting.early_stopping:
        callbacks.append(
            EarlyStopping(setting.monitor, patience=setting.patience, mode="max" if setting.patience < 50 else "min")
        )
    callbacks += [CALLBACKS[name]() for name in setting.callbacks]
    callbacks += [Saving(setting.saves_in)] if setting.saves_in else []
    if setting.callback:
        callbacks.append(nvrx_lightning.FaultToleranceCallback())
    if setting.bar:
        callbacks.append({"tqdm": TQDMProgressBar, "rich": RichProgressBar}[setting.bar]())
    known = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}
    loggers = [known[name](folder().parent / "logs", name=name) for name in setting.loggers]
    plugins: list[Any] = []
    if setting.amp:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        plugins.append(MixedPrecision("16-mixed", "cpu", scaler=scaler))
    if setting.io:
        SlowIO.record = record
        plugins.append({"async": AsyncCheckpointIO, "refusing": RefusingIO, "slow": SlowIO}[setting.io]())
    options = {"max_epochs": 2, "num_sanity_val_steps": 0, "log_every_n_steps": 1, **setting.trainer}
    return pl.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "2"))),
        strategy=make_strategy(setting), callbacks=callbacks, logger=loggers or False, plugins=plugins,
        enable_checkpointing=setting.checkpoint is not None, enable_progress_bar=bool(setting.bar),
        enable_model_summary=False, default_root_dir=folder(), use_distributed_sampler=shards(setting),
        **options,
    )  # fmt: skip


def weights_of(model: torch.nn.Module) -> str:
    digest = hashlib.sha1()
    for value in model.state_dict().values():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        digest.update(whole.detach().double().numpy().tobytes())
    return digest.hexdigest()


def fail_after_votes(faults: Faults) -> None:
    """Inject faults after a vote that this rank does not know to be passed, while its peers step."""
    gather = live_state._Ports._gather

    def failing(ports: Any, row: Any) -> Any:
        rows = gather(ports, row)
        faults("vote", live_state.rows.headers_of([row])[0][1])
        return rows

    live_state._Ports._gather = failing  # type: ignore[method-assign]


def main() -> None:
    warnings.simplefilter("ignore")
    warnings.filterwarnings("always", "The dirpath has changed")
    torch.set_num_threads(1)
    setting, record = Setting.read(), Record(os.environ["NVRX_TEST_RECORDS"], INITIAL_RANK)
    logging.getLogger("lightning.pytorch").setLevel(logging.INFO if setting.logs else logging.WARNING)
    faults = Faults(setting, record)
    if any(each.where == "vote" for each in setting.faults):
        fail_after_votes(faults)
    pl.seed_everything(1, verbose=False)
    trainer = make_trainer(setting, faults, record)
    kind = ShardedModel if setting.strategy.endswith("ModelParallelStrategy") else Model
    model, loader = kind(setting, faults, record), make_loader(setting)
    validation = DataLoader(Samples(16), batch_size=4) if setting.validate else None
    error = None
    try:
        trainer.fit(model, loader, validation, ckpt_path=setting.ckpt_path)
    except BaseException as raised:
        error = raised
    report(trainer, model, record, error)
    for what in setting.then:
        if what == "fit":
            trainer.fit_loop.max_epochs += 1
            trainer.fit(model, loader, validation)
        else:
            getattr(trainer, what)(model, DataLoader(Samples(16), batch_size=4), verbose=False)
        report(trainer, model, record, None)
    if error is not None:
        raise error


def report(trainer: Any, model: Any, record: Record, error: BaseException | None) -> None:
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    shown = {kind: {name: float(value) for name, value in getattr(trainer, kind).items()} for kind in SHOWN}
    plateaus = [each.scheduler for each in trainer.lr_scheduler_configs if each.reduce_on_plateau]
    shown["random"] = {"digest": float(zlib.crc32(torch.get_rng_state().numpy().tobytes()))}
    shown["schedules"] = {str(number): each.best for number, each in enumerate(plateaus)}
    record(
        "fitted", error=type(error).__name__ if error else None, text=str(error), step=trainer.global_step,
        epoch=trainer.current_epoch, weights="" if error else weights_of(model), world=trainer.world_size,
        rank=trainer.global_rank, status=str(trainer.state.status), scale=scaler.get_scale() if scaler else None,
        saved=sorted(each.name for each in checkpoints()), trains=model.training, usage=usage(), shown=shown,
    )  # fmt: skip


if __name__ == "__main__":
    main()
