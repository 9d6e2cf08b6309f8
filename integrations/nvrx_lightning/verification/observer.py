"""What a rank sees during a fit: each batch, validation and epoch, without the steps that a restart takes back.

The observer is the first callback, so that what it has seen of a batch is complete when another one saves a checkpoint.
Its own state in a checkpoint is a name for what it had seen by then; an attempt that loads it goes on from there.
"""

from __future__ import annotations

from typing import Any, Final

from nvrx_lightning.callback_base import callback_class
from nvrx_lightning.families import lookup
from nvrx_lightning.verification.comparison import Event
from nvrx_lightning.verification.digests import contents, entries, generators

__all__ = ["VerificationObserver", "attributes", "final_state", "metrics"]

_SINCE_SETUP: Final = frozenset({"_ddp_params_and_buffers_to_ignore", "forward", "trainer"})
"""Attributes that a fit gives to a module."""


class VerificationObserver(callback_class()):  # type: ignore[misc]
    """Observes one rank."""

    def __init__(self) -> None:
        self._trainer: Any = None
        self._pending: tuple[int, Event] | None = None
        self._interrupted: tuple[list[Event], tuple[int, Event] | None] = [], None
        self._seen: dict[str, tuple[list[Event], tuple[int, Event] | None]] = {}
        self._attempt = self._saves = 0
        self.events: list[Event] = []
        self.resumed: list[int] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Keep the Trainer."""
        self._trainer = trainer

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Keep what the attempt has seen: its peer may have saved a checkpoint that this rank has not come to."""
        self._interrupted = list(self.events), self._pending

    def on_restart(self, trainer: Any, pl_module: Any, attempt: int) -> None:
        """Begin an attempt; what has been seen goes back to a checkpoint when one is loaded."""
        self._attempt, self._saves = attempt, 0
        self.resumed.append(0)

    def state_dict(self) -> dict[str, Any]:
        """Return a name for what has been seen, the same on each rank."""
        name = f"{self._attempt}-{self._saves}"
        self._saves += 1
        self._seen[name] = list(self.events), self._pending
        return {"name": name, "step": self._trainer.global_step if self._trainer is not None else -1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back to what had been seen."""
        if state_dict["name"] in self._seen:
            events, self._pending = self._seen[state_dict["name"]]
            self.events = list(events)
        else:
            events, pending = self._interrupted
            self.events = events if pending is None or pending[0] >= state_dict["step"] else [*events, pending[1]]
            self._pending = None
        if self._attempt:
            self.resumed[-1] = max(0, state_dict["step"])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """See from which step an attempt goes on."""
        if self._attempt:
            self.resumed[-1] = trainer.global_step

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """See the metrics of the epoch before."""
        where = f"the start of epoch {trainer.current_epoch}"
        self._add(Event(where, {**metrics(trainer, "epoch metric"), **attributes(trainer, pl_module)}))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """See a batch, and the state in which it is trained on."""
        rates = [group["lr"] for each in trainer.optimizers for group in each.param_groups]
        fields = {
            "sample order": contents(batch) or "",
            "random numbers": generators(),
            "lr": contents(rates) or "",
            **attributes(trainer, pl_module),
        }
        where = f"epoch {trainer.current_epoch}, batch {batch_idx}"
        self._pending = trainer.global_step, Event(where, fields)

    def on_train_batch_end(  # noqa: PLR0917
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """See the outcome of a batch."""
        if self._pending is not None:
            _, event = self._pending
            self._pending = None
            self._add(Event(event.where, {**event.fields, **entries(outputs, "output of training_step")}))

    def on_validation_batch_end(  # noqa: PLR0917
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """See a batch of a validation."""
        if trainer.sanity_checking:
            return
        where = f"the validation at step {trainer.global_step}, loader {dataloader_idx}, batch {batch_idx}"
        fields = {"validation samples": contents(batch) or "", **entries(outputs, "output of validation_step")}
        self._add(Event(where, fields))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """See the metrics of a validation."""
        if not trainer.sanity_checking:
            where = f"the end of the validation at step {trainer.global_step}"
            self._add(Event(where, metrics(trainer, "metric")))

    def _add(self, event: Event) -> None:
        """Note an event; one that takes place again after a restart in its middle replaces itself."""
        if self.events and self.events[-1].where == event.where:
            self.events.pop()
        self.events.append(event)


def metrics(trainer: Any, kind: str) -> dict[str, str]:
    """Return the metrics that callbacks and schedulers see."""
    return {f"{kind} {name}": contents(value) or "" for name, value in sorted(trainer.callback_metrics.items())}


def attributes(trainer: Any, module: Any) -> dict[str, str]:
    """Return the attributes of the user's module and callbacks that hold plain values, tensors or containers."""
    family = "pytorch_lightning" if type(trainer).__module__.startswith("pytorch_lightning") else "lightning.pytorch"
    usual = _SINCE_SETUP | vars(lookup(family, "LightningModule")()).keys()
    found = _attributes("module", module, usual)
    foreign = ("lightning.", "pytorch_lightning.", "nvrx_lightning.")
    for each in trainer.callbacks:
        if not type(each).__module__.startswith(foreign):
            found |= _attributes(type(each).__qualname__, each, frozenset())
    return found


def _attributes(owner: str, value: object, usual: frozenset[str]) -> dict[str, str]:
    texts = {f"{owner}.{name}": contents(each) for name, each in vars(value).items() if name not in usual}
    return {name: text for name, text in texts.items() if text is not None}


def final_state(trainer: Any, module: Any, weights: Any) -> dict[str, dict[str, str]]:
    """Return what a fit leaves, by kind, in the order in which differences are looked for.

    Args:
        trainer: the Trainer.
        module: its module.
        weights: the `state_dict` of the module.
    """
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    callbacks = {
        each.state_key: each.state_dict() for each in trainer.callbacks if not isinstance(each, VerificationObserver)
    }
    progress = {
        "global_step": trainer.global_step, "current_epoch": trainer.current_epoch,
        "batches": trainer.fit_loop.total_batch_idx + 1, "should_stop": trainer.should_stop,
    }  # fmt: skip
    return {
        "progress": entries(progress),
        "weights": entries(weights),
        "optimizer state": entries([each.state_dict() for each in trainer.optimizers]),
        "scheduler state": entries([each.state_dict() for each in schedulers]),
        "precision state": entries(trainer.precision_plugin.state_dict()),
        "callback state": entries(callbacks),
        "metric": entries(dict(trainer.callback_metrics)),
        "logged metric": entries(dict(trainer.logged_metrics)),
        "attribute": attributes(trainer, module),
        "random numbers": {"at the end of the fit": generators()},
    }
