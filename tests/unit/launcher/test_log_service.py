"""The launcher's side of per-cycle logs: its event loop does not wait for the file system that they are on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from nvrx_launcher import log_service
from nvrx_launcher.log_options import LogOptions
from nvrx_launcher.log_service import LogService, Where
from nvrx_launcher.loop import EventLoop

WITHIN = 10.0
"""Seconds for what should happen at once."""


@contextmanager
def service_of(folder: Path, *, has_server: bool = False, is_host: bool = False) -> Iterator[LogService]:
    options = LogOptions(prefix=str(folder / "train.log"), has_server=has_server)
    where = Where("node0", "127.0.0.1", is_host, 2, "job")
    with closing(EventLoop()) as loop, closing(LogService(options, loop, where, {})) as service:
        yield service


def ends(call: Callable[[], object]) -> bool:
    """Whether a call returns in time."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(WITHIN)
    return not thread.is_alive()


def test_a_cycle_begins_while_its_file_cannot_be_opened_yet(tmp_path: Path) -> None:
    """As on a file system that stalls: a pipe is opened once it has a reader."""
    file = tmp_path / "train_cycle0.log"
    os.mkfifo(file)
    read = list[bytes]()
    with service_of(tmp_path) as service:
        assert ends(lambda: service.begin(0))
        service.write(b"0: a line\n")
        reader = threading.Thread(target=lambda: read.append(file.read_bytes()), daemon=True)
        reader.start()
    reader.join(WITHIN)
    assert read == [b"0: a line\n"]


def test_output_of_a_cycle_begins_after_that_of_an_earlier_run(tmp_path: Path) -> None:
    file = tmp_path / "train_cycle0.log"
    file.write_bytes(b"0: of an earlier run\n")
    with service_of(tmp_path) as service:
        service.begin(0)
        service.write(b"0: a line\n")
    assert service.begins_at == len(b"0: of an earlier run\n")
    assert file.read_bytes() == b"0: of an earlier run\n0: a line\n"


def test_a_cycle_without_output_has_a_file(tmp_path: Path) -> None:
    with service_of(tmp_path) as service:
        service.begin(0)
        service.begin(1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["train_cycle0.log", "train_cycle1.log"]


@pytest.mark.parametrize("is_host", [True, False])
def test_with_a_log_server_only_its_host_touches_the_file_and_no_loop_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_host: bool
) -> None:
    file, stat, answers = tmp_path / "train_cycle0.log", os.stat, threading.Event()
    file.write_bytes(b"0: of an earlier run\n")
    asked, told = list[threading.Thread](), threading.Event()

    def stall(path: Any, **options: Any) -> os.stat_result:
        if path == str(file):
            asked.append(threading.current_thread())
            assert answers.wait(WITHIN)
            told.set()
        return stat(path, **options)

    monkeypatch.setattr(LogService, "_start", lambda _: None)
    with service_of(tmp_path, has_server=True, is_host=is_host) as service:
        monkeypatch.setattr(log_service.os, "stat", stall)
        begun = ends(lambda: service.begin(0))
        assert (begun, service.begins_at) == (True, 0)
        answers.set()
        if is_host:
            assert told.wait(WITHIN)
            assert service._measures.drain(WITHIN)
        assert (service.begins_at, len(asked)) == ((len(b"0: of an earlier run\n"), 1) if is_host else (0, 0))
