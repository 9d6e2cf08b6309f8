"""Deletion of keys, and the work of rank 0 for all ranks, off the critical path of a restart.

Rank 0 reports each round that is entered to the launcher, and deletes the keys of rounds that are no longer read; the
last rank deletes all keys of a completed call.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

from nvrx_core.fault.interruption import Interruption
from nvrx_core.inprocess.coordination.arrivals import Arrivals
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore, guard
from nvrx_core.inprocess.coordination.hang_reports import HangReports
from nvrx_core.inprocess.coordination.membership import LEFT
from nvrx_core.inprocess.protocol.decision import JOINING, RoundDecision, kept_after_call, kept_in_call
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.state import State
from nvrx_core.progress.page import Page
from nvrx_core.rank_assignment.identity import initial_ranks
from nvrx_core.settings.environment import launcher_socket
from nvrx_core.store.keys import LauncherKeys, StoreKeys

__all__ = ["Housekeeping", "KeyDeletion"]


class KeyDeletion:
    """Deletes the keys of a call, if the store can.

    Args:
        store: the connection.
        keys: the keys of the call.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys, self._arrivals = store, keys, Arrivals(store, keys)
        self._hangs = HangReports(store, keys)

    def delete_round(self, iteration: int, members: int, *, read_late: bool = False, hung: bool = False) -> None:
        """Delete the keys of a round that is no longer read.

        The user's keys are found in a list of all keys of the store, which is read only if there are any.

        Args:
            iteration: the round.
            members: the initial number of members.
            read_late: keep what a late reader reads.
            hung: a soft timeout has ended it, so that there are reports of a hang.
        """
        round_keys = self.keys.round(iteration)
        prefix, stay = f"{round_keys.prefix}/", frozenset(round_keys.read_late if read_late else ())
        with suppress(StoreFailure):
            if self.store.forget(prefix, stay):
                return
        self._delete(self._of_round(iteration, members, hung=hung), stay)
        if self.store.delete([round_keys.user]):
            self._delete(self.store.listed(prefix), stay)

    def count_out(self, iteration: int, living: int, members: int) -> None:
        """Count this member out of the completed call; the last one deletes the call's keys.

        Args:
            iteration: the completed one.
            living: the number of members that completed it.
            members: the initial number of members.

        Raises:
            StoreFailure: when the store fails.
        """
        if self.store.count(self.keys.gone()) >= living:
            self.store.put(self.keys.over(), str(iteration))
            self._delete_unread(iteration, members)

    def delete_if_over(self, members: int) -> None:
        """Delete the keys of a completed call, when a member exits that has not completed it.

        Raises:
            StoreFailure: when the store fails.
        """
        with guard():
            iteration = self.store.try_get(self.keys.over())
            if iteration is not None:
                self._delete_unread(int(iteration), members)

    def _delete_unread(self, iteration: int, members: int) -> None:
        """Delete the call's keys, unless a member that left earlier, or its monitor process, still has to read some.

        The claims are deleted before the marks of members that have left, as `Membership.has_left` expects, so the keys
        are sorted. Keys that silent members may read late stay. Several members may do this at a time: the mark for
        late readers is deleted last, and each of them checks for it before it deletes anything.
        """
        if not self._have_left(members):
            return
        prefix, stay = f"{self.keys.prefix}/", self._read_late(iteration)
        if not self._have_left(members):
            return
        if not self.store.forget(prefix, stay):
            found = self.store.listed(prefix) or self._of_call(iteration, members)
            self._delete(sorted(found), stay)
        self._delete(self._beside(), stay)
        self.store.delete([self.keys.kept()])

    def _have_left(self, members: int) -> bool:
        return self.store.has([self.keys.left(member) for member in initial_ranks(members)])

    def _delete(self, keys: Iterable[str], stay: Collection[str]) -> None:
        self.store.delete(key for key in keys if key not in stay)

    def _read_late(self, iteration: int) -> frozenset[str]:
        """Return the keys of a completed call that may be read late, and the mark for them."""
        if not self.store.has([self.keys.kept()]):
            return frozenset()
        with guard():
            decisions = list(self._decisions(iteration))
            lost = {member for decision in decisions for member in decision.lost}
            # marked by another member; so it counts, too, if the mark is being deleted already
            released = {member for member in lost if self.store.try_get(self.keys.left(member)) != LEFT.encode()}
            rounds = frozenset[int]().union(*(kept_after_call(decision, released) for decision in decisions))
            late = (key for k in rounds for key in self.keys.round(k).read_late)
            joining = [self.keys.verdict(self.keys.generation)] if JOINING in rounds else []
            return frozenset((self.keys.kept(), *joining, *late))

    def _decisions(self, iteration: int) -> Iterator[RoundDecision]:
        """Read the decisions of a completed call; only those of the last rounds if the store cannot list its keys."""
        decision = re.compile(f"{re.escape(self.keys.prefix)}/(-?[0-9]+)/decision")
        listed = map(decision.fullmatch, self.store.listed(f"{self.keys.prefix}/"))
        for k in sorted({*_last_rounds(iteration), *(int(found[1]) for found in listed if found)}):
            text = self.store.try_get(self.keys.round(k).decision)
            if text is not None:
                yield RoundDecision.decode(text)

    def _beside(self) -> Iterable[str]:
        """Return the call's keys outside of a generation: those for the launcher, and the verdict on this generation.

        The verdicts on earlier generations stay: they keep a later start from the claims of the killed ones. For a
        launcher, so does the round that was entered last: it names the lost ranks, about which the launcher may ask
        only when the others have completed.
        """
        keys = self.keys
        launcher = LauncherKeys(keys.job, keys.call)
        entered = () if launcher_socket() is not None else (launcher.entered(),)
        return (launcher.announce(), *entered, keys.verdict(keys.generation))

    def _of_round(self, iteration: int, members: int, *, hung: bool) -> Iterable[str]:
        hangs = self._hangs.keys_of(iteration, members) if hung else ()
        return (*self.keys.round(iteration).of_all, *self._arrivals.keys_of(iteration, members), *hangs)

    def _of_call(self, iteration: int, members: int) -> Iterable[str]:
        """Return all keys of a call that was completed in this iteration, except those of rounds deleted already."""
        keys = self.keys
        rounds = (key for ended in _last_rounds(iteration) for key in self._of_round(ended, members, hung=True))
        of_members = (key(member) for key in (keys.lease, keys.left, keys.claim) for member in initial_ranks(members))
        return (*rounds, *of_members, keys.gone(), keys.over(), keys.claims(), keys.terms())


