"""A small job as the checker sees it: the faults that may be injected, and the whole state as a value.

Members, operations and store records are numbers, so that a state is cheap to compare and to keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["Config", "Job", "Step", "fault_of"]


@dataclass(frozen=True)
class Config:
    """One job to explore: how many faults of each kind may be injected, anywhere and at any time.

    Attributes:
        ranks: how many members.
        crashes: processes that die, their monitor process living on.
        nodes: processes that die together with their monitor process.
        faults: exceptions of the function.
        leaves: exceptions by which a member leaves the job.
        exits: members whose function exits with code 0.
        hangs: soft timeouts, announced by the monitor process of a member that lives.
        kills: monitor processes killed and replaced between two operations.
        suspicions: times that a sibling takes a living member for dead.
        atomic: members that may be in atomic sections.
        ghosts: whether a dead process's last operation may reach the store late.
        discards: (iteration, member): whom the rank assignment discards.
        errors: (iteration, member): on whom alone the rank assignment fails.
        fails: (plug-in, iteration, member): whose "keys", "initialize" or "recover" fails, and when.
        breaks: times that Ctrl-C interrupts a main thread that waits for the others.
        reports: whether it takes time to report a failure, in which the next Ctrl-C may come.
        quits: timeouts of a barrier or a completion, however short.
        limit: how many restarts without progress there may be; 0 for any number.
        asks: whether the ranks ask the store where to meet; else the decision tells.
        hosted: whether the process of member 0 hosts the store, which ends with it.
        second: whether those who have completed the call enter a second one.
        joins: whether the members enter the call one by one, and join the others by the store.
        whole: whether the job needs all its members: the rank assignment gives up when one is lost.
    """

    ranks: int
    crashes: int = 0
    nodes: int = 0
    faults: int = 0
    leaves: int = 0
    exits: int = 0
    hangs: int = 0
    kills: int = 0
    suspicions: int = 0
    atomic: int = 0
    ghosts: bool = False
    discards: tuple[tuple[int, int], ...] = ()
    errors: tuple[tuple[int, int], ...] = ()
    fails: tuple[tuple[str, int, int], ...] = ()
    breaks: int = 0
    reports: bool = False
    quits: int = 0
    limit: int = 0
    asks: bool = False
    hosted: bool = False
    second: bool = False
    joins: bool = False
    whole: bool = False

    def budget(self) -> tuple[int, ...]:
        return (
            self.crashes, self.nodes, self.faults, self.leaves, self.hangs, self.kills, self.suspicions, self.quits,
            self.exits, self.breaks,
        )  # fmt: skip

    def __str__(self) -> str:
        given = {name: value for name, value in vars(self).items() if value}
        return ", ".join(f"{name}={value}" for name, value in given.items())


CRASH, NODE, FAULT, LEAVE, HANG, KILL, SUSPICION, QUIT, EXIT, BREAK = range(10)


class Job(NamedTuple):
    """A state of the whole.

    Attributes:
        members: each by the number of `members.Members`.
        records: those of rounds -1, 0, ..., by number.
        budget: how many faults of each kind may still be injected.
        ghosts: for each member, an operation of its dead process under way: the number of that, and its round.
        gone: how many have counted themselves out of the completed call.
        over: all have.
        deleted: the call's keys were deleted, but for what is read late.
        keys: the call's keys but those of rounds, with their values, where one of two calls is explored.
    """

    members: tuple[int, ...]
    records: tuple[int, ...]
    budget: tuple[int, ...]
    ghosts: tuple[tuple[int, int] | None, ...]
    gone: int = 0
    over: bool = False
    deleted: bool = False
    keys: tuple[tuple[str, bytes], ...] = ()

    def member(self, member: int, number: int) -> Job:
        return self._replace(members=(*self.members[:member], number, *self.members[member + 1 :]))

    def ghost(self, member: int, ghost: tuple[int, int] | None) -> Job:
        return self._replace(ghosts=(*self.ghosts[:member], ghost, *self.ghosts[member + 1 :]))

    def spend(self, trouble: int) -> Job:
        left = (*self.budget[:trouble], self.budget[trouble] - 1, *self.budget[trouble + 1 :])
        return self._replace(budget=left)


Step = tuple[str, Job]


KILLED = 137


def fault_of(member: InitialRank, rank: int, kind: Interruption, exit_code: int = 0) -> FaultRecord:
    """A fault with nothing in it that differs from run to run; a process that dies was killed."""
    code = KILLED if kind is Interruption.TERMINATED else exit_code
    return FaultRecord(initial_rank=member, rank=rank, interruption=kind.name, exit_code=code)
