"""A thread's exception is a fault of the iteration that started the thread, and of no other."""

import threading

import pytest

from nvrx_core.inprocess.call.own_faults import ThreadFaults


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda hook: None)
    told = []
    faults = ThreadFaults(lambda error, iteration: told.append((str(error), iteration)))
    faults.install()
    yield told, faults
    faults.uninstall()


def start(error, go=None):
    def run():
        if go is not None:
            assert go.wait(5)
        raise error

    thread = threading.Thread(target=run, name="injected")
    thread.start()
    return thread


def test_a_thread_belongs_to_the_iteration_that_started_it(told):
    lines, faults = told
    for iteration in range(2):
        faults.begin(iteration)
        start(ValueError("injected")).join(5)
    assert lines == [("injected", 0), ("injected", 1)]


def test_a_thread_that_is_left_over_faults_nothing(told, caplog):
    lines, faults = told
    faults.begin(0)
    go = threading.Event()
    thread = start(ValueError("injected"), go)
    faults.begin(1)
    go.set()
    thread.join(5)
    assert lines == []
    assert "injected is older than iteration 1, and no fault of it: ValueError: injected" in caplog.text


def test_a_thread_may_exit(told):
    lines, faults = told
    faults.begin(0)
    start(SystemExit(3)).join(5)
    assert lines == []


def test_the_former_hook_is_called_and_put_back(monkeypatch):
    seen = []

    def hook(arguments):
        seen.append(arguments.thread.name)

    monkeypatch.setattr(threading, "excepthook", hook)
    faults = ThreadFaults(lambda error, iteration: None)
    faults.install()
    start(ValueError()).join(5)
    faults.uninstall()
    assert (seen, threading.excepthook) == (["injected"], hook)


def test_a_hook_that_was_set_meanwhile_stays_and_may_call_the_wrappers(monkeypatch):
    seen, told = [], []
    monkeypatch.setattr(threading, "excepthook", lambda hook: seen.append(str(hook.exc_value)))
    faults = ThreadFaults(lambda error, iteration: told.append(str(error)))
    faults.install()
    wrappers = threading.excepthook

    def users(hook):
        wrappers(hook)

    threading.excepthook = users
    faults.uninstall()
    assert threading.excepthook is users
    start(ValueError("after the call")).join(5)
    assert (seen, told) == (["after the call"], [])
