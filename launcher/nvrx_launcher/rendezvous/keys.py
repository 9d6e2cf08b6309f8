"""The keys of a job in the rendezvous store. Pure.

nodes                how many nodes have joined so far; a node's number is one less when it joins
lease/<node>         a counter that a node increments while it lives
progress/<node>      how far the ranks of a node are, and of the whole job (-1)
pace/<node>          the section times of the ranks of a node
hang                 the name of the last hang that was suspected, which begins with its cycle
hang/<node>          what the ranks of a node show of a hang: its name, and a line for each rank
hang-written/<name>  how many nodes have written that
inbox, inbox/<n>     how many messages were sent to the coordinator so far; the n-th of them, from 1
instance             tells this store from another one that is started at its place without these keys
leader               the current term: whose launcher runs the coordinator
decision/<n>         the n-th decision, for all nodes, from 1; written once
state/<n>/<term>     the state of the coordinator of a term at that decision
in-use, in-use/<n>   how many stores of in-process restart were taken into use so far; the endpoint of the n-th
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RendezvousKeys", "job_prefix"]


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

    def progress(self, node: int) -> str:
        """The progress of a node's ranks; -1 for the slowest ranks of the job."""
        return self._key(f"progress/{node}")

    def pace(self, node: int) -> str:
        """The section times of a node's ranks."""
        return self._key(f"pace/{node}")

    @property
    def last_hang(self) -> str:
        """The name of the last hang."""
        return self._key("hang")

    def evidence(self, node: int) -> str:
        """What a node's ranks show of a hang."""
        return self._key(f"hang/{node}")

    def evidence_count(self, hang: str) -> str:
        """The counter of nodes that have written what their ranks show of a hang."""
        return self._key(f"hang-written/{hang}")

    @property
    def inbox(self) -> str:
        """The counter of messages to the coordinator."""
        return self._key("inbox")

    @property
    def instance(self) -> str:
        """What tells the store from another one."""
        return self._key("instance")

    @property
    def leader(self) -> str:
        """The current term."""
        return self._key("leader")

    @property
    def in_uses(self) -> str:
        """The counter of stores of in-process restart."""
        return self._key("in-use")

    def in_use(self, number: int) -> str:
        """A store of in-process restart that a rank has connected to."""
        return self._key(f"in-use/{number}")

    def state(self, number: int, term: int) -> str:
        """The state of the coordinator of a term at a decision."""
        return self._key(f"state/{number}/{term}")

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
        return f"{job_prefix(self.run_id)}{name}"


def job_prefix(run_id: str) -> str:
    """Return what all keys of a job begin with, and those of no other job, whatever their names."""
    return f"nvrx-rendezvous/{run_id.replace('%', '%25').replace('/', '%2F')}/"
