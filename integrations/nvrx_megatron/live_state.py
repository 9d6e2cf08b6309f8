"""A training on megatron-core that goes on from the memory of its ranks after a fault: no step is done again.

`nvrx_core.inprocess.LiveState` keeps parameters and optimizer state; a vote of all ranks precedes each step of the
optimizer. This adds what is Megatron's: optimizers in layers, whose step may end with a gather of parameters, random
numbers per model parallel rank, and the counters of the training loop.
"""

from __future__ import annotations

import base64
import copy
import itertools
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from nvrx_core.inprocess.live.memory import MemoryLost
from nvrx_core.inprocess.live.objects import Objects
from nvrx_core.inprocess.live_state import LiveState
from nvrx_core.inprocess.wrap import current_call
from nvrx_megatron import internals
from nvrx_megatron.arguments import inprocess_arguments
from nvrx_megatron.live_refusals import refused_objects

__all__ = ["LoopCounters", "MegatronLiveState"]

log = logging.getLogger("nvrx_megatron")
MAX_REPLICATING: Final = 128
"""Ranks whose votes carry the local state of all: a lost rank of a larger job means a checkpoint."""


class LoopCounters(Protocol):
    """What a training loop counts, the same on all ranks, such as its iteration and the samples it has consumed."""

    def state_dict(self) -> dict[str, Any]:
        """Return what they are now, at the beginning of a step."""

    def after_step(self, updated: bool) -> dict[str, Any]:
        """Return what they will be after this step; those that the loop may change besides are left out.

        Args:
            updated: whether the parameters are changed; False for a step that is left out, as for an overflow.
        """

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Take over what `after_step` or `state_dict` has returned."""


class _NoCounters:
    """The counters of a loop that counts nothing but its steps."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def after_step(self, updated: bool) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class MegatronLiveState:
    """The state of a training on megatron-core, kept in the ranks' memory. Make one outside of the wrapped function.

    Args:
        args: the arguments of Megatron-LM's parser, or of one with `add_arguments`; with `--nvrx-live-state off`,
            nothing is kept, and `resume` returns None, as outside of a wrapped function without `on`.

    Attributes:
        is_on: whether the arguments allow it.
        refusal: why nothing is kept; "" if it is, or if it is off.
        is_behind_step: whether the last `resume` has gone back to the vote of the last step: what the loop does behind
            a step, such as a save, was not done on all ranks, and is to be done before the next step.
    """

    def __init__(self, args: Any) -> None:
        self._asked = inprocess_arguments(args).live_state
        self.is_on = self._asked != "off"
        self.refusal, self.is_behind_step = "", False
        self._live: LiveState | None = None
        self._unfit = ""
        self._local: _LocalState | None = None
        self._counters: LoopCounters = _NoCounters()
        self._advance = _Advance()
        self._gathers: tuple[Any, ...] = ()
        self._step: int | None = None
        self._done = -1
        self._has_voted = self._begun = False
        self._rng: _RandomNumbers | None = None
        self._beginning: _Beginning | None = None
        self._said: set[str] = set()

    def resume(
        self,
        model: Sequence[torch.nn.Module],
        optimizer: Any,
        counters: LoopCounters | None = None,
        *,
        refused: str = "",
        distrusted: str = "",
    ) -> int | None:
        """Bring a new model and its optimizer to the newest step in memory; all ranks call it.

        Call it once both are made, instead of loading a checkpoint. From here on, the optimizer's `step` begins with a
        vote of all ranks.

        Args:
            model: the chunks of the model, as the optimizer was made of.
            optimizer: that of `get_megatron_optimizer`.
            counters: of the training loop.
            refused: why this training cannot be kept in memory; "" if it can.
            distrusted: why this resume does not use what is in memory; "" if it may. What follows is kept again.

        Returns:
            The step to go on with; None when there is none in memory: load a checkpoint, then call `start`.

        Raises:
            MemoryLost: when what is in memory turns out not to be enough.
        """
        self._begun, self._step, self._rng = False, None, None
        if not self.is_on or (self._asked == "auto" and current_call() is None):
            return None
        self._counters = counters or _NoCounters()
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, (self._unfit or refused or _refused(model, optimizer), distrusted))
        self.refusal = next((each for each, _ in told if each), "")
        if self.refusal:
            self._forget()
            if self.refusal not in self._said and dist.get_rank() == 0:
                self._said.add(self.refusal)
                log.warning("--nvrx-live-state: %s; restarts go on from checkpoints", self.refusal)
            return None
        if reason := next((each for _, each in told if each), ""):
            self._forget()
            if dist.get_rank() == 0:
                log.warning("--nvrx-live-state: %s: this restart goes on from a checkpoint", reason)
        return self._resume(model, optimizer)

    def give_up(self, reason: str, *, alone: bool = True) -> None:
        """Keep nothing from the next restart on; until then, all ranks vote as before.

        Args:
            reason: why.
            alone: this rank may be the only one that calls it, which is enough; False: all do.
        """
        if not self._unfit:
            self._unfit = reason
            self._said.add(reason)
            if alone or dist.get_rank() == 0:
                log.warning("--nvrx-live-state: %s; restarts go on from checkpoints", reason)

    def _resume(self, model: Sequence[torch.nn.Module], optimizer: Any) -> int | None:
        if self._live is None:
            self._live = LiveState(schedules_advance=False)
        self._live.replicate = dist.get_world_size() <= MAX_REPLICATING
        layers = internals.chained_optimizers(optimizer)
        parameters = _parameters_of(model)
        distributed = internals.is_distributed(layers)
        self._gathers = internals.parameter_gathers(model) if distributed else ()
        self._advance, self._local = _Advance(), _LocalState(self._counters, layers)
        first = self._live.resume(
            parameters, [each.optimizer for each in layers], self._advance, local={"megatron": self._local},
            averages=[_Tensors(layers, parameters)], part=internals.part_of_model(distributed), copies=True,
        )  # fmt: skip
        self._vote_in(optimizer, layers)
        if first is None:
            self._beginning = None
            return None
        self._done = first - 1
        self._take_over(first - 1)
        for each in self._gathers:
            each.start_param_sync(force_sync=True)
        self._begun = True
        return first

    def _take_over(self, step: int) -> None:
        """Choose the counters and random numbers: as at the beginning of the next step, where all ranks were there."""
        assert self._local is not None
        call = current_call()
        mine, here = self._beginning, (step, dist.get_rank())
        if mine is not None and (mine.step, mine.rank) != here:
            mine = None
        told: list[Any] = [None] * dist.get_world_size()
        facts = None if mine is None else (mine.iteration, mine.counters, mine.has_drawn)
        dist.all_gather_object(told, (self._local.is_loaded, facts))
        if not all(loaded for loaded, _ in told):
            self._lose(f"no rank has the random numbers of a lost rank at step {step}")
        newest = max((facts[0] for _, facts in told if facts is not None), default=None)
        reached = [facts for _, facts in told if facts is not None and facts[0] == newest]
        # Else all are as at the vote of the step: who was not there has no random numbers of a later moment.
        everywhere = len(reached) == len(told)
        self._rng = _RandomNumbers.now()
        self._beginning, self.is_behind_step = None, self._local.is_behind_step
        if everywhere or (reached and not any(facts[2] for facts in reached)):
            counters = mine.counters if everywhere and mine is not None else reached[0][1]
            self._counters.load_state_dict(copy.deepcopy(counters))
            self.is_behind_step = False
            has_drawn = everywhere and mine is not None and mine.has_drawn
            if everywhere and mine is not None:
                self._rng = mine.rng
            self._beginning = _Beginning(*here, 0 if call is None else call.iteration, counters, self._rng, has_drawn)

    def _lose(self, reason: str) -> None:
        self._forget()
        raise MemoryLost(f"--nvrx-live-state: {reason}; the next restart goes on from a checkpoint")

    def _forget(self) -> None:
        self._live = self._local = self._beginning = self._rng = None
        self._begun, self._advance, self._gathers = False, _Advance(), ()

    def start(self, step: int) -> None:
        """Begin with `step`: the objects of the last `resume` are as before it, from a checkpoint or fresh."""
        self.is_behind_step = False
        if self._live is None:
            return
        self._live.start(step)
        self._done = step - 1
        if self._live.replicas_differ:  # all ranks know
            self._forget()
            self.give_up("data parallel ranks begin with different parameters", alone=False)
        else:
            self._begun = True

    def begin(self, step: int) -> None:
        """Begin a step, which the next `step` of the optimizer commits; call it before the data of the step are read.

        The first call after a `resume` puts the random numbers back.
        """
        if self._live is None or not self._begun:
            return
        assert self._local is not None
        self._has_voted, self._step, self.is_behind_step = False, step, False
        self.restore_random_numbers()
        predicted, self._local.expected = self._local.expected, None
        try:
            counters = copy.deepcopy(self._counters.state_dict())
        except Exception as error:  # boundary: counters of the user, and Megatron's
            self._beginning = None
            self.give_up(_not_copied(error))
            return
        different = [name for name, each in (predicted or {}).items() if counters.get(name) != each]
        if different:
            self.give_up(f"the training loop counts {', '.join(different)} otherwise than expected")
        call, rng, voted = current_call(), _RandomNumbers.now(), self._local.rng
        self._beginning = _Beginning(
            step - 1, dist.get_rank(), 0 if call is None else call.iteration, counters, rng,
            has_drawn=voted is None or not rng.equals(voted),
        )  # fmt: skip

    def restore_random_numbers(self) -> None:
        """Put the random numbers back after a `resume`, for what the loop does before its first step."""
        if self._rng is not None:
            self._rng.restore()
            self._rng = None

    def _vote_in(self, optimizer: Any, layers: Sequence[Any]) -> None:
        """Let a vote of all ranks precede what the optimizer changes with gradients that are ready."""
        step, with_ready_grads, gathers, advance = (
            optimizer.step, optimizer.step_with_ready_grads, self._gathers, self._advance,
        )  # fmt: skip

        def voting_with_ready_grads() -> Any:
            if not self._begun or self._advance is not advance:
                return with_ready_grads()
            results: list[Any] = []
            deferred: list[Callable[[], object]] = []
            calls = itertools.count()

            def alone() -> None:
                with _without_other_ranks(layers, gathers, deferred, again=next(calls) > 0):
                    results.append(with_ready_grads())

            self._commit(alone, updated=True)
            for each in deferred:  # all ranks have passed the vote; after a fault, the gather is done anew
                each()
            return results[0]

        def voting() -> Any:
            result = step()
            if self._begun and not self._has_voted and self._advance is advance:
                self._commit(_nothing, updated=False)
            return result

        optimizer.step_with_ready_grads, optimizer.step = voting_with_ready_grads, voting

    def _commit(self, advance: Callable[[], object], *, updated: bool) -> None:
        assert self._live is not None
        assert self._local is not None
        self._has_voted = True
        if self._step is None or self._step <= self._done:  # on all ranks: a step has collectives
            self._forget()
            self.give_up("the optimizer has stepped without begin() of a next step before it", alone=False)
            advance()
            return
        self._advance.body, self._local.at_vote = advance, updated
        try:
            self._live.commit(self._step, watched=False)
        finally:
            self._local.at_vote = None
        self._done, self._beginning, self._step = self._step, None, None
        if self._local.failure:
            self.give_up(self._local.failure)


