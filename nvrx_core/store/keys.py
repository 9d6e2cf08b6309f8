"""Every key of the control store, named in one place.

All keys of a call lie under `nvrx/<job>/<generation>/<call>/`, so that neither a second call, nor a restarted job, nor
another job on the same store reads what an earlier one wrote; those of a round lie under the round's iteration, for the
same reason. The ranks that enter a call agree on its generation by the verdicts under `nvrx/<job>/met/<call>/`. Keys
for a launcher, which does not know the generation, lie under `nvrx/<job>/inprocess/<call>/`.
"""

from __future__ import annotations

from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["LauncherKeys", "RoundKeys", "StoreKeys"]


class StoreKeys:
    """The keys of one call of a wrapped function.

    Args:
        job: the job's name; any text, used as it is.
        generation: the number that distinguishes the starts of a job, from 0.
        call: the number of this call in the process, from 0.
    """

    def __init__(self, job: str, generation: int, call: int) -> None:
        self.job, self.generation, self.call = job, generation, call
        self.prefix = f"nvrx/{job}/{generation}/{call}"

    def of(self, generation: int) -> StoreKeys:
        """The same call's keys in another generation."""
        return StoreKeys(self.job, generation, self.call)

    def verdict(self, generation: int) -> str:
        """The verdict on the generation: all have met in it, or have moved on to the next; outlives its other keys."""
        return f"nvrx/{self.job}/met/{self.call}/{generation}"

    def claim(self, member: InitialRank) -> str:
        """The incarnation of a rank that is a member in this generation."""
        return f"{self.prefix}/claim/{member}"

    def terms(self) -> str:
        """The terms that must be equal on all ranks, as written by the first one in this generation."""
        return f"{self.prefix}/terms"

    def claims(self) -> str:
        """The number of counted claims."""
        return f"{self.prefix}/claims"

    def round(self, iteration: int) -> RoundKeys:
        """The keys of one round of the call."""
        return RoundKeys(f"{self.prefix}/{iteration}")

    def lease(self, member: InitialRank) -> str:
        """A member's lease: a counter that its monitor process increments."""
        return f"{self.prefix}/lease/{member}"

    def survey(self, number: int | None = None) -> str:
        """The result of a survey of the leases; without a number, the last survey started, and by which member."""
        return f"{self.prefix}/survey/{'last' if number is None else number}"

    def left(self, member: InitialRank) -> str:
        """Set when a member needs the store no longer."""
        return f"{self.prefix}/left/{member}"

    def gone(self) -> str:
        """The number of members that have left a completed call."""
        return f"{self.prefix}/gone"

    def over(self) -> str:
        """The iteration that was completed, once all that have completed it count as gone."""
        return f"{self.prefix}/over"

    def kept(self) -> str:
        """Set when a member of the call that was silent is lost: it may read its decision late."""
        return f"{self.prefix}/kept"


class RoundKeys:
    """The keys of one round of a call.

    Args:
        prefix: what all of them begin with, without the slash that follows.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.event = f"{prefix}/event"
        """What ended the round: its first fault, or its completion."""
        self.arrived = f"{prefix}/arrived"
        """How many arrivals were counted."""
        self.completed = f"{prefix}/completed"
        """How many members have completed the round."""
        self.decision = f"{prefix}/decision"
        """The round's one decision."""
        self.master = f"{prefix}/master"
        """Where the ranks of the round's process group meet: `host:port` of its rank 0, or "-" when that is lost."""
        self.user = f"{prefix}/user"
        """The prefix of the stores handed to the user; as a key, it is set when they may have keys."""

    def arrival(self, member: InitialRank) -> str:
        """A member's record at the round's barrier."""
        return f"{self.prefix}/arrival/{member}"

    def arrivals(self, block: int) -> str:
        """The records of a block of members at the round's barrier, where the store can append to a key."""
        return f"{self.prefix}/arrivals/{block}"

    @property
    def hang_reported(self) -> str:
        """How many reports of the hang that has ended the round were written: by ranks, and by monitor processes."""
        return f"{self.prefix}/hang/reported"

    @property
    def hang_judge(self) -> str:
        """The member that gives the verdict on the hang."""
        return f"{self.prefix}/hang/judge"

    def hang_report(self, member: InitialRank) -> str:
        """A member's report of the hang."""
        return f"{self.prefix}/hang/report/{member}"

    def hang_reports(self, block: int) -> str:
        """The reports of a block of members, where the store can append to a key."""
        return f"{self.prefix}/hang/reports/{block}"

    @property
    def read_late(self) -> tuple[str, ...]:
        """The keys by which a member learns how the round ended; it does not read the others any more."""
        return self.event, self.decision, self.master

    @property
    def of_all(self) -> tuple[str, ...]:
        """All keys of the round but the arrivals, the user's and those of a hang."""
        return *self.read_late, self.arrived, self.completed


class LauncherKeys:
    """The keys by which a launcher learns of a call: under no generation, because a launcher does not know it.

    Args:
        job: the job's name.
        call: the number of this call in the process, from 0.
    """

    def __init__(self, job: str, call: int) -> None:
        self._prefix = f"nvrx/{job}/inprocess/{call}"

    def announce(self) -> str:
        """The announcement that this call runs, with the minimum number of ranks with which it continues."""
        return f"{self._prefix}/announce"

    def entered(self) -> str:
        """The round that was entered last."""
        return f"{self._prefix}/round"
