"""The progress watchdog at its end."""

import logging
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from nvrx_core.inprocess import progress_watchdog as module
from nvrx_core.inprocess.interruption.interrupt import FunctionThread
from nvrx_core.inprocess.progress_watchdog import MainThreadWatchdog
from nvrx_core.progress.page import Page, ProgressField


@pytest.fixture
def overdue():
    return lambda waited: False


@pytest.fixture
def silence():
    return module.SILENT_STORE


@pytest.fixture
def watchdog(overdue, silence, monkeypatch):
    monkeypatch.setattr(module, "SILENT_STORE", silence)
    page, (ours, theirs), lost, silent = Page(1), socket.socketpair(), threading.Event(), threading.Event()
    made = MainThreadWatchdog(
        page,
        60.0,
        SimpleNamespace(channel=ours, ended=False, is_overdue=overdue),
        function_thread=FunctionThread(signal.SIGRTMIN + 3),
        observer=SimpleNamespace(count_collectives=lambda: None),
        losses=SimpleNamespace(
            watcher_failed=lambda error: None, fork_server_lost=lost.set, store_lost=lambda why: silent.set()
        ),
    )
    made.lost, made.silent = lost, silent
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


@pytest.mark.parametrize("silence", [0.2])
@pytest.mark.parametrize("answered", [0.0, 0.2], ids=["never reached", "silent since"])
def test_a_store_that_does_not_answer_the_monitor_process_is_lost(watchdog, answered):
    if answered:
        watchdog.page[ProgressField.MONITOR_BEAT] = int((time.monotonic() - answered) * 1e9)
    watchdog.page[ProgressField.MONITOR_PID] = 7
    assert watchdog.silent.wait(10)
    watchdog.stop()


def test_a_store_that_the_monitor_process_has_lost_is_lost_at_once(watchdog):
    watchdog.page[ProgressField.MONITOR_PID] = 7
    watchdog.page[ProgressField.STORE_LOST] = time.monotonic_ns()
    assert watchdog.silent.wait(module.SILENT_STORE / 2)
    watchdog.stop()


@pytest.mark.parametrize("silence", [0.1])
def test_a_store_is_not_lost_before_the_monitor_process_runs(watchdog):
    asked = threading.Semaphore(0)
    watchdog._observer.count_collectives = asked.release
    for _ in range(8):
        assert asked.acquire(timeout=10)
    assert not watchdog.silent.is_set()
    watchdog.stop()
