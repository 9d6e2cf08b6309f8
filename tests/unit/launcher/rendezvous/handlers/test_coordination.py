"""What a node says of a hang under a handler of the user's: it stays on the node, which judges by its own ranks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from nvrx_launcher.rendezvous.handlers.coordination import HandlerCoordination
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, MessageKind
from nvrx_launcher.rendezvous.parameters import Rules


def test_evidence_and_verdict_of_a_hang_come_back_to_the_node_in_its_loop() -> None:
    said, posted = list[object](), list[Callable[[], object]]()
    node: Any = SimpleNamespace(
        decided=said.append, evidence_received=lambda *hang: said.append(hang), coordinator_lost=print
    )
    mailbox: Any = SimpleNamespace(post=posted.append)
    more: dict[str, Any] = {"describe": print, "control": None, "interval": 1.0}
    handler: Any = None
    coordination = HandlerCoordination(
        handler, mailbox, node, rules=Rules(2, 2, 0), close_timeout=0.0, **more
    )  # fmt: skip
    coordination.tell(MessageKind.HANG_SUSPECTED, 3, "")
    coordination.share_evidence(3, "hang", "reports", 2)
    coordination.gather_evidence([0, 1], list, said.append)
    coordination.tell(MessageKind.HANG_JUDGED, 3, "verdict")
    assert not said
    for call in posted:
        call()
    assert said == [
        Decision(DecisionKind.HANG_SUSPECTED, 3, "", node=0), (3, "hang"), [b"reports", b"reports"],
        Decision(DecisionKind.HANG_JUDGED, 3, "verdict", node=0),
    ]  # fmt: skip
