"""The stacks of all threads, asked for from outside: also while a call holds the interpreter's lock."""

import faulthandler
import os
import signal
import sys
import threading

import pytest

from nvrx_core.process.lifeline import catches
from nvrx_core.process.stacks import Stacks, show


@pytest.fixture
def stacks():
    stacks = Stacks()
    yield stacks
    stacks.close()


@pytest.fixture
def pidfd():
    pidfd = os.pidfd_open(os.getpid())
    yield pidfd
    os.close(pidfd)


def test_all_threads_are_told(stacks, pidfd):
    free, waits = threading.Event(), threading.Event()

    def stand_here():
        waits.set()
        free.wait()

    thread = threading.Thread(target=stand_here)
    thread.start()
    waits.wait()
    text = stacks.take(pidfd)
    free.set()
    thread.join()
    assert "in stand_here" in text
    assert "in test_all_threads_are_told" in text
    assert stacks.take(pidfd) != "", "only once"


def test_the_signal_is_one_that_nobody_uses_and_is_given_back(stacks):
    assert catches(os.getpid(), stacks.signum)
    second = Stacks()
    assert second.signum not in (stacks.signum, None)
    second.close()
    assert not catches(os.getpid(), second.signum)


def test_without_a_free_signal_there_is_no_answer(pidfd, monkeypatch):
    monkeypatch.setattr("nvrx_core.process.stacks.catches", lambda pid, signum: True)
    monkeypatch.setattr(faulthandler, "register", pytest.fail)
    stacks = Stacks()
    assert stacks.take(pidfd) == ""
    stacks.close()


def test_a_process_that_does_not_answer_is_not_waited_for(stacks, monkeypatch):
    monkeypatch.setattr("nvrx_core.process.stacks.ANSWERS_WITHIN", 0.01)
    monkeypatch.setattr("nvrx_core.process.stacks.send", lambda pidfd, signals: None)
    assert stacks.take(-1) == ""


def test_text_goes_to_the_stderr_of_a_process(capfd, monkeypatch):
    show(os.getpid(), "planted\n")
    assert capfd.readouterr().err == "planted\n"
    show(2**22, "nobody")
    monkeypatch.setattr(sys, "__stderr__", None)  # as Python is started with a closed one
    show(os.getpid(), "into a file of the user's")
    assert capfd.readouterr().err == ""


def test_the_signals_are_real_time_ones(stacks):
    assert signal.SIGRTMIN < stacks.signum <= signal.SIGRTMAX
