"""What a rank assignment works on: a rank's state in, its state for the next iteration out.

A *rank* here is the wrapper's: 0 to `world_size` - 1 over all living ranks. The *active* ranks among them call the
wrapped function and see `active_rank` and `active_world_size` as RANK and WORLD_SIZE; the others wait in reserve. Every
rank computes its own answer from the same facts, so an assignment must depend on nothing else.
"""

from __future__ import annotations

import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, cast

from nvrx_core.errors import RankDiscarded
from nvrx_core.rank_assignment.snapshot import Snapshot

__all__ = [
    "AssignmentStore",
    "FrozenState",
    "Mode",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "Snapshot",
    "State",
]  # fmt: skip


class Mode(enum.Enum):
    """What a rank does in an iteration."""

    INITIALIZED = enum.auto()
    """Not decided yet."""
    ACTIVE = enum.auto()
    """It calls the wrapped function."""
    INACTIVE = enum.auto()
    """It waits in reserve."""
    TERMINATED = enum.auto()
    """It leaves."""


@dataclass(frozen=True)
class FrozenState:
    """A snapshot of `State`, as the plug-ins get it.

    Attributes:
        rank: the wrapper's rank in this iteration.
        world_size: how many ranks live.
        active_rank: RANK of the wrapped function, None for a rank that does not call it.
        active_world_size: how many ranks call it.
        initial_rank: RANK on entry; names the rank for its whole life.
        initial_world_size: WORLD_SIZE on entry.
        iteration: how often the wrapped function was restarted.
        mode: what the rank does in this iteration.
        fn_exception: what the wrapped function raised on this rank, from finalize to health check only; the
            same object, not a copy.
    """

    rank: int
    world_size: int
    active_rank: int | None
    active_world_size: int | None
    initial_rank: int
    initial_world_size: int
    iteration: int
    mode: Mode
    fn_exception: BaseException | None


@dataclass
class State:
    """The state of one rank; its fields are those of `FrozenState`."""

    rank: int
    world_size: int
    active_rank: int | None = None
    active_world_size: int | None = None
    initial_rank: int = cast(int, None)
    initial_world_size: int = cast(int, None)
    iteration: int = 0
    mode: Mode = Mode.INITIALIZED
    fn_exception: BaseException | None = None

    def __post_init__(self) -> None:
        self.initial_rank = self.rank if self.initial_rank is None else self.initial_rank
        self.initial_world_size = self.world_size if self.initial_world_size is None else self.initial_world_size

    def advance(self) -> None:
        """Go on to the next iteration."""
        self.iteration += 1
        self.fn_exception = None

    def unassign(self) -> None:
        """Forget who was active, so that an assignment starts from the world size and not from the round before."""
        self.active_rank = self.active_world_size = None
        self.mode = Mode.INITIALIZED

    def freeze(self) -> FrozenState:
        """A snapshot that does not change."""
        return FrozenState(**{field.name: getattr(self, field.name) for field in dataclasses.fields(FrozenState)})

    def copy_from(self, other: State | FrozenState, fields: Iterable[str] | None = None) -> None:
        """Take over the named fields of `other`, by default all.

        Raises:
            ValueError: when a name is no field.
        """
        known = {field.name for field in dataclasses.fields(FrozenState)}
        names = known if fields is None else set(fields)
        if names - known:
            raise ValueError(f"fields={sorted(names)}: must be among {sorted(known)}")
        for name in names:
            setattr(self, name, getattr(other, name))


class AssignmentStore(Protocol):
    """What an assignment may ask of the round's store; in the wrapper it is a torch store, empty at first.

    The built-in assignments ask nothing while the keys that they need travel in the barrier.
    """

    def set(self, key: str, value: str, /) -> object:
        """Write a value."""
        ...

    def get(self, key: str, /) -> bytes:
        """Wait for a key and read it."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Count up and read the sum."""
        ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> object:
        """Wait until all these keys are there; raises a RuntimeError when that takes too long."""
        ...


@dataclass
class RankAssignmentCtx:
    """What an assignment gets and returns.

    Attributes:
        state: this rank's state; the assignment changes it.
        store: the round's store, for assignments that exchange facts of their own.
        terminated_ranks: the ranks, of the iteration that ended, that have no place in the next. A filter may add to
            them; the assignment that renumbers the others leaves an empty set.
        snapshot: what all ranks know alike of the iteration that ended; None in a context of your own making.
    """

    state: State
    store: AssignmentStore
    terminated_ranks: set[int]
    snapshot: Snapshot | None = None


class RankAssignment(ABC):
    """Answers, on each rank, which rank it has in the next iteration."""

    @abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign.

        Args:
            ctx: this rank's state and the ranks that were lost.

        Returns:
            The context for the next assignment of the composition.

        Raises:
            RankDiscarded: when this rank has no place in the next iteration.
        """


class RankFilter(RankAssignment):
    """A rank assignment that only chooses who is active; it runs after those that renumber the ranks."""
