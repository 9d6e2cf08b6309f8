"""Training state that survives a restart in memory: a fault costs no step.

The step of the training is a function, which `LiveState.commit` calls after a vote of all ranks; `LiveState.resume`
puts what the ranks have in memory into the objects of the next iteration. The protocol is in
`nvrx_core.inprocess.live.memory`.
"""

from __future__ import annotations

import functools
import logging
import operator
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist

from nvrx_core.errors import UsageError
from nvrx_core.fault.exceptions import type_name
from nvrx_core.flow import operation, run
from nvrx_core.inprocess.groups.transfers import Movement, Transfers
from nvrx_core.inprocess.live import objects as tensors, row as rows
from nvrx_core.inprocess.live.memory import Holding, Incomplete, Recovery, Shard, Stamp
from nvrx_core.inprocess.live.objects import Left, Objects
from nvrx_core.inprocess.live.row import Stateful
from nvrx_core.inprocess.live.training import LiveTraining, StepRepeatedError
from nvrx_core.inprocess.restart_record import last_restart
from nvrx_core.inprocess.wrap import CallWrapper, current_call
from nvrx_core.process.torch_calls import counts_of_groups
from nvrx_core.values import value

__all__ = ["LiveState"]

log = logging.getLogger("nvrx_core.inprocess")
_PATIENCE: Final = 2.0
"""Soft timeouts in which some rank has to move a part of what is transferred: a rank may be busy between transfers."""
_CPU: Final = torch.device("cpu")
_ROOM: Final = 16384
"""Bytes of a row, until one is longer."""


