"""The numbered decisions of a job in the store, as the coordinator of one term writes them.

Each number is written once, by the first writer. A coordinator whose number was written by somebody else is replaced:
everything that it has decided since then is void, so none of its later writes is carried out, nor is anything else that
it does for the job.
"""

from __future__ import annotations

from dataclasses import replace

from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.store_threads import Store
from nvrx_launcher.rendezvous.term import Checkpoint, Entry, Term

__all__ = ["DecisionLog"]


class DecisionLog:
    """The writes of a term; all are made in the request thread, and may be repeated when a connection breaks.

    Args:
        keys: the job's.
        term: the coordinator's.

    Attributes:
        term: as given.
        is_fenced: another coordinator has replaced this one.
    """

    def __init__(self, keys: RendezvousKeys, term: Term) -> None:
        self._keys, self.term, self.is_fenced = keys, term, False

    def write(self, store: Store, number: int, entry: Entry, checkpoint: Checkpoint) -> bool:
        """Write a decision and the state after it; return whether it is the job's."""
        if self.is_fenced:
            return False
        keys, term, text = self._keys, self.term, entry.to_text()
        if not term.hosts_store:  # nobody takes over from a coordinator that is lost with its store
            store.set(keys.state(number, term.number), checkpoint.to_text())
        self.is_fenced = store.compare_set(keys.decision(number), "", text).decode() != text
        if not self.is_fenced and not term.hosts_store:
            store.delete_key(keys.state(number - 1, term.number))
        return not self.is_fenced

    def resign(self, store: Store) -> None:
        """End the term, so that another launcher takes over at once; one that has replaced it keeps its term."""
        over = replace(self.term, is_over=True).to_text()
        store.compare_set(self._keys.leader, self.term.to_text(), over)

    def clear(self, store: Store, last: int) -> None:
        """End the job in a store that outlives it: its name can be used again.

        What a launcher needs that has yet to read the end stays, until the keys expire: the decisions, and what the
        next job of this name goes on from.

        Args:
            store: the store.
            last: the number of the last decision.
        """
        self.resign(store)
        forget, keys = getattr(store.store, "forget_except", None), self._keys
        if forget is not None and not self.is_fenced:
            decisions = [keys.decision(number) for number in range(self.term.since, last + 1)]
            forget("", [keys.leader, keys.instance, keys.nodes, keys.inbox, *decisions])
