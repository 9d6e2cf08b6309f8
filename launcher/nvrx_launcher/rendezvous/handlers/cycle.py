"""One cycle in the store of a rendezvous handler: the messages of its nodes; used by one thread.

node/<rank>     a node that takes part
run             the decision to run, written by the node of rank 0
unhealthy, done how many nodes have lost a worker, or are done
claims          how many nodes have a reason to end the cycle; the first one writes it
verdict         the agreement that ends the cycle
in-use          the endpoint of the store of in-process restart, once a rank uses it
read, all-read  how many nodes have read the end of the job; set when all have

Only `set`, `get`, `add`, `check` and `wait` are used: a store of torch's `etcd` handler has no more.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Protocol

from nvrx_launcher.rendezvous.handlers.agreement import Agreement, JoiningNode, agree
from nvrx_launcher.rendezvous.messages import DecisionKind, MessageKind

__all__ = ["CycleStore", "HandlerCycle"]

COUNTED: Final = {
    MessageKind.UNHEALTHY: "unhealthy", MessageKind.DONE: "done", MessageKind.ALL_FAILED: "all-failed",
    MessageKind.MISUSED: "misused",
}  # fmt: skip


class CycleStore(Protocol):
    """The operations of a store that are used."""

    def set(self, key: str, value: str, /) -> object:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Wait for a value, and return it."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all of these keys are there."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> object:
        """Wait until all of these keys are there."""


class HandlerCycle:
    """A node's view of a cycle.

    Args:
        store: of this cycle.
        rank: the node's.
        size: the number of nodes.

    Attributes:
        verdict: the agreement that ends it; None until it is known.
    """

    def __init__(self, store: CycleStore, rank: int, size: int) -> None:
        self._store, self.rank, self.size = store, rank, size
        self._is_in_use = False
        self.verdict: Agreement | None = None

    def enter(self, mine: JoiningNode, *, master_addr: str, master_port: int, same_command: bool) -> Agreement:
        """Wait for all nodes; return the agreement to run the cycle, or why it cannot be run.

        The arguments, besides this node, are those of `agree`.
        """
        self._store.set(self._key(f"node/{self.rank}"), mine.to_text())
        if self.rank == 0:
            entrants = [JoiningNode.from_text(self._get(f"node/{rank}")) for rank in range(self.size)]
            agreed = agree(entrants, master_addr=master_addr, master_port=master_port, same_command=same_command)
            self._store.set(self._key("run"), agreed.to_text())
        agreed = Agreement.from_text(self._get("run"))
        if agreed.decision.kind is DecisionKind.END:
            self._take(agreed)
        return agreed

    def count(self, kind: MessageKind) -> int:
        """Count this node as unhealthy or as done; return how many nodes are."""
        return int(self._store.add(self._key(COUNTED[kind]), 1))

    def conclude(self, agreed: Agreement) -> None:
        """End the cycle, unless another node has ended it already."""
        if self.verdict is None and self._store.add(self._key("claims"), 1) == 1:
            self._store.set(self._key("verdict"), agreed.to_text())

    def look(self) -> Agreement | None:
        """Return the agreement that ends the cycle, once: when it is new."""
        if self.verdict is not None or not self._store.check([self._key("verdict")]):
            return None
        return self._take(Agreement.from_text(self._get("verdict")))

    def use_control(self, endpoint: str) -> None:
        """Announce to the other nodes that a rank uses the store of in-process restart."""
        self._store.set(self._key("in-use"), endpoint)

    def control_in_use(self) -> str:
        """Return the endpoint of that store, once, when a rank uses it."""
        if self._is_in_use or not self._store.check([self._key("in-use")]):
            return ""
        self._is_in_use = True
        return self._get("in-use").decode()

    def await_others(self, within: float) -> None:
        """Wait until all nodes have read that the job ends: one of them may host the store."""
        self._store.wait([self._key("all-read")], timedelta(seconds=within))

    def _take(self, agreed: Agreement) -> Agreement:
        self.verdict = agreed
        if agreed.decision.kind is DecisionKind.END and self._store.add(self._key("read"), 1) == self.size:
            self._store.set(self._key("all-read"), "")
        return agreed

    def _get(self, name: str) -> bytes:
        return self._store.get(self._key(name))

    def _key(self, name: str) -> str:
        return f"nvrx-launcher/{name}"
