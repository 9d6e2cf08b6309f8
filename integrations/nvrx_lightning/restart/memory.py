"""A fit that goes on from the memory of its ranks: no step is done again.

Parameters and optimizer state stay where they are (`nvrx_core.inprocess.LiveState`): all ranks vote before each
optimizer step, with complete gradients. What belongs to the Trainer is copied on each rank, at the vote and once the
batch has ended, and an attempt loads one of these copies in place of a checkpoint (`memory_choice`).
"""

from __future__ import annotations

import copy
import enum
import inspect
import itertools
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torchmetrics import Metric

from nvrx_core.inprocess import LiveState, last_restart
from nvrx_core.inprocess.live.memory import MemoryLost
from nvrx_core.inprocess.live.objects import Objects, check_shared
from nvrx_core.inprocess.restart_record import RestartRecord
from nvrx_lightning.families import lookup
from nvrx_lightning.restart.checkpoint import Saved, SavedCheckpoints
from nvrx_lightning.restart.memory_choice import NOTHING, BatchStage, Choice, Chosen, Failure, Failures, Kept
from nvrx_lightning.restart.rank_states import RankState
from nvrx_lightning.restart.snapshot import overrides

__all__ = ["IN_MEMORY", "IN_WHOLE_EPOCHS", "BatchEnding", "FitMemory", "TrainerState", "checked", "copied"]

log = logging.getLogger("nvrx_lightning")
IN_MEMORY: Final = "the memory of the ranks"
"""What stands for the path of a checkpoint."""
_SEVERAL: Final = "the optimizer evaluates a batch several times in a step"
_HOOKED: Final = "a hook before the step of an optimizer would run after the evaluation of the batch, not before it"
_REPLACED: Final = "the step of the optimizer is not that of its class"
MAX_BUFFERS: Final = 1 << 20
"""Bytes of persistent buffers: each vote carries those of all ranks to all ranks."""
MAX_STATES: Final = 16 << 20
"""Bytes of what is copied at each step: the states of callbacks and of the data module."""
MAX_STATES_BY_DEFAULT: Final = 1 << 20
"""The same in a fit that has not asked for it."""
MAX_ITEMS_BY_DEFAULT: Final = 2000
"""Keys and values in the state of an object, in a fit that has not asked for it."""
AGREED_EVERY: Final = 50
"""Steps after which ranks agree whether one of them cannot use its states: `state_dict` may wait for other ranks."""
MAX_COPYING: Final = 0.005
MAX_SHARE: Final = 0.05
"""CPU seconds for the copies of a step, and their part of it: above both, a fit that did not ask for them ends them."""
IN_WHOLE_EPOCHS: Final = "the fit has saved no checkpoint in the middle of an epoch, from where it would go on"
MAX_REPLICATING: Final = 128
"""Ranks whose votes carry the random numbers of all: a replacement has fresh ones in a larger job."""
_PLAIN: Final = (type(None), bool, int, float, str, bytes)
_COPIED: Final = (*_PLAIN, complex, enum.Enum)
_OWN: Final = ("lightning.", "pytorch_lightning.", "nvrx_lightning.")


@dataclass(frozen=True)
class BatchEnding:
    """What the hooks at the end of a batch are called with; None on a rank that has the state from another one."""

    batch: Any = None
    outputs: Any = None


@dataclass(frozen=True)
class TrainerState:
    """The state of a Trainer at a step, without parameters and optimizer state.

    Attributes:
        step: the number of optimizer steps done, with that of the vote.
        checkpoint: what a checkpoint of this moment would have besides.
        settings: of the optimizers' groups, once the batch has ended: its schedulers have set learning rates.
        state: of this rank; None on one that has it from another rank.
        workers: returns the random numbers of the data loader's workers.
        containers: the lengths of the user's containers.
        ending: at a vote, how the batch ends.
    """

    step: int
    checkpoint: dict[str, Any]
    settings: list[list[dict[str, Any]]]
    state: RankState | None = None
    workers: Callable[[], dict[int, bytes]] = dict
    containers: Mapping[str, int] | None = None
    ending: BatchEnding | None = None


