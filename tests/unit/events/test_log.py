"""The event file: what a line holds, and that nothing a disk or a value does reaches the job."""

import enum
import errno
import json
import logging
import os
import socket
import stat
import threading

import pytest

from nvrx_core.events import log as module
from nvrx_core.events.log import EventLog, boot_id
from nvrx_core.events.schema import COMMON, LAUNCHER, MAX_LINE


class Kind(enum.IntEnum):
    ONE = 1


class Silent:
    def __repr__(self):
        raise ValueError("no words")


@pytest.fixture
def log(tmp_path):
    opened = EventLog(tmp_path / "events", 3, lambda: 12.5, lambda: 1e9)
    yield opened
    opened.close()


def text(log_path):
    return (log_path / "events" / "events-3.jsonl").read_bytes()


def lines(path):
    return [json.loads(line) for line in text(path).splitlines()]


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_line_holds_the_common_fields_and_its_own(log, tmp_path):
    log.write("fault", 7, rank=2, message="boom")
    (line,) = lines(tmp_path)
    assert tuple(line)[: len(COMMON)] == (
        "schema",
        "event",
        "wall",
        "monotonic",
        "host",
        "boot_id",
        "initial_rank",
        "pid",
        "iteration",
    )
    assert set(COMMON) <= set(line)
    assert line["schema"] == 1
    assert (line["event"], line["iteration"], line["initial_rank"]) == ("fault", 7, 3)
    assert (line["wall"], line["monotonic"], line["pid"], line["boot_id"]) == (1e9, 12.5, os.getpid(), boot_id())
    assert (line["rank"], line["message"]) == (2, "boom")


def test_the_log_adds_the_writer_whatever_the_fields(log, tmp_path):
    log.write("fault", 7, pid=1, host="elsewhere")
    (line,) = lines(tmp_path)
    assert line["pid"] == os.getpid()
    assert line["host"] != "elsewhere"


def test_the_directory_and_file_are_the_users_alone(log, tmp_path):
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("events", "events/events-3.jsonl")]
    assert modes == [0o700, 0o600]


def test_without_a_directory_nothing_is_written(monkeypatch):
    monkeypatch.setattr(os, "open", full)
    log = EventLog(None, 0)
    log.write("completed", 0)
    log.close()
    assert (log.fileno(), log.dropped) == (None, 0)


def test_one_line_is_one_system_call_on_a_descriptor_that_appends_and_is_not_inherited(log, monkeypatch):
    writes = []
    monkeypatch.setattr(os, "write", lambda fd, line: writes.append((fd, line)) or len(line))
    log.write("completed", 0, message="a\nb")
    ((fd, line),) = writes
    assert fd == log.fileno()
    assert line.count(b"\n") == 1
    assert not os.get_inheritable(fd)
    monkeypatch.undo()
    flags = int((module.Path("/proc/self/fdinfo") / str(fd)).read_text().split("flags:")[1].split()[0], 8)
    assert flags & os.O_APPEND


def test_two_logs_share_a_file(log, tmp_path):
    other = EventLog(tmp_path / "events", 3, lambda: 12.5, lambda: 1e9)
    threads = [
        threading.Thread(target=lambda each=each: [each.write("fault", i) for i in range(50)]) for each in (log, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert sorted(line["iteration"] for line in lines(tmp_path)) == sorted([*range(50)] * 2)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, True),
        (Kind.ONE, 1),
        (1.5, 1.5),
        (None, None),
        ((1, [2]), [1, [2]]),
        ({1: {"a": frozenset({2})}}, {"1": {"a": [2]}}),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (1 + 2j, "(1+2j)"),
        (ValueError("x"), "ValueError('x')"),
        (Silent(), "<Silent without a repr>"),
        ([10**5000], ["<int without a repr>"]),
        ("\udc80 é \n", "\udc80 é \n"),
        ("x" * 5000, "x" * 4000),
        ([[[[[[[1]]]]]]], [[[[[["[1]"]]]]]]),
    ],
)
def test_any_value_is_written(log, tmp_path, value, written):
    log.write("fault", 0, value=value)
    assert lines(tmp_path)[0]["value"] == written


def test_a_full_disk_is_counted_and_logged_once(log, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(os, "write", full)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log.write("completed", 0)
    assert log.dropped == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot write events, the job continues: {tmp_path}/events/events-3.jsonl: No space left on device"
    ]
    monkeypatch.undo()
    log.write("completed", 9)
    assert [line["iteration"] for line in lines(tmp_path)] == [9]


def test_a_truncated_line_does_not_damage_the_next(log, monkeypatch, tmp_path):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, line: write(fd, line[:20]))
    log.write("completed", 0)
    monkeypatch.undo()
    log.write("completed", 1)
    log.write("completed", 2)
    _, *whole = text(tmp_path).splitlines()
    assert log.dropped == 1
    assert [json.loads(line)["iteration"] for line in whole] == [1, 2]


def test_a_disk_that_is_full_at_the_start_may_have_room_later(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(os, "open", full)
    log = EventLog(tmp_path / "events", 3)
    log.write("completed", 0)
    monkeypatch.undo()
    log.write("completed", 1)
    log.close()
    assert (log.dropped, [line["iteration"] for line in lines(tmp_path)]) == (1, [1])


def test_a_line_beyond_all_bounds_is_dropped(log, tmp_path, caplog):
    log.write("fault", 0, values=["x" * 4000] * (MAX_LINE // 4000 + 1))
    assert (log.dropped, text(tmp_path)) == (1, b"")


def test_a_closed_log_ignores_events(log, tmp_path):
    log.close()
    log.close()
    log.write("completed", 0)
    assert (log.fileno(), text(tmp_path), log.dropped) == (None, b"", 0)


def test_a_directory_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"events_dir='.*file/events': must be a directory .*\(Not a directory\)"):
        EventLog(tmp_path / "file" / "events", 0)


def test_a_kernel_without_a_boot_id_returns_an_empty_text(monkeypatch):
    monkeypatch.setattr(module.Path, "read_text", full)
    assert boot_id() == ""


def test_a_launcher_has_a_file_of_its_own(tmp_path):
    log = EventLog(tmp_path, LAUNCHER)
    log.write("joined", 0, node=1)
    log.close()
    (path,) = tmp_path.iterdir()
    assert path.name == f"events-launcher-{socket.gethostname()}-{os.getpid()}.jsonl"
    assert json.loads(path.read_text())["initial_rank"] == LAUNCHER
