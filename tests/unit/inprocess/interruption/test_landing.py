"""Where an interruption may land: judged by real frames, stopped where the interpreter could interrupt."""

import asyncio
import contextlib
import dis
import logging
import queue
import sys
import threading

import pytest

from nvrx_core.inprocess.interruption import landing
from nvrx_core.inprocess.interruption.landing import Landing, judge, location


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
