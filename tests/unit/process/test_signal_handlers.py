"""Whether an exception was raised by a signal handler."""

import functools
import os
import signal
import sys

import pytest

from nvrx_core.process.signals import raised_by_handler


def leave(code, *arguments):
    sys.exit(code)


def on_signal(*arguments):
    leave(143)


def once(signum, frame):
    signal.signal(signum, signal.SIG_IGN)
    leave(143)


def handing_over(signum, frame):
    signal.signal(signum, on_signal)
    signal.getsignal(signum)(signum, frame)


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
    "one that ignores the next signal": once,
    "one that hands over to another": handing_over,
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


def leaves_and_says_where():
    caller = sys._getframe(1)
    sys.exit(caller.f_lineno)


def test_an_exit_by_a_function_that_looks_at_its_caller_is_none_of_a_signal():
    with pytest.raises(SystemExit) as raised:
        leaves_and_says_where()
    assert not raised_by_handler(raised.value)


def test_an_exit_may_have_no_traceback():
    assert not raised_by_handler(SystemExit(3))
