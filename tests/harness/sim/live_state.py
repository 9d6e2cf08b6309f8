"""An explicit-state checker of live state: the shipped flows on virtual ranks, with faults at every operation.

A state is what all processes had kept when the iteration began, and the choices since then: flows cannot be copied, so
that a state is reached by carrying out its choices once more. What only one rank sees is not interleaved with what
others do: a rank that is interrupted there by a fault of another is, for all that can be seen, one that has failed
there itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any

from .explorer import Space

__all__ = ["LiveSpace", "Moment"]

Weights = tuple[Any, ...]
"""Each step, with the processes that have done it: what makes parameters and optimizer state what they are."""


class Interrupted(Exception):
    """A fault on this rank or another one."""


@dataclass
class Objects:
    """What an iteration has made.

    Attributes:
        shard: which part of the parameters it is.
        weights: None while they belong to no step.
        local: the local state: a rank, and the weights' steps, each with the rank whose data it has had.
        gradients: the step that they are of.
    """

    shard: tuple[int, ...]
    weights: Weights | None = None
    local: tuple[Any, ...] = ()
    gradients: Any = None

    def reachable(self) -> set[Weights]:
        """The weights that it has, or can have without any other rank."""
        if self.weights is None:
            return set()
        more = {(*self.weights, self.gradients)} if self.gradients and self.gradients[0] == len(self.weights) else set()
        return {self.weights} | more

    def state(self) -> Hashable:
        return self.shard, self.weights, self.local, self.gradients


@dataclass(frozen=True)
class Kept:
    """What a process has after an iteration.

    Attributes:
        memory: of its training.
        passed: the iteration of the newest vote that it has passed, and the weights after its step.
    """

    memory: Any
    passed: tuple[int, Weights] | None = None

    @cached_property
    def state(self) -> Hashable:
        return _memory(self.memory), self.passed


class Operation:
    """Awaited, it suspends the flow until it is chosen.

    Args:
        name: for people.
        carry_out: its effect; returns its result.
        ready: whether it can be carried out.
        is_seen: whether another rank can tell that it was carried out, or it waits for another.
    """

    def __init__(
        self,
        name: str,
        carry_out: Callable[[], Any],
        ready: Callable[[], bool] = lambda: True,
        *,
        is_seen: bool = False,
    ) -> None:
        self.name, self.carry_out, self.ready, self.is_seen = name, carry_out, ready, is_seen

    def __await__(self) -> Generator[Operation, Any, Any]:
        return (yield self)


class Process:
    """One process in one iteration; the ports of its flows."""

    def __init__(self, group: Group, rank: int, kept: Kept) -> None:
        self.group, self.rank, self.iteration, self.passed = group, rank, group.iteration, kept.passed
        self.repeats = 0
        self.training: Any = group.space.module.LiveTraining()
        memory = kept.memory
        self.training.memory = memory if memory.objects is None else replace(memory, objects=replace(memory.objects))
        self.new = Objects(group.space.shard(rank, len(group.branch)))
        self.depth, self.collectives, self.operations, self.changed = 0, 0, 0, False
        self.has_resumed = self.is_fresh = False
        self.waits: Operation | None = None
        self.finished = False
        self._flow = self._train()

    def go(self, resume: Callable[[], Operation]) -> None:
        """Let the function go on to its next operation, or leave."""
        try:
            self.waits = resume()
        except StopIteration:
            self.waits, self.finished = None, True
        except Interrupted:
            self.waits = None
        except Exception as error:
            self.close()
            raise AssertionError(f"{self}: {error}") from error

    def begin(self) -> None:
        self.go(lambda: self._flow.send(None))

    def close(self) -> None:
        """Let the function leave, whatever it does on its way."""
        self.waits = None
        with suppress(Interrupted, StopIteration, RuntimeError):
            while True:
                self._flow.throw(Interrupted())

    def carry_out(self) -> None:
        assert self.waits is not None
        operation, self.operations = self.waits, self.operations + 1
        self.go(lambda: self._flow.send(operation.carry_out()))

    def fail(self, *, torn: bool = False) -> None:
        """Fail where it stands; torn: in the midst of its advance."""
        if torn:
            self.changed, self.training.memory.objects.weights = True, None
        self.go(lambda: self._flow.throw(Interrupted()))

    async def _train(self) -> None:
        new = self.new
        knows = self.group.branch[self.rank] not in self.group.space.unknowing
        first = await self.training.resume(self, new, self.group.decided, knows=knows)
        self.has_resumed = True
        own = None if new.weights is None else self.own(new.weights)
        assert first is None or new.local == own, f"{self} has local state {new.local}"
        assert first is not None or new.weights is None, f"{self} has changed what it was to begin with"
        assert first is None or self.group.due is not None, f"{self} goes on, though no rank of its group can"
        if first is None:
            assert self.group.due is None, f"{self} loads a checkpoint: {self.group.due} is whole in memory"
            first, new.weights, new.local = 0, (), self.own(())
            await self.training.start(self, first)
        for step in range(first, self.group.space.steps):
            new.local += ((step, self.group.branch, self.rank),)
            new.gradients = step, self.group.branch
            await self.training.commit(self, step)

    def own(self, weights: Weights) -> tuple[Any, ...]:
        """The local state of its rank with these weights."""
        return self.rank, *((*step, self.rank) for step in weights)

    def shard_of(self, objects: Objects) -> tuple[int, ...]:
        return objects.shard

    def width_of(self, rows: Any) -> int:
        return len(rows or ())

    def row_of(self, rows: Any, rank: int) -> Any:
        return rows[rank]

    def is_changed(self) -> bool:
        return self.changed

    def exchange(self, holding: Any) -> Awaitable[Any]:
        return self._collective("exchange", holding, lambda: None)

    def vote(self, row: Any, *, transfers: bool = False) -> Awaitable[Any]:
        """All ranks come to it with the same weights, each with its own local state of the same step, or decline."""
        if row is None:
            return self._collective("vote", None, lambda: None)
        memory, branch = self.training.memory, self.group.branch
        objects, is_due = memory.objects, memory.beginning is None and memory.pending.due
        assert objects.weights is not None, f"{self} votes with torn weights"
        after = (*objects.weights, objects.gradients) if is_due else objects.weights
        own = self.own(after)
        assert row == own, f"{self} votes with local state {row}, not {own}"
        voted = self.group.voted.setdefault(self.collectives, after)
        assert voted == after, f"ranks of {branch} vote with {voted} and {after}"

        def pass_it() -> None:
            if not self.has_resumed and self.group.due is not None:
                assert after == self.group.due, f"{self} goes on from {after}, and not from {self.group.due}"
            self.passed = self.iteration, after

        return self._collective("vote", row, pass_it)

    def _collective(self, name: str, value: Any, then: Callable[[], None]) -> Operation:
        """What all come to; where any of them declines, there is no result."""
        come, everybody = self.group.come.setdefault(self.collectives, {}), range(len(self.group.branch))
        self.collectives += 1
        come[self.rank] = value

        def finish() -> tuple[Any, ...] | None:
            if any(come[rank] is None for rank in everybody):
                return None
            then()
            return tuple(come[rank] for rank in everybody)

        return Operation(name, finish, lambda: len(come) == len(everybody), is_seen=True)

    def capture(self, objects: Objects, step: int) -> Awaitable[Any]:
        if not self.is_fresh and self.rank in getattr(self.training.recovery, "fresh", ()):
            self.is_fresh = True
            own = self.own(objects.weights or ())
            assert own not in self.group.rows, f"{self} has fresh local state, though another rank has had its own"
            objects.local = own
        return Operation("capture", lambda: objects.local)

    def restore(self, objects: Objects, row: Any) -> Awaitable[None]:
        return Operation("restore", lambda: setattr(objects, "local", row))

    def enter_atomic(self) -> Awaitable[None]:
        return Operation("enter", lambda: setattr(self, "depth", 1))

    def leave_atomic(self) -> Awaitable[None]:
        self.depth = 0
        return Operation("leave", lambda: None)

    def advance(self, objects: Objects) -> Awaitable[None]:
        assert self.depth, f"{self} advances where a restart interrupts it"
        self.changed = False
        return Operation("advance", lambda: self._advance(objects))

    def _advance(self, objects: Objects) -> None:
        assert objects.weights is not None, f"{self} advances torn weights"
        assert objects.gradients[0] == len(objects.weights), f"{self} advances {objects.weights} by {objects.gradients}"
        objects.weights += (objects.gradients,)
        if not self.has_resumed:  # another rank has passed its vote: so all have come to it
            self.passed = self.training.memory.pending.stamp.iteration, objects.weights

    def shares(self, old: Objects, new: Objects) -> bool:
        return old is new

    def adopt(self, old: Objects, new: Objects) -> Awaitable[None]:
        assert old.shard == new.shard, f"{self} takes shard {old.shard} for {new.shard}"
        return Operation("adopt", lambda: setattr(new, "weights", old.weights))

    def send(self, objects: Objects, to: int) -> Awaitable[None]:
        return self._send((objects.shard, objects.weights), to)

    def receive(self, objects: Objects, source: int) -> Awaitable[None]:
        return self._receive(source, lambda got: self._take(objects, *got))

    def _take(self, objects: Objects, shard: tuple[int, ...], weights: Weights) -> None:
        assert shard == objects.shard, f"{self} receives shard {shard} for {objects.shard}"
        objects.weights = weights

    def send_row(self, row: Any, to: int) -> Awaitable[None]:
        return self._send(row, to)

    def receive_row(self, source: int) -> Awaitable[Any]:
        return self._receive(source, lambda row: row)

    def _send(self, what: Any, to: int) -> Awaitable[None]:
        channel = self.group.sent.setdefault((self.rank, to), [])
        return Operation(f"send to {to}", lambda: channel.append(what), is_seen=True)

    def _receive(self, source: int, take: Callable[[Any], Any]) -> Awaitable[Any]:
        channel = self.group.sent.setdefault((source, self.rank), [])
        return Operation("receive", lambda: take(channel.pop(0)), lambda: bool(channel), is_seen=True)

    def evidence(self) -> tuple[int, Weights] | None:
        """The newest vote that it has passed, or knows to be passed, and the weights after its step."""
        memory, found = self.training.memory, self.passed
        mark, objects = memory.passed, memory.objects
        is_known = mark is None or (found is not None and mark.stamp <= (found[0], len(found[1]) - 1))
        if is_known or objects is None or objects.weights is None:
            return found
        is_due = mark.due and memory.version != mark.stamp
        return mark.stamp.iteration, (*objects.weights, objects.gradients) if is_due else objects.weights

    def state(self) -> Hashable:
        """What identifies its state; the local variables of its flows follow from it."""
        waits = None if self.waits is None else self.waits.name
        return waits, self.finished, self.operations, self.depth, self.new.state(), _memory(self.training.memory)

    def __repr__(self) -> str:
        return f"process {self.group.branch[self.rank]} (rank {self.rank} of iteration {self.iteration})"


@dataclass(frozen=True)
class Base:
    """Where an iteration begins.

    Attributes:
        kept: by process; None for a killed one.
        branch: the processes of the iteration, by rank.
        faults, kills: how many there may still be.
    """

    kept: tuple[Kept | None, ...]
    branch: tuple[int, ...]
    iteration: int
    faults: int
    kills: int

    @cached_property
    def state(self) -> Hashable:
        kept = tuple(each and each.state for each in self.kept)
        return kept, self.branch, self.iteration, self.faults, self.kills


class Group:
    """The processes of an iteration.

    Attributes:
        due: the weights from which it must go on; None if they are not whole in memory.
        rows: the local states that ranks have.
        come: what ranks have brought to each collective call.
        voted: the weights with which ranks have come to each vote, after its step.
        sent: what is under way from rank to rank.
    """

    def __init__(self, space: LiveSpace, base: Base) -> None:
        self.space, self.branch, self.iteration = space, base.branch, base.iteration
        self.faults, self.kills, self.failed = base.faults, base.kills, False
        self.come, self.voted = dict[int, dict[int, Any]](), dict[int, Weights]()
        self.sent, self.killed = dict[tuple[int, int], list[Any]](), set[int]()
        kept = [each for each in (base.kept[process] for process in base.branch) if each is not None]
        telling = [each for number, each in enumerate(base.kept) if each and number not in space.unknowing]
        votes = [each.memory.passed.stamp for each in telling if each.memory.passed is not None]
        self.decided = max(votes, default=None) if space.tells else None
        self.due, self.rows = self._due(kept), set(_rows(kept))
        self.processes = [Process(self, rank, each) for rank, each in enumerate(kept)]
        try:
            for process in self.processes:
                process.begin()
        except AssertionError:
            self.close()  # the flows that have not begun
            raise

    def _due(self, kept: list[Kept]) -> Weights | None:
        passed = [each.passed for each in kept if each.passed is not None]
        if not passed:
            return None
        newest = max(passed, key=lambda each: (each[0], len(each[1])))[1]
        held = (each.memory.objects for each in kept if each.memory.objects is not None)
        shards = {objects.shard for objects in held if newest in objects.reachable()}
        needed = {self.space.shard(rank, len(kept)) for rank in range(len(kept))}
        return newest if needed <= shards else None

    def choices(self) -> Iterator[tuple[int, str]]:
        """What can happen next: a rank and what becomes of it."""
        inside = [each for each in self.processes if each.waits is not None]
        local = [each for each in inside if each.waits is not None and not each.waits.is_seen]
        for process in local[:1] or inside:
            assert process.waits is not None
            if process.waits.ready():
                yield process.rank, "go"
            if process.depth == 0 and (self.failed or self.faults):
                yield process.rank, "fail"
            if process.waits.name == "advance" and self.faults:
                yield process.rank, "fail in the advance"
                yield process.rank, "tear"
            if self.faults and self.kills:
                yield process.rank, "kill"

    def choose(self, rank: int, what: str) -> None:
        process = self.processes[rank]
        if what == "go":
            process.carry_out()
            return
        if what == "kill" or not self.failed or process.depth:
            self.faults -= 1
        self.failed = True
        if what == "kill":
            self.kills -= 1
            self.killed.add(rank)
            process.waits = None
        else:
            process.fail(torn=what == "tear")

    def close(self) -> None:
        for process in self.processes:
            process.close()

    def state(self) -> Hashable:
        come = tuple(sorted((number, tuple(sorted(who))) for number, who in self.come.items()))
        sent = tuple(sorted((way, tuple(what)) for way, what in self.sent.items() if what))
        processes = tuple(None if each.rank in self.killed else each.state() for each in self.processes)
        return processes, come, sent, self.faults, self.kills, self.failed


@dataclass(frozen=True, eq=False)
class Moment:
    """A state: where the iteration has begun, and what was chosen since."""

    base: Base
    chosen: tuple[tuple[int, str], ...] = ()


class LiveSpace(Space[Moment]):
    """All that faults can do to a training.

    Args:
        module: `nvrx_core.inprocess.live.training`, as shipped or with a mistake.
        memory: `nvrx_core.inprocess.live.memory`, likewise.
        processes: how many there are.
        active: how many of them train; the others are reserves.
        steps: of the training.
        faults, kills: how many there may be; a kill is a fault.
        shards: into how many the parameters are divided.
        tells: the decision of an iteration has the newest vote.
        unknowing: the processes that do not tell of theirs, and do not take it for a vote of their training.
    """

    def __init__(
        self,
        module: ModuleType,
        memory: ModuleType,
        *,
        processes: int = 2,
        active: int | None = None,
        steps: int = 2,
        faults: int = 2,
        kills: int = 0,
        shards: int = 1,
        tells: bool = True,
        unknowing: tuple[int, ...] = (),
    ) -> None:
        self.module, self.memory = module, memory
        self.count, self.active, self.steps = processes, active or processes, steps
        self.faults, self.kills, self.shards, self.tells, self.unknowing = faults, kills, shards, tells, unknowing

    def __str__(self) -> str:
        return (
            f"{self.count} processes, {self.active} active, {self.steps} steps, {self.faults} faults, "
            f"{self.kills} kills, {self.shards} shards, {self.tells=}, {self.unknowing=}"
        )

    def shard(self, rank: int, world_size: int) -> tuple[int, ...]:
        """The shard of a rank; with less than all ranks, the parameters are divided otherwise."""
        return () if self.shards == 1 else (rank % self.shards, min(self.shards, world_size))

    def first(self) -> Moment:
        kept = tuple(Kept(self.memory.Memory()) for _ in range(self.count))
        return Moment(Base(kept, tuple(range(self.active)), 0, self.faults, self.kills))

    @contextmanager
    def _group(self, moment: Moment) -> Iterator[Group]:
        group = Group(self, moment.base)
        try:
            for rank, what in moment.chosen:
                group.choose(rank, what)
            yield group
        finally:
            group.close()

    def of(self, state: Moment) -> Iterable[tuple[str, Moment]]:
        with self._group(state) as group:
            choices = list(group.choices())
            if not choices and group.failed:
                yield from self._following(state.base, group)
            for rank, what in choices:
                waits = group.processes[rank].waits
                label = f"iteration {group.iteration}: {group.processes[rank]}: {what} ({waits and waits.name})"
                yield label, Moment(state.base, (*state.chosen, (rank, what)))

    def _following(self, base: Base, group: Group) -> Iterator[tuple[str, Moment]]:
        kept = list(base.kept)
        for rank, each in enumerate(group.branch):
            process = group.processes[rank]
            kept[each] = None if rank in group.killed else Kept(process.training.memory, process.evidence())
        alive = [number for number, each in enumerate(kept) if each is not None]
        for branch in dict.fromkeys((tuple(alive[: self.active]), tuple(alive[-self.active :]))):
            if branch:
                after = Base(tuple(kept), branch, base.iteration + 1, group.faults, group.kills)
                yield f"iteration {after.iteration} begins, with processes {branch}", Moment(after)

    def key(self, state: Moment) -> Hashable:
        with self._group(state) as group:
            return hash((state.base.state, group.state()))

    def check_end(self, state: Moment) -> Hashable:
        with self._group(state) as group:
            return self._check_end(group)

    def _check_end(self, group: Group) -> Hashable:
        blocked = [f"{each} in {each.waits.name}" for each in group.processes if each.waits is not None]
        assert not blocked, f"nothing goes on: {blocked}"
        for process in group.processes:
            if process.finished:
                weights = process.training.memory.objects.weights
                assert weights is not None, f"{process} has ended torn"
                assert [step for step, _ in weights] == list(range(self.steps)), f"{process} has ended with {weights}"
        return len([each for each in group.processes if each.finished]), group.faults

    def extent(self, state: Moment) -> int:
        return state.base.iteration


def _memory(memory: Any) -> Hashable:
    marks = (
        (each and (each.stamp, each.rank, each.row, each.due, each.rows))
        for each in (memory.pending, memory.passed, memory.beginning)
    )
    return memory.objects and memory.objects.state(), memory.version, memory.torn, *marks


def _rows(kept: Iterable[Kept]) -> Iterator[Any]:
    for each in kept:
        for mark in (each.memory.pending, each.memory.passed, each.memory.beginning):
            yield from (mark.row, *(mark.rows or ())) if mark is not None else ()
