"""Where an interruption may land: judged by real frames, stopped where the interpreter could interrupt."""

import argparse
import asyncio
import asyncio.base_events
import contextlib
import dis
import gc
import importlib
import inspect
import linecache
import logging
import queue
import sys
import threading
import weakref
from types import CodeType

import pytest
import torch.distributed.distributed_c10d

from nvrx_core.inprocess.interruption import landing
from nvrx_core.inprocess.interruption.landing import (
    Landing,
    destination,
    drops_exception,
    handlers_of,
    is_safe_line,
    judge,
    location,
    may_land_in,
)


def call():
    """Something that is called."""


def here():
    """What an interruption would do in the caller, after this call."""
    return judge(sys._getframe(1), test_code()).landing


def test_code():
    """The code of the innermost test."""
    frame = sys._getframe(1)
    while not frame.f_code.co_name.startswith("test_") or frame.f_code.co_name == "test_code":
        frame = frame.f_back
    return frame.f_code


test_code.__test__ = False


@pytest.mark.parametrize("module", [argparse, asyncio.base_events, threading, torch.distributed.distributed_c10d])
def test_instructions_and_jumps_are_those_of_dis(module):
    codes = [compile(inspect.getsource(module), module.__file__, "exec")]
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        expected = list(dis.get_instructions(code))
        jumps = {each.offset: each.argval for each in expected if each.opcode in {*dis.hasjrel, *dis.hasjabs}}
        steps = landing._steps(code)
        assert {at: step.name for at, step in steps.items()} == {each.offset: each.opname for each in expected}
        assert {at: step.target for at, step in steps.items() if step.target is not None} == jumps
        assert [step.following for step in steps.values()] == [*[each.offset for each in expected[1:]], None]


def test_ordinary_code_is_safe_everywhere():
    def work():
        first = here()
        for _ in range(2):
            found = [first, here()]
        return found

    assert work() == [Landing.SAFE, Landing.SAFE]


def test_between_what_is_acquired_and_its_try_nothing_lands():
    def plain():
        found = here()
        try:
            call()
        finally:
            call()
        return found

    def assigned_and_looked_at():
        found = here()
        if not found:
            raise RuntimeError("not acquired")
        try:
            call()
        finally:
            call()
        return found

    def inside_another():
        try:
            found = here()
            try:
                call()
            finally:
                call()
        except ValueError:
            return None
        return found

    assert [plain(), assigned_and_looked_at(), inside_another()] == [Landing.ACQUIRES] * 3


def test_inside_the_try_and_where_it_ends_it_may_land():
    def inside():
        try:
            found = here()
        except ValueError:
            return None
        return found

    def another_call_comes_first():
        found = here()
        call()
        try:
            call()
        finally:
            call()
        return found

    def leaving_the_inner_one():
        try:
            try:
                found = here()
            except KeyError:
                call()
            call()
        except ValueError:
            call()
        return found

    assert [inside(), another_call_comes_first(), leaving_the_inner_one()] == [Landing.SAFE] * 3


def test_a_call_that_returns_into_a_protected_range_acquires():
    def acquire():
        return here()

    def work():
        found = acquire()
        try:
            call()
        finally:
            call()
        return found

    assert work() is Landing.ACQUIRES


class Owned:
    """A re-entrant lock that somebody else holds, or that was just given to this thread."""

    def __init__(self, owned):
        self.owned = owned

    def acquire(self):
        self.found = judge(sys._getframe(1), test_code()).landing

    def __enter__(self):  # which `logging` uses since 3.13
        self.found = judge(sys._getframe(1), test_code()).landing

    def release(self, *_):
        """Nobody needs it."""

    __exit__ = release

    def _is_owned(self):
        return self.owned


def test_a_wait_for_a_reentrant_lock_may_be_ended_until_the_lock_is_there():
    def landing_in_the_acquire(lock):
        handler = logging.Handler()
        handler.lock = lock
        handler.handle(logging.makeLogRecord({}))
        return lock.found

    handler = logging.Handler
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handler, "emit", lambda self, record: None)
        assert landing_in_the_acquire(Owned(owned=False)) is Landing.SAFE
        assert landing_in_the_acquire(Owned(owned=True)) is Landing.ACQUIRES


class Section:
    def __enter__(self):
        self.entry = here()
        call()
        return self

    def __exit__(self, *error):
        self.exit = here()


def test_the_beginning_of_a_section_acquires_and_its_end_is_cleanup():
    with Section() as section:
        body = here()
        call()
    assert (section.entry, section.exit) == (Landing.ACQUIRES, Landing.CLEANUP)
    assert body is Landing.SAFE


def test_a_section_made_of_a_generator_is_one_too():
    found = []

    @contextlib.contextmanager
    def section():
        found.append(here())
        call()
        try:
            yield
        finally:
            found.append(here())

    def work():
        with section():
            call()

    work()
    assert found == [Landing.ACQUIRES, Landing.CLEANUP]


