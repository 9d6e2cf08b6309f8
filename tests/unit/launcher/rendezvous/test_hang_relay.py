"""What the coordinator hands on of a hang: one question for all that suspect it, and each verdict."""

from __future__ import annotations

import pytest
from nvrx_launcher.rendezvous.hang_relay import ONE_HANG, HangRelay
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Message, MessageKind


def suspects(node: int, cycle: int = 0) -> Message:
    return Message(node, MessageKind.HANG_SUSPECTED, cycle)


def test_of_many_nodes_that_suspect_a_hang_the_first_one_counts() -> None:
    relay = HangRelay()
    assert relay.received(suspects(1), now=1.0) == (Decision(DecisionKind.HANG_SUSPECTED, 0, "", node=1),)
    assert relay.received(suspects(2), now=1.1) == ()
    assert len(relay.received(suspects(2, 1), now=1.2)) == 1
    assert relay.received(suspects(1), now=1.3) == ()
    assert len(relay.received(suspects(1, 1), now=1.2 + ONE_HANG)) == 1


def test_a_verdict_is_handed_on() -> None:
    judged = Message(0, MessageKind.HANG_JUDGED, 3, "text")
    assert HangRelay().received(judged, now=0.0) == (Decision(DecisionKind.HANG_JUDGED, 3, "text", node=0),)


@pytest.mark.parametrize("kind", [MessageKind.HANG_EVIDENCE, MessageKind.FAILED])
def test_nothing_else_is(kind: MessageKind) -> None:
    assert HangRelay().received(Message(0, kind, 0, "text"), now=0.0) == ()