class LiveState:
    """The state of a training, kept in the ranks' memory. Make one outside of the wrapped function.

    It belongs to a call of the wrapped function: the next call begins with nothing in memory. Outside of a wrapped
    function, also without a process group, `resume` returns None, `commit` calls the step, and nothing is kept. The
    first one of a process takes half a second: torch loads what optimizers need, which a reserve would load otherwise
    while the others wait for it.

    Args:
        replicate: each vote carries the local state of all ranks to all ranks, some 10 KB each: who takes the place of
            a lost rank goes on with its random numbers and its position in the data. False: with fresh ones.
        schedules_advance: schedulers step in `advance`. False: they step after the commit, and the caller takes them
            and what else follows it back to it, to do it again; the settings that they have put into the optimizers'
            groups go back to it in `resume`.
        compare_replicas: `resume` compares the parameters of ranks that have the same shard, by a hash, as `start`
            always does: a line names the first one that differs. The same on all ranks.
    """

    def __init__(
        self, *, replicate: bool = True, schedules_advance: bool = True, compare_replicas: bool = False
    ) -> None:
        self._compares, self._differs = compare_replicas, False
        self.replicate, self._schedules_advance = replicate, schedules_advance
        self._training: LiveTraining[Objects, torch.Tensor, Sequence[torch.Tensor]] = LiveTraining()
        self._call: object = None
        self._made_in = None if (call := current_call()) is None else weakref.ref(call)
        self._ports: _Ports | None = None
        self._versions: tensors.Versions | None = None
        self._settled: _Settled | None = None
        self._warned: set[str] = set()
        weight = torch.nn.Parameter(torch.zeros(1))
        weight.grad = torch.zeros(1)
        torch.optim.AdamW([weight]).step()

    def resume(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        advance: Callable[[], object],
        *,
        shared: Mapping[str, Stateful] | None = None,
        local: Mapping[str, Stateful] | None = None,
        averages: Iterable[torch.nn.Module] = (),
        part: Mapping[str, tuple[int, int]] | None = None,
        copies: bool = False,
    ) -> int | None:
        """Bring new objects to the newest step that the ranks have in memory; all ranks call it.

        Call it on the new process group, before `DistributedDataParallel` and after `fully_shard`.

        Args:
            model: the module.
            optimizer: of its parameters, or several.
            advance: does one step, with gradients that are complete, without any other rank: `optimizer.step()` and
                what belongs to it. It is called by `commit`, and, after a fault, once more by who was interrupted in
                the commit that other ranks have passed.
            shared: objects with `state_dict` that only `advance` changes, such as a scheduler or a `GradScaler`.
            local: objects with `state_dict` that change anywhere, such as a sampler; copied at each commit.
            averages: modules whose tensors only `advance` changes, such as those of an average of the weights.
            part: which part of the model this rank has where no `DTensor` says it, as with tensor parallelism by hand:
                for each dimension, by a name for the log, the number of the part and how many there are.
            copies: new objects get copies of the old tensors: for parameters that are views of other tensors.

        Returns:
            The step to go on with; None when it is not whole in memory, as at the first start: load a checkpoint, then
            call `start`.

        Raises:
            TypeError, ValueError: for what cannot be kept in memory.
            RuntimeError: without a process group in a wrapped function, when it has returned a step in this iteration
                already, or after a forward pass of fully_shard.
        """
        optimizers = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else tuple(optimizer)
        new = Objects.of(
            model, optimizers, advance, shared=shared or {}, local=local or {}, averages=averages, part=part,
            copies=copies,
        )  # fmt: skip
        call = current_call()
        here = self._ports is not None and self._ports.call is call and self._ports.has_resumed
        if here and call is not None and self._training.memory.version is not None:
            raise RuntimeError("resume() twice in an iteration: give it all models as one module")
        mine = None if call is None else call._handles
        if mine is None or mine is not self._call:
            self._training, self._call = LiveTraining(), mine
            self._ports = None
        if call is not None:
            call._handles.votes.register(self)
        left, failed = (None, None) if self._ports is None else (self._ports.left, self._ports.failed)
        if left is not None:
            self._notice_changes(left, new)
            if not self._schedules_advance:
                left.restore_settings()
        communicated = self._ports is not None and self._ports.communicates
        repeats = _repeats(self._ports, call)
        self._ports = ports = _Ports(call, new, replicate=self.replicate, left=left, failed=failed, repeats=repeats)
        ports.old_communicates = communicated
        made_here = call is not None and self._made_in is not None and self._made_in() is call
        if made_here and self._schedules_advance and ports.rank == 0:
            self._warn("made inside", "the LiveState was made inside of the wrapped function: unless something outside "
                       "keeps it, a fault loses all steps; make it before the call")  # fmt: skip
        if self._training.memory.objects is None:
            tensors.check_shared(new)
            self._notice_scheduler(new)
        decided, knows = ((), False) if call is None else call._handles.votes.newest(self)
        newest = Stamp(*decided) if decided else None
        first = run(self._training.resume(ports, new, newest, knows=knows))
        ports.failed, ports.has_resumed, self._differs = None, True, False
        if first is None:
            ports.left = None  # it would keep the old objects while a checkpoint is loaded
            new.fill_before_loading()
        different = ports.different_replicas(new) if self._compares and first is not None else ""
        if ports.rank == 0:
            self._tell(call, new, newest, first=first, different=different)
        tensors.drop_interrupted(new)
        self._versions, self._settled = tensors.versions(new), None
        return first

    def _tell(
        self, call: CallWrapper | None, new: Objects, newest: Stamp | None, *, first: int | None, different: str
    ) -> None:
        """Say what is lost or not as it should be after `resume`."""
        recovery = self._training.recovery
        if isinstance(recovery, Incomplete) and recovery.newest is not None:
            missing = "; ".join(map(new.told, recovery.missing))
            log.warning("step %d is not whole in memory: no rank that trains has %s of it; a checkpoint is needed",
                        recovery.newest.step, missing)  # fmt: skip
        if isinstance(recovery, Recovery) and newest is not None and recovery.newest < newest:
            log.warning("going on after step %d: only ranks that do not train now have passed the vote of step %d",
                        recovery.newest.step, newest.step)  # fmt: skip
        if different:
            log.warning("%s at step %d: an earlier step was not the same on all", different, first)
        cause = None if call is None or (restart := last_restart()) is None else restart.cause
        if first is not None and cause is not None and cause.behind_step:
            log.warning("the function has failed behind a commit, at %s: it goes on with step %d, and what follows a "
                        "commit in its pass is not done again; put that before the next commit, as at the beginning of "
                        "the pass", cause.origin, first)  # fmt: skip

    @property
    def replicas_differ(self) -> bool:
        """Whether ranks with the same shard have started with different parameters; `commit` refuses them."""
        return self._differs

    @property
    def shard(self) -> Shard | None:
        """Which part of the parameters the objects of the last `resume` have; None before it."""
        objects = self._training.memory.objects
        return None if objects is None else objects.shard

    def holding(self) -> Holding | None:
        """Return what this rank has in memory since the fault; None if it has nothing.

        Ranks that exchange it know, before they have a process group, what `resume` would do
        (`nvrx_core.inprocess.live.memory.recover`).
        """
        memory, left = self._training.memory, None if self._ports is None else self._ports.left
        objects, passed = memory.objects, memory.passed
        if objects is None or passed is None or left is None:
            return None
        if objects is left.objects and not memory.torn:
            self._refuse_changed(left)
        return self._training.memory.holding(
            objects.shard, objects.shard, 0 if passed.rows is None else len(passed.rows)
        )

    def passed_vote(self) -> tuple[int, ...]:
        """Return the iteration and the step of the last vote that this rank has passed; empty for none."""
        passed = self._training.memory.passed
        return () if passed is None else passed.stamp

    def _notice_changes(self, left: Left, new: Objects) -> None:
        """Keep only what the function has left as it was: a model that outlives it is in its reach before resume()."""
        memory = self._training.memory
        if memory.objects is not left.objects or memory.torn:
            return
        pending = memory.pending
        if pending is not None and pending.due and pending.stamp != memory.version and left.are_gradients_changed():
            self._training.memory = memory = memory.cannot_advance()
        if tensors.shares(left.objects, new):
            left.restore_settings()
            self._refuse_changed(left)

    def _refuse_changed(self, left: Left) -> None:
        if name := left.changed_parameter():
            log.warning("%s was changed before resume(): this rank has lost the step that it had in memory", name)
            self._training.memory = self._training.memory.begin_change()

    def start(self, step: int) -> None:
        """Begin with `step`: the objects of the last `resume` are as before it, from a checkpoint or fresh.

        Raises:
            TypeError: for a step that is no integer.
            UsageError: before `resume`.
            RuntimeError: with parameters or the state of an optimizer on the meta device, or when ranks start with
                different steps.
        """
        step, ports = int(operator.index(step)), self._here("start")  # of any integer type
        objects = self._training.memory.objects
        if objects is not None:
            objects.take_filled()
            objects.follow_averages()
            objects.check_filled()
            self._differs = bool(ports.different_replicas(objects, step))
        ports.starts = True
        run(self._training.start(ports, step))
        ports.starts = False
        assert self._training.memory.objects is not None
        self._versions, self._settled = tensors.versions(self._training.memory.objects), None

    def commit(self, step: int, *, watched: bool = True) -> None:
        """Call `advance` for `step` on all ranks, or on none; gradients are complete, clipped and unscaled.

        Args:
            step: the step.
            watched: the step is a sign of life (`CallWrapper.progress`).

        Raises:
            TypeError: for a step that is no integer.
            UsageError: before `resume`, with a step not greater than the last three times in succession, or where ranks
                with the same shard have begun with different parameters: the job ends.
            RuntimeError: with a step not greater than the last, or when ranks commit different steps.
        """
        step, ports = int(operator.index(step)), self._here("commit")  # of any integer type
        objects, expected = self._training.memory.objects, self._versions
        if objects is not None and all(each.grad is None for each in objects.parameters):
            self._warn("gradients", "no parameter that resume() was given has a gradient in commit(): if another model "
                       "is trained, nothing of it is kept")  # fmt: skip
        if self._differs and objects is not None:  # nothing has made them equal since, as DDP does by default
            self._differs = False
            if different := ports.different_replicas(objects, step):
                raise UsageError(f"{different} since start(): load the same checkpoint, or make the model with the "
                                 "same seed, or broadcast it; name parts of a model by resume(part=)")  # fmt: skip
        run(self._training.commit(ports, step))
        assert objects is not None
        if "change" not in self._warned and expected is not None and expected != ports.before:
            self._warn("change", "%s was changed outside of commit(): after a fault, ranks may go on with different "
                       "values; change it in the function that commit() calls",
                       tensors.changed(objects, expected, ports.before))  # fmt: skip
        if ports.communicates:
            self._warn("communicates", "the function that commit() calls communicates with other ranks: after a fault, "
                       "a rank does the step alone, and would wait for them; do that before commit()")  # fmt: skip
        self._notice_scheduler(objects)
        if "settings" not in self._warned and self._schedules_advance and self._settled and ports.settled and (
            name := self._settled.differs(ports.settled, is_scheduled=tensors.is_scheduled(objects))
        ):  # fmt: skip
            self._warn("settings", "%s changed outside of commit(): after a fault, ranks may go on with different "
                       "values; step schedulers, and update a GradScaler, in the function that commit() calls",
                       name)  # fmt: skip
        self._versions = None if ports.left is None else ports.left.versions
        self._settled = None if ports.left is None else _Settled.of(ports.left)
        if ports.call is not None:
            ports.call.progress(step, watched=watched)
            if self._schedules_advance:
                ports.call._handles.votes.committed(sys._getframe(1))

    def _notice_scheduler(self, objects: Objects) -> None:
        """Warn of a scheduler that is not registered; one that is made after `resume` is seen in the first commit."""
        if self._schedules_advance and not objects.shared and tensors.is_scheduled(objects):
            self._warn("scheduler", "an optimizer has a scheduler, and resume() got no `shared`: after a fault, the "
                       "scheduler would begin anew; make it before resume()")  # fmt: skip

    def _warn(self, of: str, text: str, *given: object) -> None:
        """Log a warning, once of each kind."""
        if of not in self._warned:
            self._warned.add(of)
            log.warning(text, *given)

    def _here(self, what: str) -> _Ports:
        if self._ports is None:
            raise UsageError(f"{what}() before resume()")
        if self._ports.call is not current_call():  # each iteration resumes
            raise RuntimeError(f"{what}() before resume() in this iteration")
        return self._ports