def test_a_finally_is_cleanup_on_both_ways_into_it():
    found = []

    def work(fail):
        try:
            if fail:
                raise ValueError
        finally:
            found.append(here())
            try:
                call()
            except KeyError:
                call()
            found.append(here())
            call()
        return here()

    found.append(work(fail=False))
    with contextlib.suppress(ValueError):
        work(fail=True)
    cleanup = [Landing.CLEANUP, Landing.CLEANUP]
    assert found == [*cleanup, Landing.SAFE, *cleanup]


def test_a_handler_is_ordinary_code():
    def work():
        try:
            raise ValueError
        except ValueError:
            found = [here()]
            call()
        try:
            raise ValueError
        except:  # noqa: E722 (the other form)
            found.append(here())
            call()
        try:
            raise ExceptionGroup("", [ValueError()])
        except* ValueError:
            found.append(here())
            call()
        return found

    assert work() == [Landing.SAFE] * 3


class Finalized:
    def __init__(self, found):
        self.found = found

    def __del__(self):
        self.found.append(here())


def test_a_finalizer_is_cleanup():
    found = []
    Finalized(found)
    assert found == [Landing.CLEANUP]


def test_the_release_of_the_lock_of_logging_is_cleanup(monkeypatch):
    """Each fork calls it; since Python 3.13, it is a method of the lock, in C."""
    found = []

    class Lock:
        def release(self):
            found.append(here())

    release = getattr(logging, "_releaseLock", None)
    if release is not None:
        with monkeypatch.context() as patched:
            patched.setattr(logging, "_lock", Lock())
            release()
    assert found == ([] if release is None else [Landing.CLEANUP])


def innermost_in(call):
    """The verdict for a frame of the library, seen from the outside."""
    verdicts = []
    thread = threading.Thread(target=call)
    thread.start()
    while not verdicts:
        frame = sys._current_frames().get(thread.ident)
        if frame is not None and frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name == "wait":
            verdicts.append(judge(frame))
    return thread, verdicts[0]


def test_a_handler_of_logs_is_cleanup_while_a_task_that_was_not_awaited_is_destroyed():
    found = []

    class Handler(logging.Handler):
        def emit(self, record):
            found.append((here(), destination(sys._getframe(), test_code()).calls))

    async def fails():
        raise ValueError("of a task")

    async def main():
        task = asyncio.ensure_future(fails())
        await asyncio.wait([task])

    logger, handler = logging.getLogger("asyncio"), Handler()
    logger.addHandler(handler)
    try:
        asyncio.run(main())
        gc.collect()
    finally:
        logger.removeHandler(handler)
    assert found == [(Landing.CLEANUP, False)]


def test_the_library_s_invariants_are_fragile_and_the_user_s_line_is_named():
    items = queue.Queue()

    def work():
        items.get()

    thread, verdict = innermost_in(work)
    items.put(None)
    thread.join()
    assert verdict.landing is Landing.FRAGILE
    assert verdict.location == f"{__file__}:{work.__code__.co_firstlineno + 1}"


def test_an_event_loop_that_lost_a_task_would_never_end_and_stays_fragile():
    def of(module):
        scope = {"sys": sys}
        exec(compile("frame = sys._getframe()", module.__file__, "exec"), scope)
        return [judge(scope["frame"], library=library).landing for library in (True, False)]

    assert of(asyncio.base_events) == [Landing.FRAGILE, Landing.FRAGILE]
    assert of(queue) == [Landing.FRAGILE, Landing.SAFE]


def test_an_import_holds_it_off(tmp_path, monkeypatch):
    (tmp_path / "imported_by_a_test.py").write_text("import sys\nsys.modules['found_by_a_test'].append()\n")
    found = []

    class Found:
        def append(self):
            found.append(judge(sys._getframe(1)))

    monkeypatch.setitem(sys.modules, "found_by_a_test", Found())
    monkeypatch.syspath_prepend(tmp_path)
    import imported_by_a_test  # noqa: F401

    monkeypatch.delitem(sys.modules, "imported_by_a_test")
    assert found[0].landing is Landing.IMPORT
    assert found[0].location.startswith(__file__)


def test_without_a_frame_nothing_is_known():
    assert judge(None).landing is Landing.SAFE
    assert location(None) == "unknown"
    assert judge(sys._getframe(), sys._getframe().f_code).landing is Landing.SAFE


def test_frames_that_are_all_the_library_s_are_named_as_they_are():
    scope = {"sys": sys}
    exec(compile("frame = sys._getframe()", "<frozen made up>", "exec"), scope)
    frame = scope["frame"]

    class Alone:
        f_code, f_lineno, f_globals, f_back = frame.f_code, 1, {}, None

    assert location(Alone()) == "<frozen made up>:1"


