"""The round's store operations: what the machines ask for, carried out on a torch store.

Used by a rank and by its monitor process alike. Whatever goes wrong with the store comes out as `StoreFailure`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

import torch.distributed as dist

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.arrivals import BATCH, Arrivals, batches
from nvrx_core.inprocess.protocol.decision import Decision, decode_event, encode_completion
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.inprocess.protocol.round import (
    Announce,
    Answer,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    Publish,
    PutArrival,
    ReadArrivals,
    ReadEvent,
    StoreAction,
)
from nvrx_core.liveness.peer_progress import PeerProgress
from nvrx_core.parsing import address
from nvrx_core.store.keys import StoreKeys

__all__ = ["FOREVER", "ControlStore", "StoreFailure"]

FOREVER: Final = timedelta(days=365)
NOTHING: Final = "-"
"""No key has this text as its value, but `master`, where it says the same."""
SURVEY_WITHIN: Final = timedelta(seconds=2)


@contextmanager
def _guard() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError, ValueError) as error:
        raise StoreFailure((str(error).splitlines() or [repr(error)])[0]) from error


class ControlStore:
    """One connection to the store, and what a round does with it.

    Args:
        store: a connection of its own; a blocking call on it holds up every other.
        keys: the call's keys.
        chunk: how long a wait blocks at most before it looks at `stopped`; None for a store whose socket can be cut
            instead.
    """

    def __init__(self, store: dist.Store, keys: StoreKeys, chunk: timedelta | None = None) -> None:
        self.store, self.chunk = store, chunk
        self.keys, self.stopped = keys, False

    @property
    def keys(self) -> StoreKeys:
        """The call's keys; those of another generation once the ranks have agreed on one."""
        return self._keys

    @keys.setter
    def keys(self, keys: StoreKeys) -> None:
        self._keys, self._arrivals = keys, Arrivals(self.store, keys)

    def perform(self, action: StoreAction, iteration: int) -> Answer:
        """Carry out one operation of a round's machine; returns what to tell the machine.

        Raises:
            StoreFailure: when the store fails, or holds what nobody of ours has written.
        """
        with _guard():
            return self._perform(action, iteration)

    def _perform(self, action: StoreAction, k: int) -> Answer:
        keys = self.keys
        match action:
            case Announce(fault):
                return "announced", _event(self._once(keys.event(k), fault.encode()), fault)
            case CountCompletion():
                return "completion_counted", self.store.add(keys.completed(k), 1)
            case CloseCompleted():
                self._once(keys.event(k), encode_completion())
            case ReadEvent():
                return "event", decode_event(self._peek(keys.event(k)))
            case PutArrival(arrival):
                self._arrivals.put(k, arrival)
            case CountArrival():
                return "arrival_counted", self.store.add(keys.arrived(k), 1)
            case ReadArrivals(members):
                return "arrivals_read", self._arrivals.read(k, members), self._told_first(k)
            case Publish(decision):
                self._once(keys.decision(k), decision.encode())
            case _:
                raise AssertionError(action)
        return None

    def _once(self, key: str, value: str) -> bytes:
        """Write the value unless the key has one; returns what it has."""
        return bytes(self.store.compare_set(key, "", value))

    def _peek(self, key: str) -> bytes:
        """What the key has, or `NOTHING`; in one exchange, where `get` takes two, for it waits for the key first."""
        return bytes(self.store.compare_set(key, NOTHING, NOTHING))

    def _told_first(self, iteration: int) -> FaultRecord | None:
        """The fault that is the round's event; None while there is none, and of one that cannot be read."""
        key = self.keys.event(iteration)
        if not self.store.check([key]):  # a look at the key itself would end the others' waits for it
            return None
        return _event(self._peek(key), None)

    def announce(self, iteration: int, fault: FaultRecord) -> None:
        """Write the fault of a member that lives as the round's event, unless it has one."""
        self.perform(Announce(fault), iteration)

    def wait_event(self, iteration: int) -> None:
        """Block until the round has its event."""
        with _guard():
            for _ in self._waits(self.keys.event(iteration), FOREVER):
                return

    def has_event(self, iteration: int) -> bool:
        """Whether the round has its event; ends no wait for it."""
        with _guard():
            return bool(self.store.check([self.keys.event(iteration)]))

    def wait_decision(self, iteration: int, timeout: timedelta = FOREVER) -> Decision:
        """Block until the round has its decision."""
        with _guard():
            decision = Decision.decode(self._wait(self.keys.decision(iteration), timeout))
            if decision.iteration != iteration:
                raise ValueError(f"the decision of round {iteration} is of round {decision.iteration}")
            return decision

    def decision(self, iteration: int) -> Decision | None:
        """The round's decision, None while it has none."""
        with _guard():
            text = self._peek(self.keys.decision(iteration))
            return None if text == NOTHING.encode() else Decision.decode(text)

    def _wait(self, key: str, timeout: timedelta) -> bytes:
        return next(text for _ in self._waits(key, timeout) if (text := self._arrived(key)) is not None)

    def _waits(self, key: str, timeout: timedelta) -> Iterator[None]:
        """Wait for the key, over and over: yields whenever the store says that it is there."""
        while self.chunk is None:
            self.store.wait([key], timeout)
            yield
        while not self.stopped:
            try:
                self.store.wait([key], self.chunk)
            except (dist.DistStoreError, TimeoutError):
                continue
            yield
        raise StoreFailure("the wait was stopped")

    def _arrived(self, key: str) -> bytes | None:
        """What a key has after a wait for it; None when it is not there.

        torch's server ends the waits for a key at each `compare_set` of it, also at one that writes nothing. The event
        of a round is waited for without a look at it: nobody may `compare_set` one that is not there without writing.
        """
        text = self._peek(key)
        if text == NOTHING.encode():
            return self._peek(key) if self.store.check([key]) else None
        return text

    def set_master(self, iteration: int, address: str) -> None:
        """Say where the round's process group meets; "": nowhere, its rank 0 is lost."""
        with _guard():
            if address:
                self.store.set(self.keys.master(iteration), address)
            else:
                self._once(self.keys.master(iteration), NOTHING)

    def master(self, iteration: int) -> tuple[str, int] | None:
        """Where the round's process group meets, once its rank 0 has said so; None when that rank is lost."""
        with _guard():
            text = self._wait(self.keys.master(iteration), FOREVER)
            return None if text == NOTHING.encode() else address(text)

    def move_lease(self, member: int, before: str, lease: str) -> str:
        """Show that the member lives, in one exchange with the store; returns what the lease says now.

        Args:
            member: whose lease it is.
            before: what it said last; when that is not so, nothing is written.
            lease: what it is to say.
        """
        with _guard():
            found = bytes(self.store.compare_set(self.keys.lease(member), before, lease))
            if not found.isascii():  # no lease: a stranger's
                self.store.set(self.keys.lease(member), lease)
                return lease
            return found.decode()

    def leases(self, members: Iterable[int]) -> dict[int, str]:
        """The leases of those members that have one."""
        with _guard():
            return dict(pair for part in batches(list(members)) for pair in self._leases(part))

    def _leases(self, members: list[int]) -> Iterator[tuple[int, str]]:
        keys = [self.keys.lease(member) for member in members]
        together = len(keys) > 1 and self.store.check(keys)
        values = self.store.multi_get(keys) if together else map(self._peek, keys)
        for member, value in zip(members, values, strict=True):
            if (lease := bytes(value).decode(errors="replace")) != NOTHING:
                yield member, lease

    def slowest(self, members: frozenset[int], me: int) -> PeerProgress:
        """Where the slowest members are.

        When thousands ask at the same time, as they do when all wait for one rank, one of them reads the leases of all
        and tells the others: each takes the first survey that ends after it has asked.
        """
        if len(members) <= BATCH:
            return PeerProgress.of(self.leases(members))
        key, late = self.keys.survey(), ""
        with _guard():
            for _ in range(3):
                last = self._peek(key).decode()
                number = 0 if last == NOTHING else int(last.partition("/")[0])
                if last in (NOTHING, late) or self.store.check([self.keys.survey(number)]):
                    number += 1
                    mine = f"{number}/{me}"
                    if self.store.compare_set(key, last.removeprefix(NOTHING), mine) == mine.encode():
                        return self._survey(number, members)
                try:
                    self.store.wait([self.keys.survey(number)], SURVEY_WITHIN)
                    return PeerProgress.decode(self._peek(self.keys.survey(number)))
                except (dist.DistStoreError, TimeoutError):
                    late = self._peek(key).decode()
        raise StoreFailure("nobody ends a survey")

    def _survey(self, number: int, members: frozenset[int]) -> PeerProgress:
        found = PeerProgress.of(self.leases(members))
        self.store.set(self.keys.survey(number), found.encode())
        self._delete([self.keys.survey(number - 2)])
        return found

    def holders(self, iteration: int, members: frozenset[int], me: int) -> Mapping[int, int]:
        """The members that are in an atomic section of this round, with the beats of their leases.

        None where the store cannot tell.
        """
        try:
            return self.slowest(members - {me}, me).holding(iteration)
        except StoreFailure:
            return {}

    def leave(self, member: int) -> None:
        """Say that the member needs the store no longer."""
        with _guard():
            self.store.set(self.keys.left(member), "1")
            self.store.check([self.keys.left(member)])

    def has_left(self, member: int) -> bool:
        """Whether the member has said so."""
        with _guard():
            return bool(self.store.check([self.keys.left(member)]))

    def have_left(self, members: list[int]) -> bool:
        """Whether all of these members have said so."""
        with _guard():
            return all(self.store.check([self.keys.left(m) for m in part]) for part in batches(members))

    def wait_left(self, members: Iterable[int], timeout: timedelta = FOREVER) -> None:
        """Block until all these members have left."""
        keys = [self.keys.left(member) for member in members]
        with _guard():
            if keys:
                self.store.wait(keys, timeout)

    def put_once(self, key: str, value: str) -> str:
        """Write the value unless the key has one; returns what it has."""
        with _guard():
            return self._once(key, value).decode()

    def peek(self, key: str) -> str | None:
        """What the key has now."""
        with _guard():
            text = self._peek(key)
            return None if text == NOTHING.encode() else text.decode()

    def has(self, keys: list[str]) -> bool:
        """Whether all the keys exist."""
        with _guard():
            return all(self.store.check(part) for part in batches(keys))

    def count(self, key: str) -> int:
        """Add one to a counter; returns the sum."""
        with _guard():
            return self.store.add(key, 1)

    def wait(self, key: str) -> str:
        """Block until the key has a value; returns it."""
        with _guard():
            return self._wait(key, FOREVER).decode()

    def count_out(self, iteration: int, living: int, members: int) -> None:
        """Count this member as gone from the completed call; the last one deletes the call's keys.

        Args:
            iteration: the one that was completed.
            living: how many members completed it.
            members: how many there were at first.
        """
        with _guard():
            if self.store.add(self.keys.gone(), 1) >= living:
                self.store.set(self.keys.over(), str(iteration))
                self._delete_unread(iteration, members)

    def delete_if_over(self, members: int) -> None:
        """Delete the keys of a call that is completed, on the way out of a member that has not completed it."""
        with _guard():
            iteration = self._peek(self.keys.over())
            if iteration != NOTHING.encode():
                self._delete_unread(int(iteration), members)

    def _delete_unread(self, iteration: int, members: int) -> None:
        """Delete the call's keys, unless a member that left earlier, or its monitor process, has yet to read some."""
        if not self.have_left(list(range(members))):
            return
        prefix = f"{self.keys.prefix}/"
        if not self._forgets(prefix):
            self._delete(self._listed(prefix) or self._rest(iteration, members))
        self._delete(self.keys.beside())

    def tell_launcher(self, announcement: str, entered: str) -> None:
        """Say which round was entered, and what there is to know of the call; an empty announcement is left out."""
        with _guard():
            if announcement:
                self.store.set(self.keys.announce(), announcement)
            self.store.set(self.keys.entered(), entered)

    def delete_round(self, iteration: int, members: int) -> None:
        """Delete the keys of a round that nobody reads any more, where the store can.

        The user's are found in a list of all keys of the store, so it is asked for that only if there are any.
        """
        prefix = f"{self.keys.prefix}/{iteration}/"
        with suppress(RuntimeError, OSError):
            if self._forgets(prefix):
                return
        self._delete(self._round(iteration, members))
        if self._delete([self.keys.user(iteration)]):
            self._delete(self._listed(prefix))

    def _forgets(self, prefix: str) -> bool:
        """Delete all keys that begin with `prefix` at once; False where the store cannot."""
        forget = getattr(self.store, "forget", None)
        return forget is not None and bool(forget(prefix))

    def _listed(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`; none where the store does not list its keys."""
        list_keys = getattr(self.store, "list_keys", None)
        try:
            return [key for key in list_keys() if key.startswith(prefix)] if list_keys is not None else []
        except (RuntimeError, OSError):
            return []

    def _round(self, iteration: int, members: int) -> Iterable[str]:
        return (*self.keys.round(iteration), *self._arrivals.keys_of(iteration, members))

    def _rest(self, iteration: int, members: int) -> Iterable[str]:
        """All keys of a call that was completed in this iteration, save those of rounds that are deleted meanwhile."""
        keys, rounds = self.keys, sorted({-1, *range(max(-1, iteration - 2), iteration + 1)})
        kept = (key for ended in rounds for key in self._round(ended, members))
        of_members = (key(member) for key in (keys.lease, keys.left, keys.claim) for member in range(members))
        return (*kept, *of_members, keys.gone(), keys.over(), keys.claims())

    def _delete(self, keys: Iterable[str]) -> bool:
        """Delete the keys, where the store can; whether there was one of them."""
        try:
            return sum(map(self.store.delete_key, keys)) > 0
        except (RuntimeError, OSError):
            return False


def _event(text: bytes, otherwise: FaultRecord | None) -> FaultRecord | None:
    """The event; `otherwise` for one that cannot be read, which is no completion."""
    try:
        return decode_event(text)
    except ValueError:
        return otherwise
