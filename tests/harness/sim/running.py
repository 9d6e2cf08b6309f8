"""A production flow in virtual time: each effect is carried out by its rule."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.inprocess.protocol.effects import Effect, Flow, ReportInternalError, StoreOperation

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["Rules", "Running", "Waits", "fail", "rules_of"]

Waits = Generator[Any, Any, Any]
Rule = Callable[[Any, Any], Any]
Rules = Mapping[type[Effect], tuple[int, Rule]]
"""For each effect, the kind of its rule, and the rule."""

AT_ONCE: Final = 0
WISH: Final = 1
WAITS: Final = 2


def rules_of(
    *,
    ignored: Iterable[type[Effect]],
    at_once: Mapping[type[Effect], Rule],
    wishes: Mapping[type[Effect], Rule],
    waits: Mapping[type[Effect], Rule],
) -> Rules:
    """The rules of a flow.

    Args:
        ignored: only the real shell does something.
        at_once: resumed with what the rule returns.
        wishes: the rule returns one wish of the world.
        waits: it is a generator of several.
    """
    rules: dict[type[Effect], tuple[int, Rule]] = dict.fromkeys(ignored, (AT_ONCE, _nothing))
    for how, kinds in ((AT_ONCE, at_once), (WISH, wishes), (WAITS, waits)):
        rules.update({kind: (how, rule) for kind, rule in kinds.items()})
    return rules


def _nothing(_: Rank, effect: Effect) -> None:
    """Only the real shell does something."""


def fail(_: Rank, effect: ReportInternalError) -> None:
    """Report an input that a machine does not have."""
    raise AssertionError(f"internal error: {effect.reason}")


class Running:
    """A flow that runs: store operations go to the world, other effects are carried out by their rules.

    Args:
        rank: whose it is.
        flow: has not begun.
        rules: of its effects.
        over: called at its end.
    """

    __slots__ = ("flow", "go_on", "over", "part", "rank", "rules")

    def __init__(self, rank: Rank, flow: Flow[Any], rules: Rules, over: Callable[[], None]) -> None:
        self.rank, self.flow, self.rules, self.over, self.go_on = rank, flow, rules, over, flow.send
        self.part: Waits | None = None

    def send(self, outcome: Any) -> Any:
        """Go on, up to the next wish of the world.

        Raises:
            StopIteration: at the end.
        """
        part, rules, rank, go_on = self.part, self.rules, self.rank, self.go_on
        if part is not None:
            try:
                return part.send(outcome)
            except StopIteration as end:
                self.part, outcome = None, end.value
        while True:
            try:
                effect = go_on(outcome)
            except StopIteration:
                self.over()
                raise
            kind = type(effect)
            if kind is StoreOperation:
                return effect
            how, rule = rules[kind]
            if how == AT_ONCE:
                outcome = rule(rank, effect)
            elif how == WISH:
                return rule(rank, effect)
            else:
                part = rule(rank, effect)
                try:
                    wish = part.send(None)
                except StopIteration as end:
                    outcome = end.value
                    continue
                self.part = part
                return wish

    def close(self) -> None:
        """End it where it is."""
        if self.part is not None:
            self.part.close()
        self.flow.close()
