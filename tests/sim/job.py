"""A small job as the checker sees it: what may strike, and a state of the whole as a value.

Machines, actions and store records are numbers of `numbers.Tables`, so that a state is cheap to compare and to keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.decision import Arrival, Standing
from nvrx_core.inprocess.fault import Fault

__all__ = ["Config", "Job", "Rank", "Step", "arrival_of", "end", "end_monitor", "fault_of"]

# What a rank's main thread is about; it has ended in the last three.
RUNNING, TELLING, COMPLETE, BARRIER = "running", "telling", "complete", "barrier"
QUITTING, DECIDED, MEETING, NOWHERE = "quitting", "decided", "meeting", "nowhere"
ERRING, LEAVING = "erring", "leaving"
FINISHED, LEFT, SPENT, DEAD = "finished", "left", "spent", "dead"
OVER: Final = (FINISHED, LEFT, SPENT, DEAD)
# What its monitor process is about.
WATCHES, SPEAKS, BURIES, ENDED, GONE = "watches", "speaks", "buries", "ended", "gone"


@dataclass(frozen=True)
class Config:
    """One job to explore: how many of each trouble may strike, anywhere and at any time.

    Attributes:
        ranks: how many members.
        crashes: processes that die, their monitor process living on.
        nodes: processes that die together with their monitor process.
        faults: exceptions of the function.
        leaves: exceptions by which a member leaves the job.
        hangs: soft timeouts, announced by the monitor process of a member that lives.
        kills: monitor processes killed and replaced between two operations.
        suspicions: times that a sibling takes a living member for dead.
        atomic: members that may be in atomic sections.
        ghosts: whether a dead process's last operation may reach the store late.
        discards: (iteration, member): whom the rank assignment discards.
        errors: (iteration, member): on whom alone the rank assignment fails.
        quits: timeouts of a barrier or a completion, however short.
        limit: how many restarts without progress there may be; 0 for any number.
        asks: whether the ranks ask the store where to meet; else the decision tells.
    """

    ranks: int
    crashes: int = 0
    nodes: int = 0
    faults: int = 0
    leaves: int = 0
    hangs: int = 0
    kills: int = 0
    suspicions: int = 0
    atomic: int = 0
    ghosts: bool = False
    discards: tuple[tuple[int, int], ...] = ()
    errors: tuple[tuple[int, int], ...] = ()
    quits: int = 0
    limit: int = 0
    asks: bool = False

    def budget(self) -> tuple[int, ...]:
        return (
            self.crashes, self.nodes, self.faults, self.leaves, self.hangs, self.kills, self.suspicions, self.quits,
        )  # fmt: skip

    def __str__(self) -> str:
        given = {name: value for name, value in vars(self).items() if value}
        return ", ".join(f"{name}={value}" for name, value in given.items())


CRASH, NODE, FAULT, LEAVE, HANG, KILL, SUSPICION, QUIT = range(8)


class Rank(NamedTuple):
    """One member; machines, actions and rounds by number.

    Attributes:
        at: what the main thread is about.
        round: the round of the monitor thread.
        own: the machine of the main thread where it is another one, else -1.
        queue: store operations that the main thread has to do.
        section: 0 before an atomic section, 1 in it, 2 after it.
        aborted: the abort is done.
        expelled: the monitor thread has ended, its round's decision being known.
        iteration: of the progress page.
        known: the last round whose lost members the progress page knows.
        rank, world: the wrapper's, of the iteration.
        fault: this member's own in this round.
        leaving: it leaves at the barrier.
        place: where its process group meets; "" in the first iteration.
        monitor: what the monitor process is about.
        obituary: the machine that it plays, else -1.
        words: its store operations.
        spoken: for whom it has spoken, and in which round last.
        failures: what the retry limit remembers, by number.
        ghost: the number of an operation of the dead process under way, and its iteration.
    """

    at: str
    round: int
    rank: int
    world: int
    queue: tuple[int, ...]
    own: int = -1
    section: int = 0
    aborted: bool = False
    expelled: bool = False
    iteration: int = -1
    known: int = -2
    fault: Fault | None = None
    leaving: bool = False
    place: str = ""
    monitor: str = WATCHES
    obituary: int = -1
    words: tuple[int, ...] = ()
    spoken: tuple[tuple[int, int], ...] = ()
    failures: int = 0
    ghost: tuple[int, int] | None = None


class Job(NamedTuple):
    """A state of the whole; records are those of rounds -1, 0, ..."""

    ranks: tuple[Rank, ...]
    records: tuple[int, ...]
    budget: tuple[int, ...]

    def rank(self, member: int, rank: Rank) -> Job:
        return self._replace(ranks=(*self.ranks[:member], rank, *self.ranks[member + 1 :]))

    def spend(self, trouble: int) -> Job:
        left = (*self.budget[:trouble], self.budget[trouble] - 1, *self.budget[trouble + 1 :])
        return self._replace(budget=left)


Step = tuple[str, Job]


def fault_of(member: int, rank: int, kind: Interruption) -> Fault:
    """A fault with nothing in it that differs from run to run."""
    return Fault(initial_rank=member, rank=rank, interruption=kind.name)


def arrival_of(member: int, rank: Rank, standing: Standing, place: str = "") -> Arrival:
    """The arrival that this rank would write now."""
    return Arrival(
        initial_rank=member, rank=rank.rank, standing=standing, world_size=rank.world, fault=rank.fault, place=place,
    )  # fmt: skip


def end(rank: Rank, at: str) -> Rank:
    """The rank when its call is over; a monitor process that is about something ends it first."""
    ended = rank._replace(
        at=at, queue=(), own=-1, aborted=False, expelled=False, fault=None, section=0, failures=0, place="",
    )  # fmt: skip
    return end_monitor(ended) if rank.monitor == WATCHES else ended


def end_monitor(rank: Rank) -> Rank:
    """The rank when its monitor process is over."""
    return rank._replace(monitor=ENDED, obituary=-1, words=(), spoken=())