class FitMemory:
    """The memory of a fit on this rank.

    Args:
        trainer: the Trainer.
        family: the name of the Lightning package.
        on: whether it keeps anything.
        by_default: nobody has asked for it: it keeps nothing before a checkpoint is saved in the middle of an epoch,
            and what cannot be kept is no warning.
        limit: so many failures in a row without progress end the job; None for no limit.

    Attributes:
        refusal: why this fit keeps nothing; "" if it does.
        choice: from which state this attempt goes on; None for a checkpoint.
        resumed: that state, once it is loaded.
    """

    def __init__(
        self, trainer: Any, family: str, *, on: bool, by_default: bool = False, limit: int | None = None
    ) -> None:  # fmt: skip
        self._trainer, self._family, self._failures = trainer, family, Failures(limit)
        self.by_default = by_default
        self._live = self._new() if on else None
        self._states: dict[int, dict[BatchStage, TrainerState]] = {}  # by step: of the last vote, and of the one before
        self._shards: tuple[Any, ...] = ()
        self._step: _Step | None = None
        self._batch: Any = None
        self._is_committed = self._begun = self._searches = False
        self._unfit = self._given_up = ""
        self._unkept: dict[int, str] = {}  # why, by step, as `_states`
        self._failed = set[BatchStage]()  # at which the state could not be copied the last time
        self._is_wanted = not by_default
        self._copying, self._agreed_at = 0.0, 0.0
        self._buffers: dict[str, tuple[int, int]] = {}
        self._persistent: set[str] = set()
        self._optimizer: Any = None
        self._parameters: list[str] = []  # their names
        self.refusal = ""
        self.choice: Choice | None = None
        self._chosen_in = 0  # the number of the restart
        self.resumed: TrainerState | None = None

    def _new(self) -> LiveState:
        return LiveState(replicate=int(self._trainer.world_size) <= MAX_REPLICATING, schedules_advance=False)

    def choose(self, store: Any, rank: int, world_size: int, saved: SavedCheckpoints) -> str:
        """Agree with the other ranks on the state from which the attempt goes on.

        Args:
            store: of the iteration, empty at its start.
            rank: of this process in the iteration.
            world_size: of the iteration.
            saved: the checkpoints that this rank knows; afterwards those that any rank knew, too.

        Returns:
            Why it does not go on from memory; "" if it does, or if nothing is to be said.
        """
        restart, choice, self.choice, self.resumed = last_restart(), self.choice, None, None
        if self._live is None:
            return ""
        begun = exhausted = None
        if restart is not None:
            if choice is not None and self._chosen_in == restart.number - 1:  # else it was a reserve since
                begun = choice.step
            exhausted = self._failures.ended(_failure(restart), restart.highest_step, begun)
            self._chosen_in = restart.number
        told = tuple((each.path, each.step) for each in saved.newest())
        exhausted = exhausted if told else None  # else the initial weights would be all there is
        kept = replace(self._kept(), exhausted=exhausted, begun=begun, saved=told)
        store = dist.PrefixStore("nvrx_memory", store)
        store.set(f"kept/{rank}", kept.written())
        if rank == 0:  # alone: n ranks would read n values of all ranks
            keys = [f"kept/{each}" for each in range(world_size)]
            store.wait(keys)
            store.set("chosen", Chosen.of([Kept.read(each) for each in store.multi_get(keys)]).written())
        chosen = Chosen.read(store.get("chosen"))
        saved.found(Saved(*known) for known in chosen.saved)
        found = chosen.found
        if isinstance(found, Choice):
            self.choice, self._is_wanted = found, True
            return ""
        self._forget()
        if found == NOTHING:
            return "" if self._is_wanted else IN_WHOLE_EPOCHS
        self._given_up = found  # by all: some may be interrupted before they read this
        return found

    def _kept(self) -> Kept:
        assert self._live is not None
        told = []
        for step, states in self._states.items():
            vote = states.get(BatchStage.VOTE)
            for stage, state in states.items():  # one from another rank was taken because no rank had drawn any
                draws = state.state is not None and (vote is None or _differ(state, vote))
                told.append((step, stage, draws))
        refusal, unkept = self.refusal or self._given_up, tuple(self._unkept.items())
        return Kept(self._live.holding(), self._shards, tuple(told), self._needs_batch(), refusal, unkept)

    def _needs_batch(self) -> bool:
        trainer, hook = self._trainer, "on_train_batch_end"
        base = lookup(self._family, "callbacks.Callback")
        module = trainer.lightning_module
        users = (each for each in trainer.callbacks if not type(each).__module__.startswith(_OWN) or hook in vars(each))
        return any(_is_overridden(each, hook, base) for each in users) or (
            module is not None and overrides(hook, module, self._family)
        )

    def _forget(self) -> None:
        """Begin with nothing in memory: the objects of the ended attempt are released."""
        self._live, self._states, self._unkept, self._step = self._new(), {}, {}, None
        self._is_committed = False

    def ended(self, error: BaseException | None) -> None:
        """Note with which exception the attempt has ended."""
        self._batch = None
        if self._begun and _names_of(self._trainer.lightning_module) != self._parameters:
            self._given_up = "the parameters have other names than at the begin of the attempt"
        if isinstance(error, MemoryLost):
            self._given_up = str(error)
            if error.is_lasting:
                self._unfit = str(error)

    # In an attempt

    def set_up(self) -> None:
        """Register model and optimizers, which exist now; a chosen state is taken over later."""
        self._begun = self._searches = False
        self._is_committed = self.choice is not None and self.choice.stage is not BatchStage.ENDED
        self._step, self.refusal = None, ""
        sharding = lookup(self._family, "strategies.ModelParallelStrategy")  # not after a forward pass
        if self._live is not None and (self._is_wanted or isinstance(self._trainer.strategy, sharding)):
            self._refuse(self._unfit or self._examined(self._refusal))
            if not self.refusal and self.choice is None:
                self._resume()

    def _refuse(self, refusal: str) -> None:
        """Keep nothing on all ranks if one of them must not."""
        told: list[Any] = [None] * self._trainer.world_size
        dist.all_gather_object(told, refusal)
        self.refusal = next((each for each in told if each), "")
        self._trainer.fit_loop.epoch_loop.automatic_optimization.nvrx_keeps = not self.refusal

    def _resume(self) -> int | None:
        assert self._live is not None
        self._step = step = _Step()
        module, optimizers = self._trainer.lightning_module, list(self._trainer.optimizers)
        self._optimizer, self._parameters = optimizers[0], _names_of(module)
        self._persistent = {*_persistent_buffers(module)}
        first = self._live.resume(module, optimizers, step, shared=self._shared())
        told: list[Any] = [None] * self._trainer.world_size
        dist.all_gather_object(told, self._live.shard)
        self._shards, self._buffers = tuple(told), self._buffer_versions()
        return first

    def _shared(self) -> dict[str, Any]:
        scaler = _scaler_of(self._trainer)
        return {} if scaler is None else {"scaler": scaler}

    def take_over(self) -> None:
        """Take parameters and optimizer state over from the ended attempt.

        Raises:
            MemoryLost: when they are not what the ranks have agreed on.
        """
        assert self.choice is not None
        assert self.resumed is not None
        if self.refusal:
            raise MemoryLost(self.refusal)
        first = self._resume()
        if first != self.choice.step + 1:
            self._forget()
            raise MemoryLost(f"of step {self.choice.step}, the ranks have only {first} in memory")
        self._begun = True
        for optimizer, groups in zip(self._trainer.optimizers, self.resumed.settings, strict=False):
            for group, settings in zip(optimizer.param_groups, groups, strict=True):
                group.update(copied(settings))

    def checkpoint(self) -> dict[str, Any]:
        """Return the chosen state, for Lightning to load it as a checkpoint; ranks that lack it receive it."""
        assert self.choice is not None
        choice, rank = self.choice, self._trainer.global_rank
        states = self._states.get(choice.step, {})
        if choice.lacking:
            mine = states.get(choice.stage)
            sent: list[Any] = [None if mine is None else (_with_shown(mine), mine.settings)]
            dist.broadcast_object_list(sent, choice.source)
            if rank in choice.lacking:
                checkpoint, settings = sent[0]
                ending = BatchEnding() if choice.stage is BatchStage.VOTE else None
                states = {choice.stage: TrainerState(choice.step, checkpoint, settings, ending=ending)}
        # Until the next vote, they are what a further fault goes back to; what has followed is done again.
        self._states = {choice.step: {stage: each for stage, each in states.items() if stage <= choice.stage}}
        self.resumed = mine = states[choice.stage]
        names = ("validate_loop", "test_loop", "predict_loop")  # which the fit leaves as they are
        others = {name: getattr(self._trainer, name).state_dict() for name in names}
        given = copied(mine.checkpoint)  # what takes it over may change it
        return {**given, "loops": {**given["loops"], **others}}

    def started(self) -> None:
        """Begin to keep the state, if it is to be kept already: the attempt is about to train."""
        if self._live is None or self.refusal or self._searches or not self._is_wanted:
            return
        if self.choice is None:  # and again once Lightning has searched for a learning rate
            self._refuse(self._unfit or self._examined(self._refusal if self._step is None else self._late_refusal))
            if self.refusal:
                self._forget()
                return
            if self._step is None:
                self._resume()
            self._live.start(int(self._trainer.global_step) + 1)
            self._given_up = ""
        self._begun = True
        self._copying, self._agreed_at = 0.0, time.monotonic()

    def saved(self) -> None:
        """Note a checkpoint from which the fit can go on: one in the middle of an epoch lets it keep its state."""
        loop = self._trainer.fit_loop.epoch_loop
        if loop.batch_progress.current.ready > 0 and not loop._num_ready_batches_reached():
            self._is_wanted = True

    def searching(self, searches: bool) -> None:
        """Note whether Lightning searches for a learning rate: its steps are taken back, and none of them is kept."""
        self._searches = searches

    def batch_begins(self, batch: Any) -> None:
        """Keep a batch for the hooks at its end."""
        if not self._begun:
            self.started()
        if self._begun and not self.refusal:
            self._batch = batch

    def reached(self, stage: BatchStage, capture: Callable[[], TrainerState]) -> None:
        """Copy the state of the Trainer, if the batch that has ended was that of an optimizer step."""
        if not self._is_committed:
            return
        self._is_committed, self._batch = stage is not BatchStage.ENDED, None
        try:
            state = self._measured(capture)
        except Exception as error:  # boundary: the state of a user's object
            self._cannot_keep(max(self._states), stage, error)
            return
        self._failed.discard(stage)
        if self._buffers != self._buffer_versions():
            self._unkept[state.step] = "a persistent buffer was changed after the optimizer step"
        self._states.setdefault(state.step, {})[stage] = state

    def checked(self, states: dict[str, Any]) -> dict[str, Any]:
        """Return states of the user's objects, by name, that are to be copied at each step.

        Raises:
            MemoryLost: if they are too large for that.
        """
        return checked(states, by_default=self.by_default)

    @contextmanager
    def committing(self, optimizer: Any, capture: Callable[[BatchEnding], TrainerState]) -> Iterator[None]:
        """Return a context in which the step of an optimizer is preceded by a vote of all ranks."""
        if self._live is None or self.refusal or self._searches or not self._begun:
            yield
            return

        def commit(advance: Callable[[], Any]) -> Any:
            assert self._live is not None
            assert self._step is not None
            step, newest = int(self._trainer.global_step) + 1, max(self._states, default=0)
            kept = {}
            self._unkept = {at: reason for at, reason in self._unkept.items() if at == newest}
            ending = BatchEnding(self._batch, _outputs(self._trainer))
            if optimizer is not self._optimizer:
                self._unfit = "the optimizer is another one than at the begin of the attempt"
            if step % AGREED_EVERY == 0 and self._agree_to_end(step):
                return advance()
            try:
                kept = {BatchStage.VOTE: self._measured(lambda: capture(ending))}
                self._failed.discard(BatchStage.VOTE)
            except Exception as error:  # boundary: the state of a user's object; the other ranks vote
                self._cannot_keep(step, BatchStage.VOTE, error)
            if self._unfit:
                self._unkept[step] = self._unfit
            self._states = {newest: self._states.get(newest, {}), step: kept}
            self._buffers = self._buffer_versions()
            self._step.advance = advance
            self._live.commit(step, watched=False)
            self._states, self._is_committed = {step: kept}, True  # nobody goes back behind a vote that is passed
            self._unkept.pop(newest, None)
            return self._step.result

        scaler = _scaler_of(self._trainer)
        replaced = _voting(optimizer, commit) if scaler is None else _voting_scaler(scaler, commit)
        owner = optimizer if scaler is None else scaler
        before = {name: vars(owner)[name] for name in replaced if name in vars(owner)}
        vars(owner).update(replaced)
        try:
            yield
        finally:
            for name in replaced:
                vars(owner).pop(name, None)
            vars(owner).update(before)

    def _measured(self, capture: Callable[[], TrainerState]) -> TrainerState:
        begun = time.thread_time()
        try:
            return capture()
        finally:
            self._copying += time.thread_time() - begun

    def _agree_to_end(self, step: int) -> bool:
        """Keep nothing any more on all ranks once one cannot use its states, or where the copies cost too much.

        Args:
            step: the step that is about to be done.

        Returns:
            Whether they do.
        """
        now = time.monotonic()
        copying, lasts = self._copying / AGREED_EVERY, (now - self._agreed_at) / AGREED_EVERY
        self._copying, self._agreed_at = 0.0, now
        if self.by_default and copying > max(MAX_COPYING, MAX_SHARE * lasts):
            text = f"the copies of the Trainer's state took {1e3 * copying:.1f} of {1e3 * lasts:.1f} ms of a step"
            self._unfit = self._unfit or f"{text} up to step {step}"
        unfit = torch.tensor(float(bool(self._unfit)), device=self._trainer.strategy.root_device)
        dist.all_reduce(unfit, dist.ReduceOp.MAX)
        if unfit:
            self._refuse(self._unfit)
            self._unfit = self.refusal
            self._forget()
        return bool(unfit)

    def _cannot_keep(self, step: int, stage: BatchStage, error: Exception) -> None:
        """Note that a state cannot be copied; where it fails twice in a row, no attempt keeps anything any more.

        Once may be an exception that came from elsewhere, as that of a timer.
        """
        is_lasting = stage in self._failed or (isinstance(error, MemoryLost) and error.is_lasting)
        text = str(error) if isinstance(error, MemoryLost) else f"{type(error).__name__}: {error}"
        reason = f"the state of the Trainer cannot be copied: {text}"
        when = "a restart" if is_lasting else "a restart in this step"
        is_told = self.by_default or self._unfit  # the restart says it, or it was said
        log.log(logging.DEBUG if is_told else logging.WARNING, "%s; %s goes on from a checkpoint", reason, when)
        self._unkept[step], self._unfit = reason, reason if is_lasting else self._unfit
        self._failed.add(stage)

    def _buffer_versions(self) -> dict[str, tuple[int, int]]:
        """Return the identity and the version of each buffer that `state_dict` has."""
        named = self._trainer.lightning_module.named_buffers()
        return {name: (id(each), each._version) for name, each in named if name in self._persistent}

    # What cannot be kept

    def _examined(self, refusal: Callable[[], str]) -> str:
        """Return why a fit keeps nothing in memory; "" if it does."""
        try:
            return refusal()
        except Exception as error:  # boundary: the user's objects, of any kind
            if not self.by_default:
                raise
            return f"it is not known what the fit has: {type(error).__name__}: {error}"

    def _late_refusal(self) -> str:
        """Return what hooks that begin the fit may have changed."""
        if any(map(_has_own_step, self._trainer.optimizers)):
            return _REPLACED
        return _HOOKED if _have_hooks(self._trainer.optimizers) else ""

    def _refusal(self) -> str:
        trainer, strategy = self._trainer, self._trainer.strategy
        module, optimizers = trainer.lightning_module, trainer.optimizers
        ddp, sharding = (lookup(self._family, f"strategies.{name}Strategy") for name in ("DDP", "ModelParallel"))
        buffers = sum(each.numel() * each.element_size() for each in _persistent_buffers(module).values())
        scales = isinstance(strategy, sharding) and _scaler_of(trainer) is not None
        reasons = {
            f"it is not known what {type(strategy).__name__} does at a step": not isinstance(strategy, ddp | sharding),
            "with manual optimization, a batch may have several steps": not module.automatic_optimization,
            "training_step fetches its batches itself": "dataloader_iter"
            in inspect.signature(module.training_step).parameters,
            f"the fit has {len(optimizers)} optimizers": len(optimizers) != 1,
            _SEVERAL: any(isinstance(each, torch.optim.LBFGS) for each in optimizers),
            "the communication hook of DDP has a state": getattr(strategy, "_ddp_comm_state", None) is not None,
            "with sharded parameters, the step of a GradScaler waits for other ranks": scales,
            "it has not run on a GPU": strategy.root_device.type != "cpu",
            "an optimizer that is not of torch.optim may change the weights before it evaluates the batch": any(
                not type(each).__module__.startswith("torch.optim") for each in optimizers
            ),
            "optimizer_step is the module's own": overrides("optimizer_step", module, self._family),
            "state_dict is the module's own": overrides("state_dict", module, self._family),
            f"the persistent buffers have more than {MAX_BUFFERS >> 20} MB": buffers > MAX_BUFFERS,
        }
        found = next((reason for reason, applies in reasons.items() if applies), "")
        found = found or self._late_refusal() or _other_state(module) or self._refused_hook()
        return found or ("" if self.choice is not None else self._refused_objects())  # chosen: what it has taken

    def _refused_objects(self) -> str:
        """Return what `resume` would raise: in the midst of it, other ranks would wait for this one."""
        module, optimizers = self._trainer.lightning_module, self._trainer.optimizers
        try:
            check_shared(Objects.of(module, optimizers, _Step(), shared=self._shared(), local={}, averages=()))
        except (TypeError, ValueError, RuntimeError) as error:
            if type(error) not in (TypeError, ValueError, RuntimeError):
                raise  # it comes from elsewhere
            return str(error)
        return ""

    def _refused_hook(self) -> str:
        trainer, hook = self._trainer, "on_load_checkpoint"
        base, averaging = (
            lookup(self._family, f"callbacks.{name}") for name in ("Callback", "StochasticWeightAveraging")
        )
        for callback in trainer.callbacks:
            own = type(callback).__module__.startswith("nvrx_lightning.")
            if isinstance(callback, averaging) or (not own and _is_overridden(callback, hook, base)):
                return f"{type(callback).__qualname__} has a state that is not copied at each step"
        if overrides(hook, trainer.lightning_module, self._family):
            return f"{type(trainer.lightning_module).__qualname__}.{hook} is called for checkpoints only"
        return ""


