"""The keys of a job in the rendezvous store. Pure.

nodes                how many nodes have joined so far; a node's number is one less when it joins
inbox                how many messages were sent to the coordinator so far
inbox/<n>            the n-th of them, from 1
decision/<n>         the n-th decision for all nodes, from 1
lease/<node>         a counter that a node moves while it lives
endpoint             where the store of in-process restart listens
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RendezvousKeys"]


@dataclass(frozen=True)
class RendezvousKeys:
    """The keys of one job.

    Args:
        run_id: the job's name.
    """

    run_id: str

    @property
    def nodes(self) -> str:
        """The counter of nodes."""
        return self._key("nodes")

    @property
    def inbox(self) -> str:
        """The counter of messages to the coordinator."""
        return self._key("inbox")

    @property
    def endpoint(self) -> str:
        """Where the store of in-process restart listens."""
        return self._key("endpoint")

    @property
    def in_use(self) -> str:
        """Set when a rank has connected to the store of in-process restart."""
        return self._key("in-use")

    def message(self, number: int) -> str:
        """A message to the coordinator."""
        return self._key(f"inbox/{number}")

    def decision(self, number: int) -> str:
        """A decision."""
        return self._key(f"decision/{number}")

    def lease(self, node: int) -> str:
        """A node's lease."""
        return self._key(f"lease/{node}")

    def _key(self, name: str) -> str:
        return f"nvrx-rendezvous/{self.run_id}/{name}"