@value
class _Settled:
    """What schedulers and scalers have come to, as far as it can be told without a wait for a GPU.

    Attributes:
        settings: of the optimizers' groups.
        counted: by name of a shared object, the number of a scheduler's steps or of a scaler's updates; None for none.
    """

    settings: tensors.Settings
    counted: Mapping[str, int | None]

    @classmethod
    def of(cls, left: Left) -> _Settled:
        """Return it, with the settings that are known, and the counts of now."""
        counted: dict[str, int | None] = {}
        for name, each in left.objects.shared.items():
            if isinstance(each, torch.optim.lr_scheduler.LRScheduler):
                counted[name] = getattr(each, "last_epoch", None)
            elif isinstance(each, torch.amp.GradScaler):  # its `state_dict` waits
                scale: torch.Tensor | None = getattr(each, "_scale", None)  # one that is not enabled has none
                counted[name] = None if scale is None else scale._version
        return cls(left.settings, counted)

    def differs(self, other: _Settled, *, is_scheduled: bool) -> str:
        """Return the name of what is another; "" for none. Without a scheduler, a loop may set what it likes."""
        for name, then in self.counted.items():
            now = other.counted.get(name)
            if then is not None and now is not None and then != now:
                return f"shared object {name!r}"
        same = not is_scheduled or tensors._same(self.settings, other.settings)
        return "" if same else "the settings of an optimizer"


