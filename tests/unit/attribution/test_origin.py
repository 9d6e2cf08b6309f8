"""Where a line is from, by its prefixes and by the name of its file."""

from __future__ import annotations

import pytest

from nvrx_core.attribution.origin import MAX_LINE, Line, Origin, of_file, parse, seconds_of_year


def _one(raw: str, rank: int | None = None) -> Line:
    (line,) = parse("run.log", 7, raw, Origin(rank=rank))
    return line


@pytest.mark.parametrize(
    ("raw", "rank", "local", "host", "text"),
    [
        ("plain", None, None, None, "plain"),
        ("[default3]:[rank11]: oops", 11, 3, None, "oops"),
        ("[rank11]:[default3]: oops", 11, None, None, "oops"),
        ('[default0]:  File "a"', None, 0, None, '  File "a"'),
        ("[default0]: oops", None, 0, None, "oops"),
        ("3:   indented", 3, None, None, "  indented"),
        ("[1,3]<stderr>:oops", 3, None, None, "oops"),
        ("[2] oops", 2, None, None, "oops"),
        ("[rank1]: [2] oops", 1, None, None, "oops"),
        ("(rank 4) oops", 4, None, None, "oops"),
        ("Rank 11: found NaN", 11, None, None, "found NaN"),
        ("[Rank 5] Watchdog", 5, None, None, "Watchdog"),
        ("node2: [rank3]: oops", 3, None, "node2", "oops"),
        ("[n2:11234] oops", None, None, "n2", "oops"),
        ("n1:123:456 [3] NCCL WARN oops", None, None, "n1", "NCCL WARN oops"),
        ("Jun  3 02:11:07 node17 kernel: [74889.644112] NVRM: Xid", None, None, "node17", "NVRM: Xid"),
        ("2025-01-10T08:12:44.102 gpu3011 kernel: oops", None, None, "gpu3011", "oops"),
        ("2025-01-10T08:12:44.102 gpu3011 [rank7] oops", 7, None, "gpu3011", "oops"),
        ("(RayWorker pid=12, ip=10.0.0.1) oops", None, None, "10.0.0.1", "oops"),
        ("WARNING [ft_launcher host-b job-17] oops", None, None, "host-b", "oops"),
        ("yaml.scanner2.ScannerError: oops", None, None, None, "yaml.scanner2.ScannerError: oops"),
        ("10:00:01 oops", None, None, None, "oops"),
        ("\x1b[31m[rank2]\x1b[0m: oops", 2, None, None, "oops"),
        ("[rank99999999]: oops", None, None, None, "[rank99999999]: oops"),
        ("[rank9999999]: oops", None, None, None, "oops"),
        ('{"level": "error", "rank": 3, "host": "n4", "msg": "oops"}', 3, None, "n4", "oops"),
        ('{"local_rank": 1, "rank": true, "host": "a b", "message": "oops"}', None, 1, None, "oops"),
        ('{"rank": -1, "local_rank": -1, "log": "[rank2]: oops"}', 2, None, None, "oops"),
        ('{"x": 1}', None, None, None, '{"x": 1}'),
        ('{"initial_rank": 1, "event": "left", "host": "n1"}', 1, None, "n1", "left"),
        ("{not json}", None, None, None, "{not json}"),
        ("{'loss': 1.0}", None, None, None, "{'loss': 1.0}"),
    ],
)
def test_prefixes_say_where_a_line_is_from(
    raw: str, rank: int | None, local: int | None, host: str | None, text: str
) -> None:
    line = _one(raw)
    assert (line.origin.rank, line.origin.local, line.origin.host, line.text) == (rank, local, host, text)


@pytest.mark.parametrize(
    ("raw", "time"),
    [
        ("2024-01-02 00:00:01,5 x", 86_401.5),
        ("[2024-01-02 00:00:01.5] x", 86_401.5),
        ("W0102 00:00:01.500000 12 a/b.py:3] x", 86_401.5),
        ("[rank0]:[E102 00:00:01.5 ProcessGroupNCCL.cpp:607] x", 86_401.5),
        ("Jan  2 00:00:01 n1 kernel: x", 86_401.0),
        ('{"ts": 1704153601.5, "msg": "x"}', 86_401.5),
        ('{"time": "2024-01-02T00:00:01.5Z", "msg": "x"}', 86_401.5),
        ('{"time": "soon", "msg": "x"}', None),
        ('{"ts": -1, "msg": "x"}', None),
        ("2024-13-02 00:00:01 x", None),
        ("Foo  2 00:00:01 n1 kernel: x", None),
    ],
)
def test_the_time_is_seconds_of_the_year(raw: str, time: float | None) -> None:
    assert _one(raw).origin.time == time


def test_what_is_no_date_has_no_time() -> None:
    assert seconds_of_year(2, 30, "00:00:00") is None


def test_a_line_says_more_than_the_name_of_its_file() -> None:
    assert _one("x", 3).origin.rank == 3
    assert _one("[rank4]: x", 3).origin.rank == 4


def test_an_empty_line_is_none_and_a_long_one_is_cut() -> None:
    assert parse("f", 1, "  ") == ()
    assert len(_one("x" * 10_000).text) == MAX_LINE


def test_a_record_of_the_launcher_has_its_cycle() -> None:
    assert _one('{"cycle": 2, "message": "x"}').origin.cycle == 2
    assert _one('{"initial_rank": -1, "iteration": 2, "reason": "x"}').origin.cycle == 2
    assert _one('{"initial_rank": 0, "iteration": 2, "reason": "x"}').origin.cycle is None


def test_a_record_with_a_traceback_is_several_lines() -> None:
    raw = '{"rank": 1, "level": "ERROR", "message": "it failed", "traceback": "Traceback:\\n\\nValueError: x"}'
    assert [line.text for line in parse("f", 1, raw)] == ["it failed", "Traceback:", "ValueError: x"]


def test_a_long_record_is_read_and_what_of_it_is_kept_is_cut() -> None:
    raw = '{"rank": 1, "pad": "' + "x" * 20_000 + '", "message": "ValueError: x"}'
    line = _one(raw)
    assert (line.text, line.origin.rank, line.whole) == ("ValueError: x", 1, "ValueError: x")
    assert len(_one('{"message": "' + "x" * 20_000 + '"}').whole) == MAX_LINE


def test_a_record_that_is_nested_too_deep_is_text() -> None:
    raw = '{"msg":' + "[" * 4_000 + "]" * 90 + "}"
    assert _one(raw).text.startswith("{")


def test_the_event_of_a_fault_is_put_into_words() -> None:
    raw = (
        '{"event": "fault", "host": "n1", "pid": 9, "rank": 2, "faulty_initial_rank": 3, "interruption": "EXCEPTION",'
        ' "message": "ValueError: x"}'
    )
    assert _one(raw).text == "EXCEPTION on rank 2 (initial rank 3, n1 pid 9): ValueError: x"


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("logs/attempt_2/3/stderr.log", Origin(local=3, cycle=2)),
        ("node1/rank3.log", Origin(rank=3, host="node1")),
        ("rank_2.err", Origin(rank=2)),
        ("608_3_log.err", Origin(rank=3)),
        ("worker-2.out", Origin(rank=2, host="worker-2")),
        ("std_out.4.gz", Origin(rank=4)),
        ("slurm-123.out", Origin()),
        ("train.log", Origin()),
    ],
)
def test_the_name_of_a_file_says_where_it_is_from(name: str, origin: Origin) -> None:
    assert of_file(name) == origin


def test_the_prefixes_of_a_line_are_bounded() -> None:
    assert _one("[rank1]: " * 9 + "x").text == "[rank1]: x"