def test_nvrx_is_a_library_and_its_fault_injection_is_not():
    def of(name):
        scope = {"__name__": name, "sys": sys}
        exec("frame = sys._getframe()", scope)
        return landing.is_library(scope["frame"])

    assert [of("nvrx_core.inprocess.call.call"), of("nvrx_core.testing.faults"), of("train")] == [True, False, False]


@pytest.mark.parametrize("family", ["CALL", "RESUME", "RERAISE", "PUSH_EXC_INFO", "POP_TOP", "RETURN_VALUE"])
def test_the_families_of_opcodes_are_there(family):
    """A later interpreter that renames one must be looked at."""
    assert any(name.startswith(family) for name in dis.opmap)


class Counted:
    def __init__(self):
        self.found = []

    def __len__(self):
        self.found.append(judge(sys._getframe(1)).landing)
        return 1


def test_a_call_that_the_interpreter_has_specialised_is_a_call():
    def work(counted):
        size = len(counted)
        try:
            call()
        finally:
            call()
        return size

    counted = Counted()
    for _ in range(100):
        work(counted)
    assert set(counted.found) == {Landing.ACQUIRES}


def test_a_call_begins_where_3_11_prepares_it():
    def work():
        call()
        try:
            call()
        finally:
            call()

    code = work.__code__
    calls = [each.offset for each in dis.get_instructions(code) if each.opname == "CALL"]
    prepared = [each.offset for each in dis.get_instructions(code) if each.opname in ("PRECALL", "CALL")]
    assert landing._ahead(code, prepared[0]) == landing._ahead(code, calls[0]) == (True, False)


def test_a_batch_of_sends_and_receives_is_ended_by_torch_first():
    """`batch_isend_irecv` begins a group of NCCL operations; only it can end the group."""
    text = "def batch_isend_irecv(operation):\n    return operation()\n"
    for path, expected in (("torch/distributed/distributed_c10d.py", Landing.BATCH), ("train.py", Landing.SAFE)):
        names = {}
        exec(compile(text, f"/site-packages/{path}", "exec"), names)
        assert names["batch_isend_irecv"](here) is expected


class Stopped:
    """A frame and its callers, as they are at this instruction."""

    def __init__(self, frame):
        self.f_code, self.f_lasti, self.f_lineno, self.f_globals = (
            frame.f_code, frame.f_lasti, frame.f_lineno, frame.f_globals
        )  # fmt: skip
        self.f_back = frame.f_back and Stopped(frame.f_back)


def lines_of(work, path=__file__):
    """The lines of a file that begin while the work runs: as frames that are stopped there, up to this one."""
    stopped, former, floor = [], sys.gettrace(), sys._getframe().f_code

    def trace(frame, event, argument):
        if event == "line":
            stopped.append(Stopped(frame))
        here = frame.f_code.co_filename == path and frame.f_code not in (floor, call.__code__)
        return trace if here else None

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(former)
    return stopped


def unsafe_lines(work):
    """The lines of this file that begin while the work runs, but those that an interruption may land on."""
    unsafe = [each for each in lines_of(work) if not is_safe_line(each, lines_of.__code__)]
    return [linecache.getline(__file__, each.f_lineno).strip() for each in unsafe]


def test_ordinary_lines_are_safe():
    def work():
        for _ in range(2):
            call()
        return {number: call() for number in range(3)}

    assert not unsafe_lines(work)


def test_a_line_is_not_safe_if_the_thread_enters_a_try_before_the_next_call():
    def work():
        before = call()
        found = before
        try:
            found = 1
            call()
        except ValueError:
            call()
        return found

    assert unsafe_lines(work) == ["found = before", "try:"]


def test_a_line_from_which_the_thread_returns_into_a_try_is_not_safe():
    def acquire():
        call()
        return 1

    def work():
        acquire()
        try:
            call()
        finally:
            call()

    assert unsafe_lines(work) == ["return 1", "try:", "call()"]


def test_no_line_of_a_handler_is_safe():
    def work():
        with contextlib.suppress(KeyError):
            try:
                raise KeyError
            except KeyError:
                call()
                raise
            finally:
                call()
        call()

    with_line = "with contextlib.suppress(KeyError):"
    assert unsafe_lines(work) == ["try:", "except KeyError:", "call()", "raise", "call()", with_line]


def test_a_line_of_a_handler_is_safe_if_the_handler_was_entered_before():
    def work():
        try:
            raise KeyError
        except KeyError:
            call()
            try:
                raise ValueError
            except ValueError:
                call()
            call()
        call()

    calls = [each for each in lines_of(work) if linecache.getline(__file__, each.f_lineno).strip() == "call()"]
    outer, inner, after, outside = map(handlers_of, calls)
    assert outside < after == outer < inner
    for within, expected in ((outside, (0, 0, 0, 1)), (outer, (1, 0, 1, 1)), (inner, (1, 1, 1, 1))):
        assert [is_safe_line(each, lines_of.__code__, within) for each in calls] == list(expected)