def _refused(model: Sequence[torch.nn.Module], optimizer: Any) -> str:
    """Return why the objects cannot be kept; "" if they can. `LiveState.resume` would raise it on some ranks alone."""
    if reason := refused_objects(model, optimizer):
        return reason
    layers, parameters = internals.chained_optimizers(optimizer), _parameters_of(model)
    try:
        Objects.of(
            parameters, [each.optimizer for each in layers], _nothing, shared={}, local={},
            averages=[_Tensors(layers, parameters)],
            part=internals.part_of_model(internals.is_distributed(layers)), copies=True,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        return str(error)
    except Exception as error:  # boundary: a module of the user, whose state_dict raises
        return f"the model cannot be examined: {type(error).__name__}: {error}"
    return ""


def _parameters_of(model: Sequence[torch.nn.Module]) -> torch.nn.Module:
    return torch.nn.ModuleList(each.module for each in model)  # type: ignore[misc]


def _not_copied(error: Exception) -> str:
    return f"the state of the training loop cannot be copied: {type(error).__name__}: {error}"


def _nothing() -> None:
    """Change nothing: the step is left out."""


class _Advance:
    """The step of an iteration's optimizer; it refers to no later iteration."""

    def __init__(self) -> None:
        self.body: Callable[[], object] = _nothing

    def __call__(self) -> None:
        self.body()


class _Tensors(torch.nn.Module):
    """The parameters that optimizers step and the model does not have: copies in another precision, and shards."""

    def __init__(self, layers: Sequence[Any], model: torch.nn.Module) -> None:
        super().__init__()
        known = {id(each) for each in model.parameters()}
        groups = (group for layer in layers for group in layer.optimizer.param_groups)
        for number, each in enumerate(parameter for group in groups for parameter in group["params"]):
            if id(each) not in known:
                self.register_buffer(str(number), each)


@contextmanager
def _without_other_ranks(
    layers: Sequence[Any], gathers: Sequence[Any], deferred: list[Callable[[], object]], *, again: bool
) -> Iterator[None]:
    """Return a context in which an optimizer waits for no other rank: it appends its gathers to `deferred`.

    Its timers may have a barrier, and, `again`, may have been left running.
    """

    def later(gather: Any) -> Callable[..., None]:
        start = gather.start_param_sync

        def start_later(*args: Any, **kwargs: Any) -> None:
            deferred.append(lambda: start(*args, **kwargs))

        return start_later

    with ExitStack() as stack:
        for config in {id(each.config): each.config for each in layers}.values():
            stack.callback(vars(config).update, timers=config.timers, barrier_with_L1_time=config.barrier_with_L1_time)
            config.timers, config.barrier_with_L1_time = None if again else config.timers, False
        for gather in gathers:
            stack.callback(vars(gather).pop, "start_param_sync", None)
            gather.start_param_sync = later(gather)
        yield


@dataclass(frozen=True)
class _RandomNumbers:
    """The states of all generators of this rank."""

    python: Any
    numpy: Any
    torch_cpu: torch.Tensor
    device: torch.Tensor | None
    tracker: Mapping[str, torch.Tensor]

    @classmethod
    def now(cls) -> _RandomNumbers:
        import numpy

        device = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        tracker = {name: each.clone() for name, each in internals.rng_tracker().get_states().items()}
        return cls(random.getstate(), numpy.random.get_state(), torch.get_rng_state(), device, tracker)

    def restore(self) -> None:
        import numpy

        random.setstate(self.python)
        numpy.random.set_state(self.numpy)
        torch.set_rng_state(self.torch_cpu)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device)
        internals.rng_tracker().set_states({name: each.clone() for name, each in self.tracker.items()})

    def equals(self, other: _RandomNumbers) -> bool:
        tensors = [(self.torch_cpu, other.torch_cpu)]
        tensors += [(each, other.tracker[name]) for name, each in self.tracker.items()]
        if self.device is not None and other.device is not None:
            tensors.append((self.device, other.device))
        (kind, words, *rest), (kind_then, words_then, *rest_then) = self.numpy, other.numpy
        same = (kind, rest) == (kind_then, rest_then) and bool((words == words_then).all())
        return self.python == other.python and same and all(torch.equal(*each) for each in tensors)


