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
def overdue():
    return lambda waited: False


@pytest.fixture
def watchdog(overdue):
    page, (ours, theirs), lost = Page(1), socket.socketpair(), threading.Event()
    made = ProgressWatchdog(
        page,
        60.0,
        SimpleNamespace(channel=ours, ended=False, is_overdue=overdue),
        interrupt=Interrupt(signal.SIGRTMIN + 3, 1.0),
        observer=SimpleNamespace(count_collectives=lambda: None),
        losses=SimpleNamespace(watcher_failed=lambda error: None, fork_server_lost=lost.set),
    )
    made.lost = lost
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


@pytest.mark.parametrize("overdue", [lambda waited: True, lambda waited: waited < 60], ids=["always", "from here on"])
def test_a_monitor_process_that_does_not_start_is_a_loss(watchdog):
    assert watchdog.lost.wait(10)
    watchdog.stop()
