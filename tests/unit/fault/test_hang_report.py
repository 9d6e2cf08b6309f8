"""The report of a rank on a hang, on the wire."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from nvrx_core.collective import Collective
from nvrx_core.fault.hang_report import MAX_BYTES, HangReport, RankCondition, Waiting
from nvrx_core.fault.stack_text import Frame

REPORT = HangReport(
    rank=3, initial_rank=4, host="node7", pid=42, condition=RankCondition.HOLDS_GIL, waiting=Waiting.WAITS,
    place=Frame("/job/train.py", 88, "next_batch"), inner=Frame("queue.py", 171, "get"), wait="a lock", silent=12.5,
    stalled=False, collective=Collective("all_reduce", "0", "dp", 57, frozenset({0, 1, 2, 5}), frozenset({1})),
    begun={"0": 57, "dp": 2}, rendezvous=2, step=7, section="data", section_seconds=3.5, children=((412, "worker"),),
)  # fmt: skip


def test_a_report_survives_the_wire():
    assert HangReport.decode(REPORT.encode()) == REPORT
    least = HangReport(rank=0, initial_rank=0, begun={})
    assert HangReport.decode(least.encode()) == least


def test_unknown_fields_are_ignored():
    data = json.loads(REPORT.encode()) | {"of_a_later_version": [1]}
    assert HangReport.decode(json.dumps(data)) == REPORT


long = st.text(max_size=2000)
frames = st.none() | st.builds(Frame, long, st.integers(0, 10**6), long)
collectives = st.none() | st.builds(
    Collective, long, long, long, st.integers(0, 10**9), st.frozensets(st.integers(0, 10**6), max_size=400),
    st.frozensets(st.integers(0, 10**6), max_size=5),
)  # fmt: skip


@given(
    st.builds(
        HangReport, rank=st.integers(0, 10**6), initial_rank=st.integers(0, 10**6), host=long, place=frames,
        inner=frames, wait=long, section=long, collective=collectives,
        begun=st.dictionaries(long, st.integers(0, 10**9), max_size=50),
        children=st.lists(st.tuples(st.integers(1, 10**6), long), max_size=9).map(tuple),
    )
)  # fmt: skip
def test_a_report_is_bounded_and_says_who_and_where_it_is(report):
    text = report.encode()
    assert len(text) <= MAX_BYTES
    assert "\n" not in text
    read = HangReport.decode(text)
    assert (read.rank, read.condition, read.waiting) == (report.rank, report.condition, report.waiting)
    assert (read.place is None) == (report.place is None)
    assert (read.collective is None) == (report.collective is None)


BROKEN = {
    "no object": "[1]",
    "not JSON": "{",
    "no rank": "{}",
    "a negative rank": {"rank": -1},
    "a condition": {"condition": "odd"},
    "a frame": {"place": ["a", 1]},
    "a collective": {"collective": ["all_reduce"]},
    "children": {"children": [["x", "y"]]},
    "groups": {"begun": []},
    "a text": {"host": 7},
}


def test_the_members_of_a_large_group_are_left_out_before_what_tells_more():
    scattered = Collective("all_reduce", "0", number=57, ranks=frozenset(range(0, 5000, 2)))
    read = HangReport.decode(replace(REPORT, collective=scattered).encode())
    assert read.collective == replace(scattered, ranks=frozenset())
    assert (read.begun, read.inner, read.place) == ({"0": 57}, REPORT.inner, REPORT.place)


def test_the_least_of_a_report_fits_in_any_case():
    long = Frame("\u20ac" * 999, 1, "\u20ac" * 999)
    groups = {f"{number}{'x' * 290}": 1 for number in range(33)}
    report = replace(REPORT, place=long, inner=long, collective=None, begun=groups)
    read = HangReport.decode(report.encode())
    assert (read.begun, read.inner, read.place) == ({}, None, Frame(long.file[:300], 1, long.function[:300]))


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_malformed_is_an_error(what):
    broken = BROKEN[what]
    text = broken if isinstance(broken, str) else json.dumps(json.loads(REPORT.encode()) | broken)
    with pytest.raises(ValueError, match="not a report of a hang"):
        HangReport.decode(text)


def test_a_rank_without_a_report_is_taken_for_its_identity():
    """Its monitor does not know which rank it would be in the iteration."""
    assert (REPORT.placed(9, "node3").rank, REPORT.placed(9, "node3").initial_rank) == (REPORT.rank, 9)
    unknown = replace(REPORT, condition=RankCondition.UNKNOWN)
    assert unknown.placed(9, "node3") == replace(unknown, rank=9, initial_rank=9, host="node3")