def _failure(restart: RestartRecord) -> Failure | None:
    """Return how the attempt has ended, as the limit on restarts without progress tells failures apart."""
    cause = restart.cause
    if cause is None or cause.initial_rank in restart.lost:
        return None
    return cause.error_type or cause.interruption, cause.origin, cause.raised_at


class _Step:
    """The step of an attempt's optimizer; it refers to no module and to no later attempt."""

    def __init__(self) -> None:
        self.advance: Callable[[], Any] | None = None
        self.result: Any = None

    def __call__(self) -> None:
        assert self.advance is not None
        self.result = self.advance()


def _voting(optimizer: Any, commit: Callable[[Callable[[], Any]], Any]) -> dict[str, Any]:
    """Return a step that evaluates its closure, votes, and then steps."""
    step = optimizer.step

    def voting(closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        if closure is None:
            return commit(lambda: step(**kwargs))
        with torch.enable_grad():
            loss = closure()
        return commit(lambda: step(closure=_once(loss), **kwargs))

    return {"step": voting}


def _once(loss: Any) -> Callable[[], Any]:
    """Return a closure that was evaluated."""
    asked = iter((True,))

    def closure() -> Any:
        if not next(asked, False):
            raise MemoryLost(_SEVERAL, is_lasting=True)
        return loss

    return closure


def _voting_scaler(scaler: Any, commit: Callable[[Callable[[], Any]], Any]) -> dict[str, Any]:
    """Return a step of a scaler that votes first, and updates the scale with the step: it may leave the step out."""
    step, update = scaler.step, scaler.update

    def voting(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        def advance() -> Any:
            result = step(optimizer, *args, **kwargs)
            update()
            return result

        return commit(advance)

    return {"step": voting, "update": lambda *args: None}


def _is_overridden(callback: Any, hook: str, base: Any) -> bool:
    """Return whether a callback has a hook of its own, in its class or, as a `LambdaCallback`, in itself."""
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(base, hook)


def _persistent_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that are part of a state, by name; a `state_dict` of the module's own may have others."""
    volatile = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules() for name in getattr(part, "_non_persistent_buffers_set", ())
    }  # fmt: skip
    return {name: each for name, each in module.named_buffers() if name not in volatile}


def _names_of(module: torch.nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def _have_hooks(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Return whether hooks are to run before a step, of one of the optimizers or of all that there are.

    The attribute `torch.optim.optimizer` is no module.
    """
    of_all = vars(sys.modules[torch.optim.Optimizer.__module__]).get("_global_optimizer_pre_hooks")
    return bool(of_all) or any(each._optimizer_step_pre_hooks for each in optimizers)


def _has_own_step(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the step was replaced in the optimizer itself, and not by a scheduler that counts steps."""
    step = vars(optimizer).get("step")
    return step is not None and not getattr(step, "_wrapped_by_lr_sched", False)


def _other_state(module: torch.nn.Module) -> str:
    """Return what the state of a module has besides parameters and buffers; metrics are copied with the Trainer."""
    own = {id(each) for each in (*module.parameters(), *module.buffers())}
    metrics = tuple(f"{name}." for name, each in module.named_modules() if isinstance(each, Metric))
    state = module.state_dict(keep_vars=True).items()
    found = next((name for name, each in state if id(each) not in own and not name.startswith(metrics)), "")
    return f"the state of the module has {found}, which is neither a parameter nor a buffer" if found else ""


def _scaler_of(trainer: Any) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)


def _with_shown(state: TrainerState) -> dict[str, Any]:
    """Return the checkpoint of a state with the metrics that the Trainer shows, for a rank that has none itself."""
    shown = {} if state.state is None else state.state.metrics.shown()
    return {**state.checkpoint, "nvrx": {**state.checkpoint["nvrx"], **shown}}


def _outputs(trainer: Any) -> Any:
    """Return what `training_step` has returned, as the hooks at the end of the batch get it."""
    optimization = trainer.fit_loop.epoch_loop.automatic_optimization
    result, optimization.nvrx_closure = optimization.nvrx_closure._result, None
    return {} if result is None or result.loss is None else result.asdict()


def _differ(one: TrainerState, other: TrainerState) -> bool:
    if one.state is None or other.state is None:
        return True
    a, b = one.state.random, other.state.random
    return not torch.equal(a.torch_cpu, b.torch_cpu) or a.python != b.python or str(a.numpy) != str(b.numpy)


def checked(states: dict[str, Any], *, by_default: bool = False) -> dict[str, Any]:
    """Return states that are to be copied at each step.

    Args:
        states: by the names of their owners.
        by_default: nobody has asked for the copies.

    Raises:
        MemoryLost: if they are too large for that, or, where nobody has asked for it, hold other objects than tensors,
            arrays, numbers, texts and containers of these.
    """
    for name, state in states.items() if by_default else ():
        for number, each in enumerate(_items_of(state)):
            if number == MAX_ITEMS_BY_DEFAULT:
                raise MemoryLost(f"that of {name} has more than {MAX_ITEMS_BY_DEFAULT} items", is_lasting=True)
            if not isinstance(each, _COPIED) and not isinstance(getattr(each, "nbytes", None), int):
                kind = f"{type(each).__module__}.{type(each).__qualname__}"
                raise MemoryLost(f"that of {name} has an object of {kind}", is_lasting=True)
    limit = MAX_STATES_BY_DEFAULT if by_default else MAX_STATES
    sizes = {name: _size_of(state) for name, state in states.items()}
    if sum(sizes.values()) > limit:
        name, size = max(sizes.items(), key=lambda each: each[1])
        others = f", and all have {sum(sizes.values()) >> 20}" if size <= limit else ""
        raise MemoryLost(f"that of {name} has {size >> 20} MB{others}, more than {limit >> 20}", is_lasting=True)
    return states


def _items_of(value: Any) -> Iterator[object]:
    """Yield what is in the containers of a state."""
    if isinstance(value, dict):
        for each in itertools.chain(value.keys(), value.values()):
            yield from _items_of(each)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for each in value:
            yield from _items_of(each)
    else:
        yield value


def _size_of(value: Any) -> int:
    """Return the bytes of a state, roughly: of tensors and arrays, and of what containers of Python's have."""
    if isinstance(size := getattr(value, "nbytes", None), int):
        return size
    if isinstance(value, dict):
        return 16 * len(value) + sum(map(_size_of, value.values()))
    if isinstance(value, list | tuple | set | frozenset | deque):
        return 8 * len(value) + sum(map(_size_of, value))
    return len(value) if isinstance(value, str | bytes | bytearray) else 0


def copied(value: Any) -> Any:
    """Return a copy of a state: of tensors, and of the containers in it."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {key: copied(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return value if isinstance(value, _PLAIN) else copy.deepcopy(value)
