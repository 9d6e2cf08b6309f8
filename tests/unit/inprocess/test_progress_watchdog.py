"""The progress watchdog at its end."""

import logging
import signal
import socket
import threading
from types import SimpleNamespace

import pytest

from nvrx_core.inprocess import progress_watchdog as module
from nvrx_core.inprocess.interruption.interrupt import Interrupt
from nvrx_core.inprocess.progress_watchdog import ProgressWatchdog
from nvrx_core.progress.page import Page


@pytest.fixture
def watchdog():
    page, (ours, theirs) = Page(1), socket.socketpair()
    made = ProgressWatchdog(
        page,
        60.0,
        SimpleNamespace(channel=ours, ended=False),
        interrupt=Interrupt(signal.SIGRTMIN + 3, 1.0),
        observer=SimpleNamespace(count_collectives=lambda: None),
        losses=SimpleNamespace(watcher_failed=lambda error: None),
    )
    made.start()
    yield made
    for end in (ours, theirs):
        end.close()
    page.close()


def test_deferred_work_is_done_before_the_end(watchdog):
    done = []
    for number in range(3):
        watchdog.defer(lambda number=number: done.append(number))
    watchdog.stop()
    assert done == [0, 1, 2]


def test_deferred_work_that_hangs_does_not_block_the_caller(watchdog, monkeypatch, caplog):
    monkeypatch.setattr(module, "ENDS_WITHIN", 0.05)
    free = threading.Event()
    watchdog.defer(free.wait)
    with caplog.at_level(logging.WARNING):
        watchdog.stop()
    assert "the progress watchdog does not end within" in caplog.text
    free.set()
    monkeypatch.setattr(module, "ENDS_WITHIN", 10.0)
    watchdog.stop()
