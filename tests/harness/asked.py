"""A port of a flow whose every method asks who drives the flow."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nvrx_core.flow import Flow

__all__ = ["Asked", "Asking", "ask", "drive"]

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Asked:
    """What a flow awaits: a method of a port, and its arguments."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __await__(self) -> Generator[Asked, Any, Any]:
        return (yield self)


def ask(name: str, *args: Any, **kwargs: Any) -> Asked:
    """A call of a port's method."""
    return Asked(name, args, kwargs)


class Asking:
    """The port."""

    def __getattr__(self, name: str) -> Callable[..., Asked]:
        return lambda *args, **kwargs: Asked(name, args, kwargs)


def drive(flow: Flow[Result], answer: Callable[[Request], object]) -> Result:
    """Run a flow to its end; what `answer` raises is raised in it."""
    outcome: object = None
    error: BaseException | None = None
    while True:
        try:
            asked = flow.throw(error) if error is not None else flow.send(outcome)
        except StopIteration as end:
            result: Result = end.value
            return result
        outcome, error = None, None
        try:
            outcome = answer(asked)
        except BaseException as raised:
            error = raised
