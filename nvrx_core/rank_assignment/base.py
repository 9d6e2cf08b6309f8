"""The interface of a rank assignment: the state of a rank in, its state for the next iteration out.

A *rank* here is the wrapper's: 0 to `world_size` - 1 over all living ranks. The *active* ranks among them call the
wrapped function and see `active_rank` and `active_world_size` as RANK and WORLD_SIZE; the others wait in reserve. Every
rank computes its own assignment from the same facts, so an assignment must depend on nothing else.
"""

from __future__ import annotations

import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, cast

from nvrx_core.errors import RankDiscarded
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.rank_assignment.snapshot import Snapshot
from nvrx_core.values import value

__all__ = [
    "AssignmentState",
    "AssignmentStore",
    "FrozenState",
    "Mode",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "Snapshot",
]  # fmt: skip

_RANK_ON_ENTRY: Final = cast(InitialRank, None)


class Mode(enum.Enum):
    """The role of a rank in an iteration."""

    INITIALIZED = enum.auto()
    """The role is not assigned yet."""
    ACTIVE = enum.auto()
    """The rank calls the wrapped function."""
    INACTIVE = enum.auto()
    """The rank waits in reserve."""
    TERMINATED = enum.auto()
    """The rank exits."""


@value
class FrozenState:
    """An immutable copy of `AssignmentState`, as passed to the plug-ins.

    Attributes:
        rank: the wrapper's rank in this iteration.
        world_size: the number of living ranks.
        active_rank: RANK of the wrapped function, None for a rank that does not call it.
        active_world_size: the number of ranks that call the wrapped function.
        initial_rank: RANK on entry; identifies the rank for the whole call.
        initial_world_size: WORLD_SIZE on entry.
        iteration: how often the wrapped function was restarted.
        mode: the role of the rank in this iteration.
        fn_exception: the exception of the wrapped function on this rank, set only from finalize to health check; the
            same object, not a copy.
    """

    rank: int
    world_size: int
    active_rank: int | None
    active_world_size: int | None
    initial_rank: InitialRank
    initial_world_size: int
    iteration: int
    mode: Mode
    fn_exception: BaseException | None


@dataclass
class AssignmentState:
    """The state of one rank; its fields are those of `FrozenState`."""

    rank: int
    world_size: int
    active_rank: int | None = None
    active_world_size: int | None = None
    initial_rank: InitialRank = _RANK_ON_ENTRY
    initial_world_size: int = cast(int, None)
    iteration: int = 0
    mode: Mode = Mode.INITIALIZED
    fn_exception: BaseException | None = None

    def __post_init__(self) -> None:
        self.initial_rank = InitialRank(self.rank) if self.initial_rank is None else self.initial_rank
        self.initial_world_size = self.world_size if self.initial_world_size is None else self.initial_world_size

    def advance(self) -> None:
        """Advance to the next iteration."""
        self.iteration += 1
        self.fn_exception = None

    def unassign(self) -> None:
        """Clear the active fields, so that an assignment starts from the world size and not from the last round."""
        self.active_rank = self.active_world_size = None
        self.mode = Mode.INITIALIZED

    def freeze(self) -> FrozenState:
        """Return an immutable copy."""
        return FrozenState(**{field.name: getattr(self, field.name) for field in dataclasses.fields(FrozenState)})

    def copy_from(self, other: AssignmentState | FrozenState, fields: Iterable[str] | None = None) -> None:
        """Copy the named fields of `other`, by default all.

        Raises:
            ValueError: when a name is not a field.
        """
        known = {field.name for field in dataclasses.fields(FrozenState)}
        names = known if fields is None else set(fields)
        if names - known:
            raise ValueError(f"fields={sorted(names)}: must be among {sorted(known)}")
        for name in names:
            setattr(self, name, getattr(other, name))


class AssignmentStore(Protocol):
    """The store operations available to an assignment; the wrapper passes a torch store that is empty at first.

    The built-in assignments do not use the store as long as the keys that they need are sent with the barrier.
    """

    def set(self, key: str, value: str, /) -> object:
        """Write a value."""
        ...

    def get(self, key: str, /) -> bytes:
        """Wait for a key and read it."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter and return the sum."""
        ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> object:
        """Wait until all keys exist; raise RuntimeError after the timeout."""
        ...


@dataclass
class RankAssignmentCtx:
    """The argument and the result of an assignment.

    Attributes:
        state: this rank's state; the assignment changes it.
        store: the round's store, for assignments that exchange their own data.
        terminated_ranks: the ranks of the ended iteration that are excluded from the next one. A filter may add ranks;
            the assignment that renumbers the others leaves an empty set.
        snapshot: the facts of the ended iteration that are equal on all ranks; None in a context created by a user.
    """

    state: AssignmentState
    store: AssignmentStore
    terminated_ranks: set[int]
    snapshot: Snapshot | None = None


class RankAssignment(ABC):
    """A function that computes, on each rank, its rank in the next iteration."""

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({given})"

    @abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign.

        Args:
            ctx: this rank's state and the ranks that were lost.

        Returns:
            The context for the next assignment of the composition.

        Raises:
            RankDiscarded: when this rank is excluded from the next iteration.
        """


class RankFilter(RankAssignment):
    """A rank assignment that only chooses the active ranks; it runs after those that renumber the ranks."""