def test_an_exception_goes_at_the_end_of_its_handler_or_where_it_was_stored():
    class Noted(Exception):
        pass

    ends = []

    def raise_noted():
        error = Noted()
        noted.append(weakref.ref(error, lambda _: ends.append(drops_exception(sys._getframe(1)))))
        try:
            raise error
        finally:
            del error

    noted, stored = [], []
    with contextlib.suppress(Noted):
        raise_noted()
    try:
        raise_noted()
    except Noted:
        call()
    try:
        raise_noted()
    except Noted as error:
        str(error)
    try:
        raise_noted()
    except Noted as error:
        stored.append(error)
    stored.clear()
    assert ends == [True, True, True, False]


def test_an_exception_that_the_collector_destroys_during_a_call_is_dropped_by_no_handler():
    """The frame that calls is at a cache entry behind the call then, and at no instruction."""

    def ends():
        return drops_exception(sys._getframe(1))

    assert ends() is False
    try:
        raise ValueError
    except ValueError:
        assert ends() is False


def test_a_call_of_importlib_s_may_be_landed_in_where_it_begins():
    first, *others = lines_of(lambda: importlib.import_module("importlib"), importlib.__file__)
    assert is_safe_line(first, lines_of.__code__)
    assert others
    assert not any(is_safe_line(each, lines_of.__code__) for each in others)
    assert may_land_in(first)
    assert may_land_in(sys._getframe())
    scope = {"frame": sys._getframe}
    exec(compile("found = frame()", dis.__file__, "exec"), scope)
    assert not may_land_in(scope["found"])


def test_the_line_that_leaves_a_section_is_not_safe_and_the_one_that_enters_it_is():
    class Lock:
        def __enter__(self):
            call()

        def __exit__(self, *error):
            call()

    lock = Lock()

    def leaves(way):
        while True:
            with lock:
                call()
                if way == "break":
                    break
                if way == "return":
                    return 1
                call()
            return 2

    for way in ("break", "return", "falls through"):
        last = {"break": ["break"], "return": ["return 1"]}.get(way, [])
        assert unsafe_lines(lambda way=way: leaves(way)) == ["call()", *last, "with lock:", "call()"], way


def test_a_coroutine_that_waits_is_not_left_where_it_goes_on():
    class Steps:
        def __await__(self):
            yield
            yield

    async def work():
        await Steps()
        call()

    def run():
        coroutine = work()
        with contextlib.suppress(StopIteration):
            for _ in range(3):
                coroutine.send(None)

    at = [each.offset for each in dis.get_instructions(work.__code__) if each.opname in landing._NOT_BEGUN]
    assert len(at) >= 3
    assert not any(landing._is_safe_offset(work.__code__, offset) for offset in at)
    assert "call()" not in unsafe_lines(run)


def where():
    """What has to be reached from the caller."""
    return destination(sys._getframe(1), test_code())


def run_in(path, name="get"):
    """A function of this name in another file, which returns what has to be reached from it."""
    scope = {"where": where}
    exec(compile(f"def {name}():\n    return where()\n", path, "exec"), scope)
    return scope[name]


def test_the_caller_of_fragile_code_has_to_be_reached():
    class Left:
        def __exit__(self, *error):
            self.clean_up()

        def clean_up(self):
            try:
                call()
            finally:
                found.append(where())

    found = []

    def work():
        Left().__exit__()
        return sys._getframe()

    here = work()
    assert (found[0].frame.f_code, found[0].calls) == (here.f_code, False)

    def cleans_up():
        try:
            found.append(sys._getframe())
        finally:
            found.append(where())

    cleans_up()
    assert (found[-1].frame, found[-1].calls) == (found[-2], False)
    assert destination(sys._getframe(), test_code()) is None


def test_code_of_the_user_s_has_to_be_reached_unless_the_library_opens_something():
    def work(inner):
        found = inner()
        return found, sys._getframe()

    for path, name in ((queue.__file__, "get"), (asyncio.__file__, "start"), (__file__, "get")):
        found, frame = work(run_in(path, name))
        assert found.calls
        assert found.frame.f_code in (frame.f_code, *([] if path != __file__ else [found.frame.f_code]))
    for path, name in ((threading.__file__, "start"), (dis.__file__, "get")):
        assert work(run_in(path, name))[0] is None


def test_an_acquisition_by_the_library_has_to_end():
    acquire = run_in(dis.__file__, "acquire")

    def work():
        found = acquire()
        try:
            return found
        finally:
            call()

    found = work()
    assert (found.frame.f_code, found.calls) == (acquire.__code__, False)