def _repeats(before: _Ports | None, call: CallWrapper | None) -> int:
    """Return how many iterations in succession have ended by a commit of a step that was done, on any rank."""
    if before is None or call is None:
        return 0
    if before.iteration == call.iteration:
        return before.repeats
    cause = None if (restart := last_restart()) is None else restart.cause
    return before.repeats + 1 if cause is not None and cause.error_type == type_name(StepRepeatedError) else 0


class _Ports:
    """The process group of an iteration, and the tensors.

    Attributes:
        before: the versions of all tensors before the last advance.
        settled: what schedulers and scalers had come to before it.
        left: the objects as the last commit has left them: at its vote, or after its advance.
        failed: the old objects with which the interrupted step could not be done.
        repeats: how many iterations in succession before this one have ended by a commit of a step that was done.
        has_resumed: whether the resume of the iteration has ended.
        starts: whether the next vote is that of `start`.
        communicates: whether three advances of the new objects or more have begun collectives, each the same number of
            each group: those of a thread differ.
        old_communicates: whether those of the old objects have.
    """

    def __init__(
        self, call: CallWrapper | None, new: Objects, *, replicate: bool, left: Left | None, failed: Objects | None,
        repeats: int = 0,
    ) -> None:  # fmt: skip
        self._replicate, self._device = replicate, torch.device("cpu")
        self._is_alone = call is None and not dist.is_initialized()  # a loop of one process, not wrapped
        if not (self._is_alone or dist.is_initialized()):
            raise RuntimeError(
                "resume() without a process group: call init_process_group() before; a fault on another rank may have "
                "aborted it"
            )
        self.call, self.iteration = call, 0 if call is None else call.iteration
        self.rank = 0 if self._is_alone else dist.get_rank()
        self._atomic = nullcontext() if call is None else call.atomic()
        self._waits_for_transfers = False
        self.before: tensors.Versions = ()
        self.settled: _Settled | None = None
        self._new, self.left, self.failed, self.repeats = new, left, failed, repeats
        self._cannot_advance = self._has_advanced = self.has_resumed = self.starts = False
        self._required = () if left is None else left.required
        self._capacity, self._mine = _ROOM, torch.zeros(0, dtype=torch.uint8)
        self._advances, self._collectives = 0, dict[str, int]()
        self.old_communicates = False

    @property
    def communicates(self) -> bool:
        none_since = self.old_communicates and self._advances == 0  # no restart in between tells otherwise
        return none_since or (self._advances > 2 and bool(self._collectives))

    def shard_of(self, objects: Objects) -> Shard:
        return objects.shard

    def width_of(self, table: Sequence[torch.Tensor] | None) -> int:
        return 0 if table is None else len(table)

    def row_of(self, table: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
        return table[rank]

    def is_changed(self) -> bool:
        assert self.left is not None
        return self._cannot_advance or self._has_advanced or self.left.is_changed()

    @operation
    def exchange(self, holding: Holding) -> Sequence[Holding]:
        if self._is_alone:
            return [holding]
        holdings: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(holdings, holding)
        return holdings

    @operation
    def capture(self, objects: Objects, step: int) -> torch.Tensor:
        self._device = objects.device
        objects.collect_buffers()
        self.left = Left.of(objects)
        return rows.capture(step, objects.buffers, objects.local, objects.device)

    @operation
    def restore(self, objects: Objects, row: torch.Tensor) -> None:
        rows.restore(row, objects.buffers, objects.local, objects.device)
        self._device, self.left = objects.device, Left.of(objects)

    @operation
    def vote(self, row: torch.Tensor | None, *, transfers: bool = False) -> Sequence[torch.Tensor] | None:
        """Return when all have come; on a GPU, gradients are complete then, and nothing else was enqueued."""
        self._waits_for_transfers = transfers
        with self._waiting() if transfers else nullcontext():
            return self._vote(row)

    def _vote(self, row: torch.Tensor | None) -> Sequence[torch.Tensor] | None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        if self._is_alone and row is not None:
            return [row] if self._replicate else ()
        row = rows.declined() if row is None else row
        while self._replicate:
            table = self._gather(row)
            headers = rows.headers_of(table)
            if any(step == rows.NO_STEP for _, step in headers):
                return None
            self._refuse_different([step for _, step in headers])
            longest = max(length for length, _ in headers)
            if longest <= self._capacity:
                return table
            self._capacity = 2 * longest  # on all ranks
        [(_, step)] = rows.headers_of([row])
        extremes = torch.tensor([step, -step], device=self._voting_device())
        self._finish(dist.all_reduce(extremes, dist.ReduceOp.MIN, async_op=self._waits_for_transfers))
        least, greatest = extremes.tolist()
        if least == rows.NO_STEP:
            return None
        self._refuse_different([least, -greatest])
        return ()

    def _gather(self, row: torch.Tensor) -> list[torch.Tensor]:
        """Return the beginning of each rank's row, as much as there is room for."""
        device = self._voting_device()
        if len(self._mine) != self._capacity:
            self._mine = row.new_zeros(self._capacity)
        fitting = min(len(row), self._capacity)
        self._mine[:fitting].copy_(row[:fitting])
        table = list(row.new_empty((dist.get_world_size(), self._capacity), device=device))
        self._finish(dist.all_gather(table, self._mine.to(device), async_op=self._waits_for_transfers))
        return table if device.type == "cpu" else list(torch.stack(table).cpu())

    def _finish(self, work: dist.Work | None) -> None:
        """Wait for a collective that other ranks come to from a transfer; any other one has ended.

        On a GPU, it is this thread's stream that waits.
        """
        if work is not None and self._voting_device().type == "cpu":
            self._movement.wait(work.wait)
        elif work is not None:
            work.wait()

    def different_replicas(self, objects: Objects, step: int = 0) -> str:
        """Return which parameter differs first between ranks with the same shard; "" for none. All ranks call it.

        Args:
            objects: the objects.
            step: at which this rank is; where ranks are at different ones, it does not matter what differs.
        """
        if self._is_alone:
            return ""
        shard = objects.shard
        held = self._gather_numbers(zlib.crc32(repr(shard).encode()), step)
        shards = {number for number, _ in held}
        if len({each for _, each in held}) > 1 or len(shards) == len(held):
            return ""  # as without replicas, where there is nothing to compare
        with self._unwatched():
            digests = tensors.digests(objects)
        found = self._gather_numbers(zlib.crc32(repr(digests).encode()))
        if len({(number, *digest) for (number, _), digest in zip(held, found, strict=True)}) == len(shards):
            return ""
        told: list[Any] = [None] * len(found)
        dist.all_gather_object(told, (shard, digests, objects.names))
        first: dict[Shard, tuple[int, tuple[int, ...]]] = {}
        for rank, (theirs, numbers, names) in enumerate(told):
            other, expected = first.setdefault(theirs, (rank, numbers))
            if name := next(
                (name for name, mine, its in zip(names, numbers, expected, strict=True) if mine != its), ""
            ):
                return f"{name} differs between ranks {other} and {rank}, which have the same shard"
        return ""

    def _gather_numbers(self, *numbers: int) -> list[tuple[int, ...]]:
        """Return some numbers of each rank."""
        row = torch.tensor(numbers, device=self._voting_device())
        table = row.new_empty((dist.get_world_size(), len(row)))
        dist.all_gather(list(table), row)
        return [tuple(each) for each in table.tolist()]

    def _voting_device(self) -> torch.device:
        if not self._votes_on_gpu:
            return _CPU
        is_known = self._device.type == "cuda"  # not yet where nothing was captured
        return self._device if is_known else torch.device("cuda", torch.cuda.current_device())

    @functools.cached_property
    def _votes_on_gpu(self) -> bool:
        return dist.get_backend() == "nccl"

    @operation
    def enter_atomic(self) -> None:
        self._atomic.__enter__()

    @operation
    def leave_atomic(self) -> None:
        self._atomic.__exit__(None, None, None)

    @operation
    def advance(self, objects: Objects) -> None:
        if self.left is None or self.left.objects is not objects:
            self.left = Left.of(objects)  # else as at the vote
        self._has_advanced = False
        self.before, self.settled = self.left.versions, _Settled.of(self.left)
        if objects is self._new:
            counts = self._advances == 0 or bool(self._collectives)  # else it is known that it does not
            before = counts_of_groups() if counts else {}
            objects.advance()
            now = counts_of_groups() if counts else {}
            begun = {name: count for name, each in now.items() if (count := each - before.get(name, 0))}
            self._advances += 1
            self._collectives = begun if self._advances == 1 or self._collectives == begun else {}
        elif self.old_communicates:  # another rank that has done the step may have this one's shard
            self._cannot_advance = True
            raise RuntimeError("the interrupted step cannot be done: the function that commit() calls communicates "
                               "with other ranks, which have done it")  # fmt: skip
        else:  # the interrupted step; where it fails twice, it always does
            self._cannot_advance, self.failed = objects is self.failed, objects
            with tensors.stepped(self._new, objects) as misled:
                objects.advance()
            if misled:
                self._cannot_advance = True
                raise RuntimeError(
                    "the function that the interrupted iteration gave to resume() steps the optimizer of the new one: "
                    "it must refer to the objects that it was given with, and not to a global name or an attribute"
                )
            self.failed = None
        objects.follow_averages()
        self.left = Left.of(objects, is_stepped=True)

    def shares(self, old: Objects, new: Objects) -> bool:
        return tensors.shares(old, new)

    @operation
    def adopt(self, old: Objects, new: Objects) -> None:
        tensors.require_gradients(old, self._required)
        self._tell(tensors.adopt(old, new))

    @operation
    def send(self, objects: Objects, to: int) -> None:
        with self._waiting():
            tensors.require_gradients(objects, self._required)
            tensors.send(objects, self._transfers(to))

    @operation
    def receive(self, objects: Objects, source: int) -> None:
        with self._waiting():
            self._tell(tensors.receive(objects, self._transfers(source)))

    @operation
    def send_row(self, row: torch.Tensor, to: int) -> None:
        with self._waiting():
            transfers = self._transfers(to)
            transfers.send_object(row.clone())
            transfers.finish()

    @operation
    def receive_row(self, source: int) -> torch.Tensor:
        with self._waiting():  # which may still receive the parameters
            row: torch.Tensor = self._transfers(source).receive_object()
        return row

    def _transfers(self, peer: int) -> Transfers:
        return Transfers(peer, self._movement)

    @functools.cached_property
    def _movement(self) -> Movement:
        call = self.call
        assert call is not None  # else nothing is in memory, and nothing is transferred
        return Movement(lambda: call.store, _PATIENCE * call.wrapper.soft_timeout.total_seconds())

    def _tell(self, line: str) -> None:
        if line and self.rank == 0:
            log.warning("%s; where a part of a pass freezes parameters, unfreeze them before commit()", line)

    def _waiting(self) -> Any:
        """Others may be busy for long, with a transfer: what counts is whether anything moves (`Movement`).

        A wait on the CPU shows that this rank lives. One for a GPU does not: there, the process group's timeout holds.
        """
        if self.call is not None and self._voting_device().type == "cpu":
            return self.call.suspend_ping()
        return self._unwatched()

    def _unwatched(self) -> Any:
        return nullcontext() if self.call is None else self.call.disable_hang_protection()

    def _refuse_different(self, steps: Sequence[int]) -> None:
        if len(set(steps)) > 1:
            what = "start with" if self.starts else "commit"
            told = ", ".join(str(each + self.starts) for each in sorted(set(steps)))  # the vote is of the step before
            raise RuntimeError(f"ranks {what} different steps: {told}")
