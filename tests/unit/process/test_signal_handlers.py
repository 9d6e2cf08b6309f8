"""Whether an exception was raised by a signal handler."""

import functools
import os
import signal
import sys

import pytest

from nvrx_core.process.signal_handlers import raised_by_handler


def leave(code, *arguments):
    sys.exit(code)


def on_signal(*arguments):
    leave(143)


class Leaving:
    def __call__(self, *arguments):
        leave(143)

    def method(self, *arguments):
        leave(143)


@pytest.fixture
def installed():
    before = signal.getsignal(signal.SIGUSR2)
    yield lambda handler: signal.signal(signal.SIGUSR2, handler)
    signal.signal(signal.SIGUSR2, before)


HANDLERS = {
    "function": on_signal,
    "lambda": lambda *_: leave(143),
    "partial": functools.partial(leave, 143),
    "method": Leaving().method,
    "object": Leaving(),
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_an_exit_by_a_handler_is_known(installed, kind):
    installed(HANDLERS[kind])
    with pytest.raises(SystemExit) as raised:
        os.kill(os.getpid(), signal.SIGUSR2)
    assert raised_by_handler(raised.value)


def test_an_exit_beside_a_handler_is_none_of_its(installed):
    installed(on_signal)
    with pytest.raises(SystemExit) as raised:
        leave(3)
    assert not raised_by_handler(raised.value)


def test_an_exit_by_a_handler_that_a_cleanup_calls_is_none_of_a_signal(installed):
    installed(on_signal)
    with pytest.raises(SystemExit) as raised:
        on_signal(signal.SIGUSR2, None)
    assert not raised_by_handler(raised.value)


def test_a_handler_may_have_no_python_code(installed):
    installed(print)
    assert not raised_by_handler(SystemExit(3))