def _last_rounds(iteration: int) -> list[int]:
    """Return the rounds of a call, completed in this iteration, that were not deleted while it ran."""
    return sorted({-1, *range(max(-1, iteration - 2), iteration + 1)})


KEPT: Final = 2
"""Rounds whose keys may still be read when a further one has ended."""


class Housekeeping:
    """The housekeeping of a rank; only rank 0 has any.

    Args:
        deletion: the deletion of keys, on a connection that no wait blocks.
        page: the rank's progress page, which names the members that are lost.
        least: the minimum number of ranks with which the call continues.
        defer: runs work soon, in a thread that no restart waits for.
    """

    def __init__(
        self, deletion: KeyDeletion, page: Page, least: int, defer: Callable[[Callable[[], None]], None]
    ) -> None:
        self.deletion, self.page, self.least = deletion, page, least
        self._defer = defer
        self._announced = self._over = False
        self._entered: int | None = None
        self._read_late = self._hung = frozenset[int]()
        self._telling = threading.Lock()

    def entered(self, state: State) -> None:
        """Record that an iteration has started."""
        if state.active_rank == 0:
            self._entered = state.iteration
            self._defer(self._tell)

    def decided(self, rank: int, decision: RoundDecision) -> None:
        """Record that a round has ended, in which this rank was `rank`."""
        self._read_late |= kept_in_call(decision)
        if decision.cause is not None and decision.cause.interruption == Interruption.SOFT_TIMEOUT.name:
            self._hung |= {decision.iteration}
        ended = decision.iteration - KEPT
        if rank == 0 and ended >= 0:
            read_late, hung = ended in self._read_late, ended in self._hung
            size = self.page.world_size
            self._defer(lambda: self.deletion.delete_round(ended, size, read_late=read_late, hung=hung))

    def close(self) -> None:
        """Tell of a round without lost ranks, if that is due, and stop: the call's keys may be deleted from now on."""
        if len(self.page.members()) < self.page.world_size:
            self._tell()
        with self._telling:
            self._over = True

    def _tell(self) -> None:
        store, generation = self.deletion.store, self.deletion.keys.generation
        keys = LauncherKeys(self.deletion.keys.job, self.deletion.keys.call)
        lost = sorted(set(range(self.page.world_size)) - self.page.members())
        announcement = json.dumps({"generation": generation, "min_world_size": self.least, "pid": os.getpid()})
        with self._telling, suppress(StoreFailure):
            iteration, self._entered = self._entered, None
            if iteration is not None and not self._over:
                entered = json.dumps({"generation": generation, "iteration": iteration, "lost": lost})
                if not self._announced:
                    store.put(keys.announce(), announcement)
                store.put(keys.entered(), entered)
                self._announced = True
