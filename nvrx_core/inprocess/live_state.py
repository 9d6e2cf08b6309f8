"""Training state that survives a restart in memory: a fault costs no step.

The step of the training is a function, which `LiveState.commit` calls after a vote of all ranks; `LiveState.resume`
puts what the ranks have in memory into the objects of the next iteration. The protocol is in
`nvrx_core.inprocess.live.memory`.
"""

from __future__ import annotations

import logging
import operator
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist

from nvrx_core.flow import operation, run
from nvrx_core.inprocess.live import objects as tensors, row as rows
from nvrx_core.inprocess.live.memory import Holding, Incomplete, Recovery, Shard, Stamp
from nvrx_core.inprocess.live.objects import Left, Objects
from nvrx_core.inprocess.live.row import Stateful
from nvrx_core.inprocess.live.training import LiveTraining
from nvrx_core.inprocess.wrap import CallWrapper, current_call

__all__ = ["LiveState"]

log = logging.getLogger("nvrx_core.inprocess")
_ROOM: Final = 16384
"""Bytes of a row, until one is longer."""


class LiveState:
    """The state of a training, kept in the ranks' memory. Make one outside of the wrapped function.

    It belongs to a call of the wrapped function: the next call begins with nothing in memory. Outside of a wrapped
    function, `commit` calls the step, and nothing is kept. The first one of a process takes half a second: torch loads
    what optimizers need, which a reserve would load otherwise while the others wait for it.

    Args:
        replicate: each vote carries the local state of all ranks to all ranks, some 10 KB each: who takes the place of
            a lost rank goes on with its random numbers and its position in the data. False: with fresh ones.
        schedules_advance: schedulers step in `advance`. False: they step after the commit, and the caller takes them
            back to it; the settings that they have put into the optimizers' groups go back to it in `resume`.
        compare_replicas: `resume` compares the parameters of ranks that have the same shard, by a hash, as `start`
            always does: a line names the first one that differs. The same on all ranks.
    """

    def __init__(
        self, *, replicate: bool = True, schedules_advance: bool = True, compare_replicas: bool = False
    ) -> None:
        self._compares = compare_replicas
        self.replicate, self._schedules_advance = replicate, schedules_advance
        self._training: LiveTraining[Objects, torch.Tensor, Sequence[torch.Tensor]] = LiveTraining()
        self._call: object = None
        self._ports: _Ports | None = None
        self._versions: tensors.Versions | None = None
        self._warned = False
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
            RuntimeError: when it has returned a step in this iteration already, or after a forward pass of fully_shard.
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
        self._ports = ports = _Ports(call, new, replicate=self.replicate, left=left, failed=failed)
        if self._training.memory.objects is None:
            tensors.check_shared(new)
            if self._schedules_advance and not new.shared and tensors.is_scheduled(new):
                log.warning("an optimizer has a scheduler, and resume() got no `shared`: after a fault, the scheduler "
                            "would begin anew")  # fmt: skip
        decided, knows = ((), False) if call is None else call._handles.votes.newest(self)
        newest = Stamp(*decided) if decided else None
        first = run(self._training.resume(ports, new, newest, knows=knows))
        ports.failed, ports.has_resumed = None, True
        if first is None:
            ports.left = None  # it would keep the old objects while a checkpoint is loaded
            new.fill_before_loading()
        recovery = self._training.recovery
        if isinstance(recovery, Incomplete) and recovery.newest is not None and ports.rank == 0:
            missing = "; ".join(map(new.told, recovery.missing))
            log.warning("step %d is not whole in memory: no rank that trains has %s of it; a checkpoint is needed",
                        recovery.newest.step, missing)  # fmt: skip
        if isinstance(recovery, Recovery) and newest is not None and recovery.newest < newest and ports.rank == 0:
            log.warning("going on after step %d: only ranks that do not train now have passed the vote of step %d",
                        recovery.newest.step, newest.step)  # fmt: skip
        if self._compares and first is not None and (different := ports.different_replicas(new)) and ports.rank == 0:
            log.warning("%s at step %d: an earlier step was not the same on all", different, first)
        tensors.drop_interrupted(new)
        self._versions = tensors.versions(new)
        return first

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
        if not tensors.shares(left.objects, new):
            return
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
            RuntimeError: before `resume`, with parameters or the state of an optimizer on the meta device, or where the
                parameters of ranks with the same shard differ.
        """
        step, ports = int(operator.index(step)), self._here("start")  # of any integer type
        objects = self._training.memory.objects
        if objects is not None:
            objects.take_filled()
            objects.check_filled()
            if different := ports.different_replicas(objects, step):
                raise RuntimeError(f"start() where {different}: load the same checkpoint, or make the model with the "
                                   "same seed, or broadcast it; name parts of a model by resume(part=)")  # fmt: skip
        run(self._training.start(ports, step))
        assert self._training.memory.objects is not None
        self._versions = tensors.versions(self._training.memory.objects)

    def commit(self, step: int, *, watched: bool = True) -> None:
        """Call `advance` for `step` on all ranks, or on none; gradients are complete, clipped and unscaled.

        Args:
            step: the step.
            watched: the step is a sign of life (`CallWrapper.progress`).

        Raises:
            TypeError: for a step that is no integer.
            RuntimeError: before `resume`, when ranks commit different steps, or a step not greater than the last.
        """
        step, ports = int(operator.index(step)), self._here("commit")  # of any integer type
        objects, expected = self._training.memory.objects, self._versions
        if not self._warned and objects is not None and all(each.grad is None for each in objects.parameters):
            self._warned = True
            log.warning("no parameter that resume() was given has a gradient in commit(): if another model is trained, "
                        "nothing of it is kept")  # fmt: skip
        run(self._training.commit(ports, step))
        assert objects is not None
        if not self._warned and expected is not None and expected != ports.before:
            self._warned, name = True, tensors.changed(objects, expected, ports.before)
            log.warning("%s was changed outside of commit(): after a fault, ranks may go on with different values; "
                            "change it in the function that commit() calls", name)  # fmt: skip
        self._versions = None if ports.left is None else ports.left.versions
        if ports.call is not None:
            ports.call.progress(step, watched=watched)

    def _here(self, what: str) -> _Ports:
        if self._ports is None or self._ports.call is not current_call():  # each iteration resumes
            raise RuntimeError(f"{what}() before resume()")
        return self._ports


class _Ports:
    """The process group of an iteration, and the tensors.

    Attributes:
        before: the versions of all tensors before the last advance.
        left: the objects as the last commit has left them: at its vote, or after its advance.
        failed: the old objects with which the interrupted step could not be done.
        has_resumed: whether the resume of the iteration has ended.
    """

    def __init__(
        self, call: CallWrapper | None, new: Objects, *, replicate: bool, left: Left | None, failed: Objects | None
    ) -> None:
        self._replicate, self._device = replicate, torch.device("cpu")
        self.call, self.rank, self.iteration = call, dist.get_rank(), 0 if call is None else call.iteration
        self._atomic = nullcontext() if call is None else call.atomic()
        self.before: tensors.Versions = ()
        self._new, self.left, self.failed = new, left, failed
        self._required = () if left is None else left.required
        self._cannot_advance = self.has_resumed = False
        self._capacity = _ROOM

    def shard_of(self, objects: Objects) -> Shard:
        return objects.shard

    def width_of(self, table: Sequence[torch.Tensor] | None) -> int:
        return 0 if table is None else len(table)

    def row_of(self, table: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
        return table[rank]

    def is_changed(self) -> bool:
        assert self.left is not None
        return self._cannot_advance or self.left.is_changed()

    @operation
    def exchange(self, holding: Holding) -> Sequence[Holding]:
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
        with self._unwatched() if transfers else nullcontext():
            return self._vote(row)

    def _vote(self, row: torch.Tensor | None) -> Sequence[torch.Tensor] | None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        row = rows.declined() if row is None else row
        while self._replicate:
            table = self._gather(row)
            headers = [rows.header_of(each) for each in table]
            if any(step == rows.NO_STEP for _, step in headers):
                return None
            _refuse_different([step for _, step in headers])
            longest = max(length for length, _ in headers)
            if longest <= self._capacity:
                return table
            self._capacity = 2 * longest  # on all ranks
        step = rows.header_of(row)[1]
        extremes = torch.tensor([step, -step], device=self._voting_device())
        dist.all_reduce(extremes, dist.ReduceOp.MIN)
        least, greatest = extremes.tolist()
        if least == rows.NO_STEP:
            return None
        _refuse_different([least, -greatest])
        return ()

    def _gather(self, row: torch.Tensor) -> list[torch.Tensor]:
        """Return the beginning of each rank's row, as much as there is room for."""
        device = self._voting_device()
        mine = row.new_zeros(self._capacity)
        mine[: len(row)] = row[: self._capacity]
        table = row.new_empty((dist.get_world_size(), self._capacity), device=device)
        dist.all_gather(list(table), mine.to(device))
        return list(table.cpu())

    def different_replicas(self, objects: Objects, step: int = 0) -> str:
        """Return which parameter differs first between ranks with the same shard; "" for none. All ranks call it.

        Args:
            objects: the objects.
            step: at which this rank is; where ranks are at different ones, it does not matter what differs.
        """
        shard, digests = objects.shard, tensors.digests(objects)
        row = torch.tensor([*(zlib.crc32(repr(each).encode()) for each in (shard, digests)), step])
        table = row.new_empty((dist.get_world_size(), len(row)), device=self._voting_device())
        dist.all_gather(list(table), row.to(table.device))
        found = [tuple(row) for row in table.tolist()]
        if len({step for *_, step in found}) > 1 or len({*found}) == len({shard for shard, *_ in found}):
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

    def _voting_device(self) -> torch.device:
        if dist.get_backend() != "nccl":
            return torch.device("cpu")
        is_known = self._device.type == "cuda"  # not yet where nothing was captured
        return self._device if is_known else torch.device("cuda", torch.cuda.current_device())

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
        self.before = self.left.versions
        if objects is self._new:
            objects.advance()
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
        self.left = Left.of(objects)

    def shares(self, old: Objects, new: Objects) -> bool:
        return tensors.shares(old, new)

    @operation
    def adopt(self, old: Objects, new: Objects) -> None:
        tensors.require_gradients(old, self._required)
        self._tell(tensors.adopt(old, new))

    @operation
    def send(self, objects: Objects, to: int) -> None:
        with self._unwatched():
            tensors.require_gradients(objects, self._required)
            tensors.send(objects, to)

    @operation
    def receive(self, objects: Objects, source: int) -> None:
        with self._unwatched():
            self._tell(tensors.receive(objects, source))

    @operation
    def send_row(self, row: torch.Tensor, to: int) -> None:
        with self._unwatched():
            dist.send_object_list([row.clone()], to)

    @operation
    def receive_row(self, source: int) -> torch.Tensor:
        got: list[Any] = [None]
        with self._unwatched():  # which may still receive the parameters
            dist.recv_object_list(got, source)
        row: torch.Tensor = got[0]
        return row

    def _tell(self, line: str) -> None:
        if line and self.rank == 0:
            log.warning("%s; where a part of a pass freezes parameters, unfreeze them before commit()", line)

    def _unwatched(self) -> Any:
        """A transfer takes as long as it takes: no timeout of the call applies to it, nor to those who wait for it."""
        return nullcontext() if self.call is None else self.call.disable_hang_protection()


def _refuse_different(steps: Sequence[int]) -> None:
    if len(set(steps)) > 1:
        raise RuntimeError(f"ranks commit different steps: {', '.join(map(str, sorted(set(steps))))}")
