"""The failures that nodes report of a cycle."""

from __future__ import annotations

import pytest
from nvrx_launcher.rendezvous import failure_reports
from nvrx_launcher.rendezvous.failure_reports import FailureReports
from nvrx_launcher.rendezvous.messages import Message, MessageKind, NodeDescription


def ready(node: int, host: str) -> Message:
    return Message(node, MessageKind.READY, description=NodeDescription(host, "10.0.0.1", 1, 2))


def test_failures_are_kept_in_the_order_in_which_they_arrive() -> None:
    reports = FailureReports({0: "a"})
    for message in (
        ready(1, "b"), Message(1, MessageKind.FAILED, 0, "rank 2"), Message(0, MessageKind.NO_PROGRESS, 0, "rank 0"),
        Message(1, MessageKind.DONE, 0), Message(0, MessageKind.LEFT, 0, "it was cut off"),
    ):  # fmt: skip
        reports.received(message)
    found = reports.of(0)
    assert found.hosts == {0: "a", 1: "b"}
    assert found.reports == ((1, "rank 2"), (0, "rank 0"))
    assert reports.of(1).reports == ()


def test_a_later_cycle_replaces_an_earlier_one_and_a_late_report_has_no_effect() -> None:
    reports = FailureReports({})
    for cycle in (1, 2, 1):
        reports.received(Message(0, MessageKind.FAILED, cycle, f"in cycle {cycle}"))
    assert (reports.of(1).reports, reports.of(2).reports) == ((), ((0, "in cycle 2"),))


def test_the_number_of_reports_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_reports, "MAX_REPORTS", 1)
    reports = FailureReports({})
    for node in (3, 4):
        reports.received(Message(node, MessageKind.UNHEALTHY, 0, "rank"))
    assert reports.of(0).reports == ((3, "rank"),)


def test_a_node_without_which_the_job_goes_on_is_not_to_blame() -> None:
    reports = FailureReports({})
    for message in (
        Message(1, MessageKind.ALL_FAILED, 3, "rank 2"), Message(0, MessageKind.ALL_FAILED, 3, "rank 0"),
        Message(1, MessageKind.DONE, 2), Message(2, MessageKind.DONE, 3),
    ):  # fmt: skip
        reports.received(message)
    assert reports.of(3).reports == ((1, "rank 2"), (0, "rank 0"))
    reports.received(Message(1, MessageKind.DONE, 3))
    reports.received(Message(2, MessageKind.FAILED, 3, "rank 5"))
    assert reports.of(3).reports == ((0, "rank 0"), (2, "rank 5"))


def test_what_the_kernels_of_nodes_have_recorded_is_that_of_the_cycle() -> None:
    reports = FailureReports({})
    for message in (
        Message(0, MessageKind.READY, 2, records=("Xid a",)), Message(1, MessageKind.READY, 2),
        Message(2, MessageKind.LEFT, 3, records=("Xid b", "Xid c")),
        Message(3, MessageKind.READY, 1, records=("Xid d",)),
    ):  # fmt: skip
        reports.received(message)
    assert reports.of(2).records == {0: ("Xid a",)}
    assert reports.of(3).records == {2: ("Xid b", "Xid c")}


def test_it_is_known_who_has_stopped() -> None:
    reports = FailureReports({})
    for message in (
        ready(0, "a"), Message(1, MessageKind.READY, 2), Message(2, MessageKind.LEFT, 3),
        Message(3, MessageKind.FAILED, 3),
    ):  # fmt: skip
        reports.received(message)
    assert reports.of(2).stopped == {1, 2}
    assert reports.of(3).stopped == {2}
