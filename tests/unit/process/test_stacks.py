"""The stacks of all threads, asked for from outside: by the thread that answers, else by the signal."""

import faulthandler
import os
import signal
import sys
import threading

import pytest

from nvrx_core.process.lifeline import catches
from nvrx_core.process.stacks import Stacks, show
from nvrx_core.process.waiting import readable


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


@pytest.fixture
def sent(monkeypatch):
    """The signals, none of which arrives."""
    sent = []
    monkeypatch.setattr("nvrx_core.process.stacks.send", lambda pidfd, signals: sent.extend(signals))
    return sent


@pytest.fixture
def hurried(monkeypatch):
    for name in ("THREAD_ANSWER_TIMEOUT", "ANSWER_TIMEOUT"):
        monkeypatch.setattr(f"nvrx_core.process.stacks.{name}", 0.01)


def assert_all_threads_are_told(stacks, pidfd):
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
    assert "in assert_all_threads_are_told" in text
    assert "\0" not in text
    assert stacks.take(pidfd) != "", "only once"


def test_the_thread_writes_all_stacks_without_a_signal(stacks, sent):
    stacks.start()
    assert_all_threads_are_told(stacks, -1)
    assert not sent


def test_a_signal_is_sent_if_the_thread_does_not_answer(stacks, pidfd, monkeypatch):
    monkeypatch.setattr("nvrx_core.process.stacks.THREAD_ANSWER_TIMEOUT", 0.01)
    assert_all_threads_are_told(stacks, pidfd)


def test_the_signal_is_one_that_nobody_uses_and_is_given_back(stacks):
    assert catches(os.getpid(), stacks.signum)
    second = Stacks()
    assert second.signum not in (stacks.signum, None)
    second.close()
    assert not catches(os.getpid(), second.signum)


def test_without_a_free_signal_only_the_thread_answers(monkeypatch, sent, hurried):
    monkeypatch.setattr("nvrx_core.process.signalled_stacks.catches", lambda pid, signum: True)
    monkeypatch.setattr(faulthandler, "register", pytest.fail)
    stacks = Stacks()
    assert stacks.take(-1) == ""
    stacks.start()
    monkeypatch.setattr("nvrx_core.process.stacks.THREAD_ANSWER_TIMEOUT", 10.0)
    assert "in test_without_a_free_signal_only_the_thread_answers" in stacks.take(-1)
    stacks.close()
    assert not sent


def test_a_process_that_does_not_answer_times_out(stacks, sent, hurried):
    assert stacks.take(-1) == ""
    assert sent == [stacks.signum]


def test_the_request_is_withdrawn_before_the_signal_is_sent(stacks, monkeypatch, hurried):
    pending = []
    asked = stacks.descriptors[1]
    monkeypatch.setattr("nvrx_core.process.stacks.send", lambda *_: pending.extend(readable([asked], 0.0)))
    stacks.take(-1)
    assert not pending, "the thread would answer beside the signal"


def test_a_thread_that_has_taken_the_question_is_waited_for_without_a_signal(stacks, sent, monkeypatch):
    monkeypatch.setattr("nvrx_core.process.stacks.THREAD_ANSWER_TIMEOUT", 0.0)
    monkeypatch.setattr(Stacks, "_claim", lambda self: False)
    writer = threading.Timer(0.05, faulthandler.dump_traceback, [stacks._writer])
    writer.start()
    assert "in test_a_thread_that_has_taken_the_question" in stacks.take(-1)
    writer.join()
    assert not sent


def test_an_answer_to_an_earlier_question_is_dropped(stacks, sent, hurried):
    os.write(stacks._writer, b"late")
    assert stacks.take(-1) == ""


def test_text_goes_to_the_stderr_of_a_process(capfd, monkeypatch):
    show(os.getpid(), "injected\n")
    assert capfd.readouterr().err == "injected\n"
    show(2**22, "nobody")
    monkeypatch.setattr(sys, "__stderr__", None)  # as Python is started with a closed one
    show(os.getpid(), "into a file of the user's")
    assert capfd.readouterr().err == ""


def test_the_signals_are_real_time_ones(stacks):
    assert signal.SIGRTMIN < stacks.signum <= signal.SIGRTMAX
