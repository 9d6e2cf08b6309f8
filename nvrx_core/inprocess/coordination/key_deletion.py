"""Deletion of keys: those of a round that is no longer read, and all keys of a completed call."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from nvrx_core.inprocess.coordination.arrivals import Arrivals
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore, guard
from nvrx_core.inprocess.protocol.decision import Decision
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.inprocess.protocol.retention import rounds_read_late
from nvrx_core.rank_assignment.identity import initial_ranks
from nvrx_core.store.keys import LauncherKeys, StoreKeys, kept

__all__ = ["KeyDeletion"]


class KeyDeletion:
    """Deletes a call's keys, where the store can.

    Args:
        store: the connection.
        keys: the call's keys.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys, self._arrivals = store, keys, Arrivals(store, keys)

    def delete_round(self, iteration: int, members: int, *, read_late: bool = False) -> None:
        """Delete the keys of a round that is no longer read.

        The user's are found in a list of all keys of the store, so it is asked for that only if there are any.

        Args:
            iteration: the round.
            members: how many there were at first.
            read_late: its event and decision stay.
        """
        prefix, stay = f"{self.keys.prefix}/{iteration}/", self._read_late([iteration] if read_late else [])
        with suppress(StoreFailure):
            if not read_late and self.store.forget(prefix):
                return
        self.store.delete(key for key in self._of_round(iteration, members) if key not in stay)
        if self.store.delete([self.keys.user(iteration)]):
            self.store.delete(key for key in self.store.listed(prefix) if key not in stay)

    def count_out(self, iteration: int, living: int, members: int) -> None:
        """Count this member as gone from the completed call; the last one deletes the call's keys.

        Args:
            iteration: the one that was completed.
            living: how many members completed it.
            members: how many there were at first.

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
        """Delete the call's keys, unless a member that left earlier, or its monitor process, still has to read some."""
        if not self.store.has([self.keys.left(member) for member in initial_ranks(members)]):
            return
        prefix = f"{self.keys.prefix}/"
        if self.store.has([kept(self.keys)]):
            stay = self._read_late(self._rounds_read_late(iteration))
            self.store.delete(key for key in self._of_call(iteration, members) if key not in stay)
        elif not self.store.forget(prefix):
            self.store.delete(self.store.listed(prefix) or self._of_call(iteration, members))
        self.store.delete(self._beside())

    def _rounds_read_late(self, iteration: int) -> Iterable[int]:
        """Return which of the last rounds of a completed call are read late; earlier ones are left as they are."""
        found = ((k, self.store.try_get(self.keys.decision(k))) for k in _last_rounds(iteration)[:-1])
        with guard():
            return rounds_read_late(k for k, text in found if text is not None and Decision.decode(text).silent)

    def _read_late(self, rounds: Iterable[int]) -> frozenset[str]:
        return frozenset(key(k) for k in rounds for key in (self.keys.event, self.keys.decision))

    def _beside(self) -> Iterable[str]:
        """Return the call's keys outside of a generation: those for the launcher, and the verdict on this generation.

        The verdicts on earlier generations stay: they keep a later start from the claims of the killed ones.
        """
        keys = self.keys
        launcher = LauncherKeys(keys.job, keys.call)
        return (launcher.announce(), launcher.entered(), keys.verdict(keys.generation))

    def _of_round(self, iteration: int, members: int) -> Iterable[str]:
        return (*self.keys.round(iteration), *self._arrivals.keys_of(iteration, members))

    def _of_call(self, iteration: int, members: int) -> Iterable[str]:
        """Return all keys of a call that was completed in this iteration, except those of rounds deleted already."""
        keys = self.keys
        rounds = (key for ended in _last_rounds(iteration) for key in self._of_round(ended, members))
        of_members = (key(member) for key in (keys.lease, keys.left, keys.claim) for member in initial_ranks(members))
        return (*rounds, *of_members, keys.gone(), keys.over(), kept(keys), keys.claims(), keys.terms())


def _last_rounds(iteration: int) -> list[int]:
    """Return the rounds of a call, completed in this iteration, that were not deleted while it ran."""
    return sorted({-1, *range(max(-1, iteration - 2), iteration + 1)})
