"""The wait for the next line that an interruption may land on: where it lands, and that nothing of it is left."""

import asyncio
import importlib
import queue
import signal
import sys
import threading
import types
from contextlib import suppress

import pytest

from nvrx_core.inprocess.interruption import interrupt as interrupt_module
from nvrx_core.inprocess.interruption.atomic import Atomic
from nvrx_core.inprocess.interruption.interrupt import FunctionThread, Shot
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart

SIGNUM = signal.SIGRTMIN + 3


@pytest.fixture(autouse=True)
def _untraced():
    """Without the trace function of a coverage tool, beside which no line is awaited."""
    former = sys.gettrace()
    sys.settrace(None)
    yield
    assert sys.gettrace() is None
    sys.settrace(former)


@pytest.fixture
def function_thread():
    made = FunctionThread(SIGNUM)
    made.install()
    made.armed, made.requested, made.shot = True, True, Shot(patient=True)
    made.make = lambda: RankShouldRestart("the round ends")
    yield made
    made.uninstall()


def fire():
    signal.raise_signal(SIGNUM)


def fire_nothing():
    """A call, which a trace function is told of."""


def run(function_thread, work, *arguments):
    """Run the work, as the wrapper does; whether it was interrupted, by one exception that leaves nothing behind."""
    try:
        function_thread.catching_code = run.__code__
        work(*arguments)
    except RankShouldRestart:
        assert function_thread.raised == 1
        return True
    finally:
        function_thread.armed = False
        assert function_thread._next_line.awaited <= (function_thread.raised == 0)
        function_thread.leave()
        assert not function_thread._next_line.awaited
        assert sys.gettrace() is None
    return False


def test_it_lands_on_the_line_after_a_cleanup(function_thread):
    done = []

    def work():
        try:
            done.append("tried")
        finally:
            fire()
            done.append("cleaned up")
            while len(done) < 5:
                done.append("and")
        done.append("never")

    assert run(function_thread, work)
    assert done == ["tried", "cleaned up", *["and"] * 3]
    assert function_thread.deferred == 1


