"""The way of a checked member into a further call: the shipped `Join`, one operation on the store at a time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from nvrx_core.errors import StoreLost
from nvrx_core.inprocess.protocol.join import BY, Join, Joined
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.progress.stage import Stage

from . import requests

if TYPE_CHECKING:
    from .member import Member

__all__ = ["Entering", "NotMet", "incarnation_of", "terms_of"]


class NotMet(Exception):
    """The members have not met; it says by which verdict."""


def incarnation_of(member: int) -> str:
    """What tells a member's process from every other one; the same in each call."""
    return f"host/{member}/1"


def terms_of(member: int) -> str:
    """What must agree between the members."""
    return json.dumps({BY: f"rank {member}"})


class _JoinPort:
    """The operations of a member's `Join`, of which the checker carries out each.

    Args:
        entering: notes what is claimed.
    """

    def __init__(self, entering: Entering) -> None:
        self.entering = entering

    def claim(self, generation: int, incarnation: str) -> Awaitable[str]:
        self.entering.claimed = generation + 1
        return requests.JoinOperation("claim", (generation, incarnation))

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return lambda *args: requests.JoinOperation(name, args)


class Entering:
    """The way in of one member.

    Args:
        member: the member; its flows begin when it has joined the others.

    Attributes:
        claimed: the generation that it has claimed, or is about to claim; as on its page.
        joined: the one that it has joined, likewise; 0 for none.
    """

    def __init__(self, member: Member) -> None:
        self.member = member
        self.claimed = self.joined = 0
        port, size, mine = _JoinPort(self), member.config.ranks, member.member
        self.flow = Join(port, port, size, incarnation_of(mine), terms=terms_of(mine), unique=True)

    async def run(self) -> Any:
        """Join the others, and go on with the call.

        Raises:
            NotMet: they do not meet.
            StoreLost: the process that hosts the store has ended.
        """
        await requests.BeginCall()
        try:
            end = await self.flow.run()
        except StoreFailure:
            raise StoreLost("node0", 1) from None
        if not isinstance(end, Joined):
            raise NotMet(type(end).__name__)
        self.joined = end.generation + 1
        self.member.stage = Stage.STARTING
        self.member.begin()
        return await self.member.flow.run()