@dataclass(frozen=True)
class _Beginning:
    """What a rank has at the beginning of a step.

    Attributes:
        step: that was done last.
        rank: of this process then.
        iteration: of the wrapper, in which the rank was there.
        counters: of the training loop.
        rng: random numbers.
        has_drawn: whether they are others than at the vote of the step that was done last.
    """

    step: int
    rank: int
    iteration: int
    counters: dict[str, Any]
    rng: _RandomNumbers
    has_drawn: bool


def _text(state: torch.Tensor) -> str:
    """Return the bytes of a generator's state as text, which is encoded in a fraction of the time of a tensor."""
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


class _LocalState:
    """What a vote carries of this rank besides parameters and optimizer state.

    Attributes:
        at_vote: whether the step of the vote changes parameters; None outside of votes.
        expected: the counters after the step.
        rng: random numbers at the last vote.
        is_behind_step: whether that vote was one of a step, and not of a start.
        is_loaded: whether a state was taken over.
        failure: why the state could not be copied; "" if it was.
    """

    def __init__(self, counters: LoopCounters, layers: Sequence[Any]) -> None:
        self._counters, self._scalers = counters, internals.grad_scalers(layers)
        self.at_vote: bool | None = None
        self.expected: dict[str, Any] | None = None
        self.rng: _RandomNumbers | None = None
        self.is_behind_step = self.is_loaded = False
        self.failure = ""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy; where that fails, the reason: the other ranks wait in the vote."""
        try:
            if self.at_vote is None:
                counters = self._counters.state_dict()
            else:
                self.expected = self._counters.after_step(self.at_vote)
                counters = {**self._counters.state_dict(), **self.expected}
                self.is_behind_step = True
            self.rng = _RandomNumbers.now()
            return {
                "counters": copy.deepcopy(counters),
                "is_behind_step": self.is_behind_step,
                "scalers": [copy.deepcopy(each.state_dict()) for each in self._scalers],
                "tracker": {name: _text(each) for name, each in self.rng.tracker.items()},
            }
        except Exception as error:  # boundary: counters of the user, and Megatron's
            self.failure = _not_copied(error)
            return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a state over; an empty one could not be copied."""
        if state:
            self._counters.load_state_dict(state["counters"])
            self.is_behind_step = state["is_behind_step"]
            for scaler, each in zip(self._scalers, state["scalers"], strict=True):
                scaler.load_state_dict(each)
            internals.rng_tracker().set_states({name: _state(each) for name, each in state["tracker"].items()})
            self.rng = _RandomNumbers.now()
            self.is_loaded = True
