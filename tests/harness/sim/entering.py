"""The way of a checked member into a further call: the shipped `Join`, one operation on the store at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.errors import StoreLost
from nvrx_core.inprocess.protocol.join import BY, Claim, Conflicting, Expired, Join, Joined, Step, Superseded
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.progress.stage import Stage

from . import requests

if TYPE_CHECKING:
    from .member import Member

__all__ = ["Entering", "NotMet", "Told", "incarnation_of", "terms_of"]

ENDS: Final = Joined | Superseded | Conflicting | Expired


class NotMet(Exception):
    """The members have not met; it says by which verdict."""


def incarnation_of(member: int) -> str:
    """What tells a member's process from every other one; the same in each call."""
    return f"host/{member}/1"


def terms_of(member: int) -> str:
    """What must agree between the members."""
    return json.dumps({BY: f"rank {member}"})


class Told:
    """Stands for a `Join` that is told something: returns its name, and what it is told."""

    def __init__(self, member: int, world_size: int) -> None:
        self.incarnation, self.terms, self.world_size = incarnation_of(member), terms_of(member), world_size

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **named: (name, told, tuple(named.items()))


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

    async def run(self) -> Any:
        """Join the others, and go on with the call.

        Raises:
            NotMet: they do not meet.
            StoreLost: the process that hosts the store has ended.
        """
        await requests.BeginCall()
        try:
            end = await self._join()
        except StoreFailure:
            raise StoreLost("node0", 1) from None
        if not isinstance(end, Joined):
            raise NotMet(type(end).__name__)
        self.joined = end.generation + 1
        self.member.stage = Stage.STARTING
        self.member.begin()
        return await self.member.flow.run()

    async def _join(self) -> Step:
        member, size = self.member.member, self.member.config.ranks
        join = Join(size, incarnation_of(member), terms=terms_of(member), unique=True)
        step = join.start()
        while not isinstance(step, ENDS):
            if isinstance(step, Claim):
                self.claimed = step.generation + 1
            name, told, named = await requests.JoinOperation(step)
            step = getattr(join, name)(*told, **dict(named))
        return step
