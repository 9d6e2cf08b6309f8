"""Whether the main thread runs bytecode."""

import ctypes
import threading
import time

import pytest

from nvrx_core.process import heartbeat
from nvrx_core.process.heartbeat import CpuTime, Heartbeat, heartbeat_of_this_thread


@pytest.fixture
def heart():
    made = Heartbeat()
    yield made
    answer(made)


def answer(heart):
    deadline = time.monotonic() + 5.0
    while not (at := heart.poll()):
        assert time.monotonic() < deadline
    return at


def test_a_thread_that_runs_bytecode_answers_and_the_time_is_not_later_than_the_answer(heart):
    for _ in range(3):
        asked = time.monotonic_ns()
        assert heart.poll() < asked
        assert answer(heart) < time.monotonic_ns()


def test_a_thread_that_waits_in_c_does_not_answer(heart):
    answer(heart)
    looks = []

    def look():
        for _ in range(3):
            time.monotonic()
            looks.append(heart.poll())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()  # the main thread waits here
    before = time.monotonic_ns()
    assert looks[1:] == [0, 0]
    assert answer(heart) < before + 5_000_000_000


def test_a_full_queue_is_asked_again_later(heart):
    answered = []

    def fill():
        nothing = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)
        heartbeat._take_answers()
        heartbeat._answers.asked = False
        while heartbeat._add(ctypes.cast(heartbeat._held.sem_post, ctypes.c_void_p), other) == 0:
            pass
        assert nothing
        answered.append(heart.poll())
        answered.append(heartbeat._answers.asked)

    memory = ctypes.create_string_buffer(64)
    heartbeat._held.sem_init(memory, 0, 0)
    other = ctypes.addressof(memory)
    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
    assert answered == [0, False]
    assert answer(heart)


def test_the_answer_to_an_earlier_heartbeat_does_not_count_for_a_later_one(heart):
    heart.poll()
    assert Heartbeat().poll() == 0


def test_another_thread_than_the_main_one_is_seen_to_run_and_to_wait():
    made, run, ran = [], threading.Event(), threading.Event()

    def function():
        made.append(heartbeat_of_this_thread())
        ran.set()
        run.wait()
        ran.set()
        ended.wait()

    ended = threading.Event()
    thread = threading.Thread(target=function)
    thread.start()
    ran.wait()
    heart = made[0]
    assert isinstance(heart, CpuTime)
    while heart.poll():  # until it waits
        threading.Event().wait(0.05)
    ran.clear()
    looked = time.monotonic_ns()
    run.set()
    ran.wait()
    assert 0 < heart.poll() < looked
    ended.set()
    thread.join()
    while heart.poll():  # it ends a moment after it can be joined
        pass


def test_the_main_thread_answers_a_pending_call():
    assert isinstance(heartbeat_of_this_thread(), Heartbeat)
