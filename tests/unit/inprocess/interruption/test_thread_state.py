"""What one thread can see of another."""

import threading
import time

import pytest

from nvrx_core.inprocess.interruption.thread_state import SystemCallProbe, handled_exception, waits_in_system_call

INTERPRETER = range(0x1000, 0x2000)


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("running\n", False),
        ("-1 0x7ffd 0x7f46\n", False),
        ("202 0x5590 0x89 0x0 0x7ffd 0x0 0xffffffff 0x7ffd 0x7f46\n", True),
        ("202 0x1800 0x89 0x0 0x7ffd 0x0 0xffffffff 0x7ffd 0x7f46\n", False),
        ("0 0x3 0x7ffd 0x10 0x0 0x0 0x0 0x7ffd 0x7f46\n", True),
    ],
    ids=["running", "outside of a call", "a lock", "the interpreter's lock", "read"],
)
def test_a_wait_for_the_gil_is_not_a_system_call(text, waits):
    assert waits_in_system_call(text, INTERPRETER) is waits


def test_a_thread_that_waits_for_a_lock_is_detected():
    held, told = threading.Lock(), []
    held.acquire()

    def wait():
        told.append(threading.get_native_id())
        with held:
            pass

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 10
    while not told:
        assert time.monotonic() < deadline
    probe = SystemCallProbe(told[0])
    while not probe.waits():
        assert time.monotonic() < deadline
    held.release()
    thread.join()
    assert not probe.waits()
    probe.close()
    probe.close()
    assert not probe.waits()


def test_without_proc_no_thread_counts_as_waiting():
    assert not SystemCallProbe(0).waits()


def test_the_exception_that_a_thread_handles_is_found():
    error = ValueError("handled")
    assert handled_exception(threading.get_ident()) is None
    try:
        raise error
    except ValueError:
        assert handled_exception(threading.get_ident()) is error
    assert handled_exception(-1) is None
