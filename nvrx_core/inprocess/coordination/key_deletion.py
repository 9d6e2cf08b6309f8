"""Deletion of keys: those of a round that is no longer read, and all keys of a completed call."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from nvrx_core.inprocess.coordination.arrivals import Arrivals
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore, guard
from nvrx_core.inprocess.coordination.membership import LEFT
from nvrx_core.inprocess.protocol.decision import Decision
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.protocol.retention import JOINING, kept_after_call
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks
from nvrx_core.store.keys import LauncherKeys, StoreKeys

__all__ = ["KeyDeletion"]


class KeyDeletion:
    """Deletes the keys of a call, if the store can.

    Args:
        store: the connection.
        keys: the keys of the call.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys, self._arrivals = store, keys, Arrivals(store, keys)

    def delete_round(self, iteration: int, members: int, *, read_late: bool = False) -> None:
        """Delete the keys of a round that is no longer read.

        The user's keys are found in a list of all keys of the store, which is read only if there are any.

        Args:
            iteration: the round.
            members: the initial number of members.
            read_late: keep what a late reader reads.
        """
        round_keys = self.keys.round(iteration)
        prefix, stay = f"{round_keys.prefix}/", frozenset(round_keys.read_late if read_late else ())
        with suppress(StoreFailure):
            if self.store.forget(prefix, stay):
                return
        self._delete(self._of_round(iteration, members), stay)
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
            released = set(filter(self._is_released, {member for decision in decisions for member in decision.lost}))
            rounds = frozenset[int]().union(*(kept_after_call(decision, released) for decision in decisions))
            late = (key for k in rounds for key in self.keys.round(k).read_late)
            joining = [self.keys.verdict(self.keys.generation)] if JOINING in rounds else []
            return frozenset((self.keys.kept(), *joining, *late))

    def _is_released(self, member: InitialRank) -> bool:
        """Whether another member wrote that this one left; so it counts, too, if the mark is being deleted already."""
        return self.store.try_get(self.keys.left(member)) != LEFT.encode()

    def _decisions(self, iteration: int) -> Iterator[Decision]:
        """Read the decisions of a completed call; only those of the last rounds if the store cannot list its keys."""
        decision = re.compile(f"{re.escape(self.keys.prefix)}/(-?[0-9]+)/decision")
        listed = map(decision.fullmatch, self.store.listed(f"{self.keys.prefix}/"))
        for k in sorted({*_last_rounds(iteration), *(int(found[1]) for found in listed if found)}):
            text = self.store.try_get(self.keys.round(k).decision)
            if text is not None:
                yield Decision.decode(text)

    def _beside(self) -> Iterable[str]:
        """Return the call's keys outside of a generation: those for the launcher, and the verdict on this generation.

        The verdicts on earlier generations stay: they keep a later start from the claims of the killed ones.
        """
        keys = self.keys
        launcher = LauncherKeys(keys.job, keys.call)
        return (launcher.announce(), launcher.entered(), keys.verdict(keys.generation))

    def _of_round(self, iteration: int, members: int) -> Iterable[str]:
        return (*self.keys.round(iteration).of_all, *self._arrivals.keys_of(iteration, members))

    def _of_call(self, iteration: int, members: int) -> Iterable[str]:
        """Return all keys of a call that was completed in this iteration, except those of rounds deleted already."""
        keys = self.keys
        rounds = (key for ended in _last_rounds(iteration) for key in self._of_round(ended, members))
        of_members = (key(member) for key in (keys.lease, keys.left, keys.claim) for member in initial_ranks(members))
        return (*rounds, *of_members, keys.gone(), keys.over(), keys.claims(), keys.terms())


def _last_rounds(iteration: int) -> list[int]:
    """Return the rounds of a call, completed in this iteration, that were not deleted while it ran."""
    return sorted({-1, *range(max(-1, iteration - 2), iteration + 1)})
