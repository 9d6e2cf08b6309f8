"""The messages of nodes to the coordinator of the job, and its decisions; JSON on the wire. Pure.

A cycle is one run of all workers. Its number is the same on all nodes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from nvrx_core.parsing import MAX_PORT, integer, number, parse_object, string

__all__ = ["NODES_WAIT", "Decision", "DecisionKind", "Member", "Message", "MessageKind", "NodeDescription"]

NODES_WAIT: Final = "more nodes wait to join"
"""The end of the reason for which a cycle of a rendezvous handler is stopped without a fault."""
MAX_WORKERS = 1 << 12
STOP_TIMEOUT: Final = 120.0
"""Seconds that a node has to stop its workers whose description does not state them."""
MAX_RECORDS: Final = 16
MAX_RECORD: Final = 300
"""Records of the kernel in a message, and characters of each."""


class MessageKind(enum.Enum):
    """The kind of a node's message."""

    READY = "ready"  # its workers are not running; it can take part in a cycle
    FAILED = "failed"  # a worker of it has failed, and the cycle with it
    NO_PROGRESS = "no progress"  # the same, before the first step
    UNHEALTHY = "unhealthy"  # a worker of it has failed; the others go on
    ALL_FAILED = "all failed"  # all its workers have failed, and whether the job goes on without them is asked
    MISUSED = "misused"  # all its workers have exited with code 2 before the first step of the first cycle
    DONE = "done"  # all its workers are done
    STORE_LOST = "store lost"  # the store of in-process restart, which it hosts, is lost, and the cycle with it
    STOP = "stop"  # a rank has asked that the job ends
    LEFT = "left"  # it takes part no more
    HANG_SUSPECTED = "hang suspected"  # a rank monitor of it is about to end its rank; the reason names the hang
    HANG_EVIDENCE = "hang evidence"  # all nodes have written what their ranks show of the hang: the last one says so
    HANG_JUDGED = "hang judged"  # who is to blame; from the launcher of the coordinator


@dataclass(frozen=True)
class NodeDescription:
    """A node.

    Attributes:
        host: its name.
        address: the address at which other nodes reach it.
        port: a free port, for the workers to meet at when it has the first rank.
        workers: how many it starts.
        order: its rank according to the infrastructure; -1 for none.
        command: the command of its workers; empty where commands are not compared.
        stops_within: seconds from the decision to stop a cycle after which it is given up unless it has stopped.
        given: the options that its launcher was given and whose values are the job's, with their values.
        domain: the NVLink domain of its GPUs, where segments are asked for; empty for none.
        iteration: that of the last checkpoint, where it is to be read; -1 for unknown.
    """

    host: str
    address: str
    port: int
    workers: int
    order: int = -1
    command: str = ""
    stops_within: float = STOP_TIMEOUT
    given: tuple[tuple[str, str], ...] = ()
    domain: str = ""
    iteration: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return the wire format."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        return cls(
            string(data.get("host")), string(data.get("address")), integer(data.get("port"), 1, MAX_PORT),
            integer(data.get("workers"), 1, MAX_WORKERS), integer(data.get("order"), -1),
            string(data.get("command", "")), float(number(data.get("stops_within", STOP_TIMEOUT))),
            tuple((string(name), string(value)) for name, value in data.get("given", ())),
            string(data.get("domain", "")), integer(data.get("iteration", -1), -1),
        )  # fmt: skip


@dataclass(frozen=True)
class Message:
    """A node's message.

    Attributes:
        node: its number, assigned when it joined.
        kind: its kind.
        cycle: the cycle that it is about; for READY the last one that the node knows of, -1 for none.
        reason: for people.
        description: with READY.
        records: with READY and LEFT, what the node's kernel has recorded in the cycle of its GPUs and workers.
    """

    node: int
    kind: MessageKind
    cycle: int = -1
    reason: str = ""
    description: NodeDescription | None = None
    records: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the wire format."""
        records = [each[:MAX_RECORD] for each in self.records[-MAX_RECORDS:]]
        description = None if self.description is None else self.description.to_json()
        return {
            "node": self.node, "kind": self.kind.value, "cycle": self.cycle, "reason": self.reason,
            "description": description, "records": records,
        }  # fmt: skip

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        data = parse_object(text)
        description = data.get("description")
        return cls(
            integer(data.get("node"), 0), MessageKind(data.get("kind")), integer(data.get("cycle"), -1),
            string(data.get("reason")), None if description is None else NodeDescription.from_json(description),
            _records(data.get("records", [])),
        )  # fmt: skip


def _records(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"not a list of texts: {value!r:.100}")
    return tuple(string(each)[:MAX_RECORD] for each in value[-MAX_RECORDS:])


class DecisionKind(enum.Enum):
    """The kind of a decision."""

    RUN = "run"  # the workers of a cycle are started
    STOP = "stop"  # the workers of a cycle are stopped
    END = "end"  # the job is over
    LOST = "lost"  # a node is no longer in the job; one that lives after all stops its workers, and may join again
    REFUSE = "refuse"  # a node may not join
    NOTE = "note"  # for people: some nodes log it
    WARNING = "warning"  # the same, of something that may be a mistake
    HANG_SUSPECTED = "hang suspected"  # the nodes write what their ranks show of a hang, which the reason names
    HANG_JUDGED = "hang judged"  # who is to blame for it: the reason is the encoded verdict


@dataclass(frozen=True)
class Member:
    """A node that takes part in a cycle, and the global rank of its first worker."""

    node: int
    first_rank: int
    workers: int


@dataclass(frozen=True)
class Decision:
    """A decision, for all nodes.

    Attributes:
        kind: what is decided.
        cycle: the cycle that it is about.
        reason: for people.
        code: with END, the exit code of all launchers; with REFUSE, that of one.
        node: with LOST and REFUSE, the node; with HANG_SUSPECTED and HANG_JUDGED, the one that says so.
        store: with RUN, the endpoint of the store of in-process restart.
        members: with RUN, the nodes that take part, by their rank; all others are spares. With NOTE and WARNING, those
            that log it.
        master_addr, master_port: with RUN, the rendezvous endpoint of the workers.
        active_hosts, spare_hosts: with RUN, the hosts of the members and of the spares, in Slurm's notation.
    """

    kind: DecisionKind
    cycle: int
    reason: str
    code: int = 0
    members: tuple[Member, ...] = ()
    master_addr: str = ""
    master_port: int = 0
    node: int = -1
    store: str = ""
    active_hosts: str = ""
    spare_hosts: str = ""

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return sum(member.workers for member in self.members)

    def to_json(self) -> dict[str, Any]:
        """Return the wire format."""
        members = [[member.node, member.first_rank, member.workers] for member in self.members]
        return {**vars(self), "kind": self.kind.value, "members": members}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        members = tuple(Member(*(integer(part, 0) for part in member)) for member in data.get("members", ()))
        return cls(
            DecisionKind(data.get("kind")), integer(data.get("cycle"), 0), string(data.get("reason")),
            integer(data.get("code"), 0), members, string(data.get("master_addr")), integer(data.get("master_port"), 0),
            integer(data.get("node", -1), -1), string(data.get("store", "")),
            string(data.get("active_hosts", "")), string(data.get("spare_hosts", "")),
        )  # fmt: skip
