"""The actions of a node's launcher that change what runs on the node, each with its cause. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nvrx_launcher.rendezvous.messages import Decision, Member, MessageKind

__all__ = [
    "AwaitOthers",
    "AwaitRound",
    "Cause",
    "EndLaunch",
    "JoinAgain",
    "NodeAction",
    "SendMessage",
    "StartWorkers",
    "StopWorkers",
]


class Cause(enum.Enum):
    """The cause of an action."""

    DECISION = "decision"
    WORKER_FAILED = "worker failed"
    SIGNAL = "signal"
    STORE_LOST = "store lost"
    CUT_OFF = "cut off"
    EXCLUDED = "excluded"
    SURVIVED = "survived"


@dataclass(frozen=True)
class StartWorkers:
    """Start this node's workers, at this place of a decision."""

    decision: Decision
    group_rank: int
    place: Member

    @property
    def reason(self) -> str:
        """That of the decision."""
        return self.decision.reason


@dataclass(frozen=True)
class StopWorkers:
    """Send a signal to all workers, and kill those that are there after `grace` seconds; `inf` for a SIGKILL."""

    signum: int
    grace: float
    cause: Cause
    reason: str


@dataclass(frozen=True)
class SendMessage:
    """Send a message to the coordinator."""

    kind: MessageKind
    cycle: int
    reason: str = ""


@dataclass(frozen=True)
class EndLaunch:
    """End the launcher; its workers are gone."""

    code: int
    cause: Cause
    reason: str


@dataclass(frozen=True)
class AwaitRound:
    """Find out whether in-process restart continues without a rank; answer with `round_answered`."""

    rank: int


@dataclass(frozen=True)
class AwaitOthers:
    """Wait whether all workers refuse their command line; when these seconds are over, say so by `waited`."""

    cycle: int
    seconds: float


@dataclass(frozen=True)
class JoinAgain:
    """Join the job under another number, as soon as the store can be reached; answer with `joined`."""

    reason: str


NodeAction = AwaitOthers | JoinAgain | StartWorkers | StopWorkers | SendMessage | EndLaunch | AwaitRound
