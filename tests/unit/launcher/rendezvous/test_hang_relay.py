"""What the coordinator hands on of a hang: one question for all that suspect it, and each verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nvrx_launcher.rendezvous.hang_relay import ONE_HANG, HangRelay
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Message, MessageKind


def suspects(node: int, cycle: int = 0) -> Message:
    return Message(node, MessageKind.HANG_SUSPECTED, cycle, f"{cycle}:{node}")


def received(relay: HangRelay, message: Message, *, cycle: int = 0, now: float = 0.0) -> tuple[Decision, ...]:
    """Return what follows, where node 0 runs the coordinator."""
    return relay.received(message, cycle=cycle, judge=0, now=now)


def test_of_many_nodes_that_suspect_a_hang_the_first_one_counts() -> None:
    relay = HangRelay()
    assert received(relay, suspects(1), now=1.0) == (Decision(DecisionKind.HANG_SUSPECTED, 0, "0:1", node=1),)
    assert received(relay, suspects(2), now=1.1) == ()
    assert len(received(relay, suspects(2, 1), cycle=1, now=1.2)) == 1
    assert received(relay, suspects(1, 1), cycle=1, now=1.3) == ()
    assert len(received(relay, suspects(1, 1), cycle=1, now=1.2 + ONE_HANG)) == 1


@pytest.mark.parametrize("cycle", [0, 2])
def test_what_is_of_another_cycle_is_dropped(cycle: int) -> None:
    judged = Message(0, MessageKind.HANG_JUDGED, cycle, "text")
    assert received(HangRelay(), judged, cycle=1) == received(HangRelay(), suspects(1, cycle), cycle=1) == ()


def test_the_verdict_of_the_coordinators_launcher_is_handed_on_and_no_other() -> None:
    judged = Message(0, MessageKind.HANG_JUDGED, 3, "text")
    expected = (Decision(DecisionKind.HANG_JUDGED, 3, "text", node=0),)
    assert received(HangRelay(), judged, cycle=3) == expected
    assert received(HangRelay(), replace(judged, node=1), cycle=3) == ()


def test_what_is_too_long_is_not_handed_on() -> None:
    assert received(HangRelay(), Message(0, MessageKind.HANG_JUDGED, 0, "x" * ((1 << 16) + 1))) == ()


@pytest.mark.parametrize("kind", [MessageKind.HANG_EVIDENCE, MessageKind.FAILED])
def test_nothing_else_is(kind: MessageKind) -> None:
    assert received(HangRelay(), Message(0, kind, 0, "text")) == ()
