"""One cycle in the store that a rendezvous handler has handed out; what its nodes say there, all of it in one thread.

node/<rank>     a node that takes part
run             what is run, by the node of rank 0
unhealthy, done how many nodes have lost a worker, or are done
claims          who has a reason to end the cycle; the first one writes it
verdict         what ends the cycle
in-use          where the store of in-process restart listens, once a rank uses it
told, all-told  how many nodes have read the end of the job; all have

Only `set`, `get`, `add`, `check` and `wait` are used: a store of torch's `etcd` handler has no more.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Protocol

from nvrx_launcher.rendezvous.handlers.agreement import Agreement, Entrant, agree
from nvrx_launcher.rendezvous.messages import MessageKind, Verdict

__all__ = ["HandlerCycle", "Store"]

COUNTED: Final = {MessageKind.UNHEALTHY: "unhealthy", MessageKind.DONE: "done"}


class Store(Protocol):
    """What is used of a store."""

    def set(self, key: str, value: str, /) -> object:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value, once it is there."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all of these keys are there."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> object:
        """Wait until all of these keys are there."""


class HandlerCycle:
    """A node's view of a cycle.

    Args:
        store: of this cycle, or of several of them.
        prefix: of its keys, where the store is that of several cycles.
        rank: the node's.
        size: how many nodes there are.

    Attributes:
        verdict: what ends it, once that is known.
    """

    def __init__(self, store: Store, prefix: str, rank: int, size: int) -> None:
        self._store, self._prefix, self.rank, self.size = store, prefix, rank, size
        self._is_in_use = False
        self.verdict: Agreement | None = None

    def enter(self, mine: Entrant, master: tuple[str, int | None]) -> Agreement:
        """Wait for all nodes; returns what is run, or why nothing is."""
        self._store.set(self._key(f"node/{self.rank}"), mine.to_text())
        if self.rank == 0:
            entrants = [Entrant.from_text(self._get(f"node/{rank}")) for rank in range(self.size)]
            self._store.set(self._key("run"), agree(entrants, master).to_text())
        agreed = Agreement.from_text(self._get("run"))
        if agreed.decision.verdict is Verdict.END:
            self._take(agreed)
        return agreed

    def count(self, kind: MessageKind) -> int:
        """Take that this node is unhealthy, or done; returns how many are."""
        return int(self._store.add(self._key(COUNTED[kind]), 1))

    def conclude(self, agreed: Agreement) -> None:
        """End the cycle, unless another node has a reason already."""
        if self.verdict is None and self._store.add(self._key("claims"), 1) == 1:
            self._store.set(self._key("verdict"), agreed.to_text())

    def look(self) -> Agreement | None:
        """Return what ends the cycle, when it is new."""
        if self.verdict is not None or not self._store.check([self._key("verdict")]):
            return None
        return self._take(Agreement.from_text(self._get("verdict")))

    def use_control(self, endpoint: str) -> None:
        """Let the other nodes know that a rank uses the store of in-process restart."""
        self._store.set(self._key("in-use"), endpoint)

    def control_in_use(self) -> str:
        """Return where that store listens, once, when a rank uses it."""
        if self._is_in_use or not self._store.check([self._key("in-use")]):
            return ""
        self._is_in_use = True
        return self._get("in-use").decode()

    def await_others(self, within: float) -> None:
        """Wait until all nodes have read that the job ends: one of them may host the store."""
        self._store.wait([self._key("all-told")], timedelta(seconds=within))

    def _take(self, agreed: Agreement) -> Agreement:
        self.verdict = agreed
        if agreed.decision.verdict is Verdict.END and self._store.add(self._key("told"), 1) == self.size:
            self._store.set(self._key("all-told"), "")
        return agreed

    def _get(self, name: str) -> bytes:
        return self._store.get(self._key(name))

    def _key(self, name: str) -> str:
        return f"nvrx-launcher/{self._prefix}{name}"