def test_it_lands_behind_an_import(function_thread, tmp_path, monkeypatch):
    (tmp_path / "awaited_by_a_test.py").write_text("import sys\nsys.modules['found_by_a_test'].fire()\ncomplete = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "found_by_a_test", sys.modules[__name__])
    done = []

    def statement():
        import awaited_by_a_test

        done.append(awaited_by_a_test)

    def call():
        done.append(importlib.import_module("awaited_by_a_test"))
        done.append("never")

    for work, expected in ((statement, 0), (call, 1)):
        monkeypatch.delitem(sys.modules, "awaited_by_a_test", raising=False)
        function_thread.armed, function_thread.raised = True, 0
        assert run(function_thread, work)
        assert sys.modules["awaited_by_a_test"].complete == 1
        assert len(done) == expected
    monkeypatch.delitem(sys.modules, "awaited_by_a_test")


@pytest.fixture
def interrupting_module(tmp_path, monkeypatch):
    """A module whose import is interrupted, again and again."""
    (tmp_path / "fires_in_a_test.py").write_text("import sys\nsys.modules['found_by_a_test'].fire()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "found_by_a_test", types.SimpleNamespace(fire=fire_nothing))
    module = importlib.import_module("fires_in_a_test")
    monkeypatch.setitem(sys.modules, "found_by_a_test", sys.modules[__name__])
    yield module
    monkeypatch.delitem(sys.modules, "fires_in_a_test")


def test_it_lands_between_two_imports_in_a_handler(function_thread, interrupting_module):
    done = []

    def work():
        try:
            raise KeyError
        except KeyError:
            while len(done) < 3:
                importlib.reload(interrupting_module)
                done.append("reloaded")

    assert run(function_thread, work)
    assert (done, function_thread.deferred) == ([], 1)


def test_it_lands_between_two_imports_by_a_function_in_c(function_thread, interrupting_module):
    done = []

    def work():
        done.extend(map(importlib.reload, [interrupting_module] * 3))

    assert run(function_thread, work)
    assert (len(done), function_thread.deferred) == (1, 1)


class Section:
    def __init__(self):
        self.lock = threading.Lock()

    def __enter__(self):
        self.lock.acquire()
        fire()

    def __exit__(self, *error):
        len("a call")
        self.lock.release()


def test_a_section_that_is_being_entered_is_left_properly(function_thread):
    section, done = Section(), []

    def work():
        with section:
            done.append("never")

    assert run(function_thread, work)
    assert (done, section.lock.locked()) == ([], False)


def test_an_acquisition_is_followed_into_its_try(function_thread):
    lock, done = threading.Lock(), []

    def acquire():
        lock.acquire()
        return fire()

    def work():
        acquire()
        try:
            done.append("never")
        finally:
            lock.release()

    assert run(function_thread, work)
    assert (done, lock.locked()) == ([], False)


class Counted:
    entered = exited = 0

    def __enter__(self):
        self.entered += 1

    def __exit__(self, *error):
        self.exited += 1


def test_between_the_body_of_a_with_and_its_exit_nothing_lands(function_thread):
    outer, inner, done = Counted(), Counted(), []

    def falls_through():
        with outer, \
             inner:  # fmt: skip
            try:
                done.append("tried")
            finally:
                fire()

    def breaks():
        while True:
            with outer:
                try:
                    break
                finally:
                    fire()

    def returns():
        with outer:
            try:
                return len("a call")
            finally:
                fire()

    def fails():
        with suppress(ValueError), outer:
            try:
                raise ValueError
            finally:
                fire()

    def work(way):
        way()
        done.append("never")

    for way in (falls_through, breaks, returns, fails):
        function_thread.armed, function_thread.raised = True, 0
        assert run(function_thread, work, way)
        assert outer.entered == outer.exited
        assert inner.entered == inner.exited
    assert done == ["tried"]


def test_it_is_passed_on_to_the_caller_of_a_frame_that_ends(function_thread):
    done = []

    def returns():
        try:
            done.append("tried")
        finally:
            fire()

    def raises():
        try:
            raise ValueError
        finally:
            fire()

    def yields():
        try:
            pass
        finally:
            fire()
        yield 1
        done.append("never")

    def work(inner):
        with suppress(ValueError):
            inner()
        done.append("never")

    for inner in (returns, raises, lambda: next(yields())):
        function_thread.armed, function_thread.raised = True, 0
        assert run(function_thread, work, inner)
        assert done in ([], ["tried"])


def test_a_handler_of_an_exception_is_completed(function_thread):
    done = []

    def work():
        try:
            try:
                raise ValueError
            finally:
                fire()
        except ValueError:
            done.append("handled")
        done.append("never")

    assert run(function_thread, work)
    assert done == ["handled"]


class LeftLast:
    def __exit__(self, *error):
        fire()


def test_a_function_that_ends_meanwhile_is_not_interrupted(function_thread):
    def work():
        return LeftLast().__exit__()

    for last in (work, LeftLast().__exit__):
        function_thread.armed = True
        assert not run(function_thread, last)
    assert (function_thread.raised, function_thread.deferred) == (0, 2)


def library(path, name="get", times=1):
    """A function of the library that is reached by the signal so many times."""
    scope = {"raise_signal": signal.raise_signal, "signum": SIGNUM}
    body = "    raise_signal(signum)\n" * times + "    len('a call')\n"
    exec(compile(f"def {name}():\n{body}", path, "exec"), scope)
    return scope[name]


def test_an_event_loop_is_left_in_the_code_of_a_task(function_thread):
    steps = []

    async def wait():
        await asyncio.sleep(0)
        steps.append("never")

    async def main():
        asyncio.get_running_loop().call_soon(library(asyncio.__file__))
        await wait()

    assert run(function_thread, lambda: asyncio.run(main()))
    assert not steps


def test_what_has_been_started_is_not_lost(function_thread):
    """The line after a call of the library that starts or opens something may be the one that records it."""
    done = []

    def work(path, name):
        library(path, name)()
        done.append((name, function_thread._next_line.awaited))

    for path, name in ((signal.__file__, "get"), (threading.__file__, "start")):
        work(path, name)
    assert done == [("get", False), ("start", False)]
    assert function_thread.deferred == 2
    assert run(function_thread, work, queue.__file__, "get")
    assert len(done) == 2


def test_a_trace_function_of_other_code_is_left_alone(function_thread):
    traced, done = [], []

    def debugger(frame, event, argument):
        traced.append(event)
        return debugger

    def work():
        sys.settrace(debugger)
        try:
            done.append("tried")
        finally:
            fire()
            done.append(sys.gettrace() is debugger)
        sys.settrace(None)

    assert not run(function_thread, work)
    assert done == ["tried", True]
    assert function_thread.deferred == 1


def test_a_trace_function_that_is_set_meanwhile_takes_its_place(function_thread):
    done = []

    def debugger(frame, event, argument):
        return None

    def work():
        try:
            done.append("tried")
        finally:
            fire()
            former = sys.gettrace()
            sys.settrace(debugger)
        done.append(sys.gettrace() is debugger)
        function_thread.leave()
        done.append(sys.gettrace() is debugger)
        sys.settrace(former)
        len("a call").bit_length()
        fire_nothing()
        done.append(sys.gettrace())

    assert not run(function_thread, work)
    assert done == ["tried", True, True, None]


def test_another_signal_meanwhile_neither_lands_in_the_handler_nor_raises_twice(function_thread):
    done = []

    def work():
        library(queue.__file__, times=3)()
        done.append("never")

    assert run(function_thread, work)
    assert (done, function_thread.deferred) == ([], 3)


def test_an_atomic_section_that_is_entered_meanwhile_raises_it(function_thread):
    done = []

    def work():
        try:
            done.append("tried")
        finally:
            fire()
            with Atomic(function_thread):
                done.append("never")

    assert run(function_thread, work)
    assert done == ["tried"]


def test_what_is_withdrawn_meanwhile_is_not_raised(function_thread):
    done = []

    def work(withdraw):
        try:
            done.append("tried")
        finally:
            fire()
            withdraw()
        done.append("went on")

    def disarm():
        function_thread.armed = False

    def mask():
        function_thread.depth = 1

    for withdraw in (disarm, mask, function_thread.disown):
        function_thread.armed, function_thread.requested, function_thread.depth = True, True, 0
        assert not run(function_thread, work, withdraw)
    assert done == ["tried", "went on"] * 3


def test_the_frame_is_given_back_as_it_was(function_thread):
    frames = []

    def work():
        frame = sys._getframe()
        frame.f_trace_lines = False
        frames.append(frame)
        try:
            frames.append(frame)
        finally:
            fire()
            assert (frame.f_trace is None, frame.f_trace_lines) == (False, True)
        frames.append("never")

    assert run(function_thread, work)
    assert (frames[0].f_trace, frames[0].f_trace_lines) == (None, False)
    assert len(frames) == 2


def test_a_trace_function_that_a_debugger_gives_the_frame_meanwhile_stays_there(function_thread):
    frames = []

    def debugger(frame, event, argument):
        return debugger

    def work():
        frame = sys._getframe()
        try:
            frames.append(frame)
        finally:
            fire()
            frame.f_trace = debugger
            sys.settrace(debugger)
            fire()
            sys.settrace(None)
        frames.append(frame.f_trace is debugger)

    assert not run(function_thread, work)
    assert frames[1:] == [True]


def test_a_failure_of_the_wait_itself_is_not_the_function_s(function_thread, monkeypatch):
    done = []

    def work(fails):
        try:
            done.append("tried")
        finally:
            fire()
        done.append("went on")
        fails.undo()
        done.append(function_thread._next_line.awaited)
        fire()

    def is_safe_line(frame, catching_code):
        raise RecursionError

    monkeypatch.setattr(interrupt_module, "is_safe_line", is_safe_line)
    assert run(function_thread, work, monkeypatch)
    assert done == ["tried", "went on", False]
