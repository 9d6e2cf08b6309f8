"""The interruption in the thread that is interrupted: when the handler raises, and what holds it off."""

import asyncio
import logging
import pickle
import signal
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from nvrx_core import failpoint
from nvrx_core.flow import run
from nvrx_core.inprocess.interruption import interrupt as interrupt_module, landing
from nvrx_core.inprocess.interruption.async_exception import Withdrawn
from nvrx_core.inprocess.interruption.atomic import Atomic, new_atomic
from nvrx_core.inprocess.interruption.interrupt import FunctionThread, Interrupter, Shot
from nvrx_core.inprocess.interruption.landing import Landing
from nvrx_core.inprocess.interruption.policy import FireReason
from nvrx_core.inprocess.interruption.swallowed import CaughtInterruptions, innermost_frames
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart
from nvrx_core.progress.page import ProgressField

SIGNUM = signal.SIGRTMIN + 3
NOTHING_BLOCKS = SimpleNamespace(unblock=lambda: pytest.fail("nothing to unblock"))


@pytest.fixture
def function_thread():
    made = FunctionThread(SIGNUM)
    made.install()
    yield made
    made.uninstall()


@pytest.fixture
def interrupter(function_thread):
    return Interrupter(function_thread, unwind=10.0)


def requested(function_thread, *, armed=True):
    function_thread.armed = armed
    Interrupter(function_thread, unwind=10.0).request(lambda: RankShouldRestart("the round ends"))


def ask(operation):
    """Carry out one operation of a delivery."""

    async def flow():
        return await operation

    return run(flow())


def fire():
    signal.raise_signal(SIGNUM)


def test_a_requested_interruption_is_raised_where_the_function_is(function_thread):
    requested(function_thread)
    with pytest.raises(RankShouldRestart, match="the round ends"):
        fire()
    assert function_thread.raised == 1


def test_nothing_is_raised_before_the_request_or_outside_of_the_function(function_thread):
    function_thread.armed = True
    fire()
    requested(function_thread, armed=False)
    fire()
    assert function_thread.raised == 0


def test_a_request_made_before_is_raised_at_the_first_line(function_thread):
    requested(function_thread, armed=False)
    with pytest.raises(RankShouldRestart):
        function_thread.arm()
    function_thread.reset()
    function_thread.arm()
    assert function_thread.raised == 0


def test_while_the_exception_unwinds_it_is_not_raised_again(function_thread):
    requested(function_thread)

    def work():
        try:
            fire()
        finally:
            fire()

    with pytest.raises(RankShouldRestart):
        work()
    assert function_thread.raised == 1


def test_one_that_insists_does_not_land_in_the_cleanup_of_one_that_was_not_seen(function_thread):
    requested(function_thread)
    done = []

    def work():
        try:
            fire()
        finally:
            for seen in (False, True):
                function_thread.shot = Shot(raised=int(seen), insists=True)
                fire()
                done.append(seen)

    with pytest.raises(RankShouldRestart):
        work()
    assert done == [False]
    assert function_thread.raised == 2


def test_a_swallowed_or_stored_interruption_is_raised_again(function_thread):
    requested(function_thread)
    with pytest.raises(RankShouldRestart) as stored:
        fire()
    assert not function_thread.unwinds()
    with pytest.raises(RankShouldRestart) as again:
        fire()
    assert again.value is not stored.value
    assert function_thread.raised == 2


def test_an_exception_group_with_the_interruption_unwinds(function_thread):
    requested(function_thread)

    def work():
        try:
            try:
                fire()
            except RankShouldRestart as error:
                raise ValueError("because of it") from error
        finally:
            assert function_thread.unwinds()
            fire()

    with pytest.raises(ValueError, match="because of it"):
        work()
    assert function_thread.raised == 1


def test_an_atomic_section_holds_it_off_until_its_end(function_thread):
    atomic, done = Atomic(function_thread), []

    def work():
        with atomic, atomic:
            requested(function_thread)
            fire()
            done.append("in the section")
        done.append("after it")

    with pytest.raises(RankShouldRestart):
        work()
    assert done == ["in the section"]
    assert function_thread.depth == 0
    assert function_thread.free.is_set()


def test_without_a_hook_a_section_has_no_failpoints_to_look_at(function_thread):
    assert type(new_atomic(function_thread, 0)) is Atomic


def test_both_failpoints_of_a_section_are_passed_while_it_is_open(function_thread):
    passed = []
    failpoint.install(lambda name, iteration: passed.append((name, iteration, function_thread.depth)))
    try:
        with new_atomic(function_thread, 4):
            passed.append("in the section")
    finally:
        failpoint.clear()
    assert passed == [("atomic-enter", 4, 1), "in the section", ("atomic-exit", 4, 1)]
    assert function_thread.depth == 0


@pytest.mark.parametrize("interrupted", ["atomic-enter", "atomic-exit"])
def test_a_section_that_is_interrupted_is_closed(function_thread, interrupted):
    def raise_there(name, iteration):
        if name == interrupted:
            raise KeyError(name)

    failpoint.install(raise_there)
    try:
        with pytest.raises(KeyError), new_atomic(function_thread, 0):
            requested(function_thread, armed=False)
    finally:
        failpoint.clear()
    assert function_thread.depth == 0
    assert function_thread.free.is_set() == (interrupted == "atomic-exit")


def test_no_section_is_entered_after_the_request(function_thread):
    requested(function_thread)
    done = []
    with pytest.raises(RankShouldRestart), Atomic(function_thread):
        done.append("in the section")
    assert not done
    assert function_thread.depth == 0
    assert function_thread.free.is_set()


def test_cleanup_may_use_atomic_sections_while_the_exception_unwinds(function_thread):
    requested(function_thread)
    done = []

    def work():
        try:
            fire()
        finally:
            assert function_thread.armed
            with Atomic(function_thread):
                assert function_thread.depth == 1
                fire()
                done.append("saved")
            done.append("and left")

    with pytest.raises(RankShouldRestart):
        work()
    assert done == ["saved", "and left"]
    assert function_thread.raised == 1


def test_a_section_left_open_ends_with_the_iteration(function_thread, interrupter):
    def suspended():
        with Atomic(function_thread):
            yield

    held = suspended()
    next(held)
    requested(function_thread)
    waiting = threading.Thread(target=interrupter.wait_unmasked)
    waiting.start()
    function_thread.leave()
    waiting.join(5.0)
    assert not waiting.is_alive()
    function_thread.reset()
    with Atomic(function_thread):
        held.close()
        assert function_thread.depth == 1
    assert function_thread.depth == 0


def test_an_atomic_section_belongs_to_its_thread(function_thread):
    errors = []

    def enter():
        try:
            Atomic(function_thread).__enter__()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert errors == ["atomic() belongs to the thread that runs the wrapped function; enter it there"]
    assert function_thread.depth == 0


def test_without_an_open_section_nobody_waits_for_its_end(function_thread, interrupter):
    interrupter.wait_unmasked()
    function_thread.depth = 1
    function_thread.out.set()
    interrupter.wait_unmasked()


def test_all_threads_that_wait_for_the_end_of_a_section_see_it(function_thread, interrupter):
    for _ in range(50):
        function_thread.reset()
        function_thread.depth = 1
        waiting = [threading.Thread(target=interrupter.wait_unmasked) for _ in range(3)]
        for thread in waiting:
            thread.start()
        function_thread.leave()
        for thread in waiting:
            thread.join(5.0)
        assert not any(thread.is_alive() for thread in waiting)


def test_a_handler_of_the_user_s_is_called_too():
    called = []
    before = signal.signal(SIGNUM, lambda signum, frame: called.append(signum))
    try:
        function_thread = FunctionThread(SIGNUM)
        function_thread.install()
        fire()
        function_thread.uninstall()
        fire()
    finally:
        signal.signal(SIGNUM, before)
    assert called == [SIGNUM, SIGNUM]


def test_out_of_the_function_the_drive_is_over(function_thread, interrupter):
    function_thread.out.set()
    interrupter.drive(NOTHING_BLOCKS)
    function_thread.out.clear()
    threading.Timer(0.0, function_thread.out.set).start()
    interrupter.drive(NOTHING_BLOCKS)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


def test_a_delivery_is_handed_on_once_it_is_under_way_no_more(interrupter, monkeypatch):
    used = []

    async def begin(machine, delivery, now):
        used.append(delivery)
        interrupter.drive(None)  # as another thread does, which has the rank leave

    async def drive(machine, delivery, now):
        used.append(delivery)

    monkeypatch.setattr(interrupt_module, "begin", begin)
    monkeypatch.setattr(interrupt_module, "drive", drive)
    interrupter.begin()
    interrupter.drive(None)
    begun, other, continued = used
    assert begun is not other
    assert begun is continued


def close(function_thread, unblock):
    """Close what the thread blocks in."""
    delivery = Interrupter(function_thread, unwind=10.0).new_delivery()
    delivery.blocking = SimpleNamespace(unblock=unblock)
    ask(delivery.close_blocked())


def test_nothing_is_closed_for_a_thread_that_has_left_meanwhile(function_thread):
    function_thread.leave()
    close(function_thread, lambda: pytest.fail("the thread may block in a connection of the wrapper's"))


def test_a_thread_that_leaves_waits_until_what_is_being_closed_is_closed(function_thread):
    begun, closed = threading.Event(), []

    def unblock():
        begun.set()
        function_thread.out.wait(10.0)
        threading.Event().wait(0.05)
        closed.append(True)

    closing = threading.Thread(target=close, args=(function_thread, unblock))
    closing.start()
    begun.wait()
    function_thread.leave()
    assert closed == [True]
    closing.join()


def test_what_the_machine_asks_for_is_done(function_thread, interrupter, caplog, monkeypatch):
    monkeypatch.setattr(interrupt_module, "FRESH", 60.0)  # this thread may lose its core between probe and signal
    requested(function_thread)
    unblocked = []
    close(function_thread, lambda: unblocked.append(True))
    assert unblocked == [True]
    with pytest.raises(RankShouldRestart):
        ask(interrupter.new_delivery().fire(FireReason.FIRST))


def test_another_handler_gets_the_signal_and_is_named_once(function_thread, interrupter, caplog):
    requested(function_thread)
    chained = []
    signal.signal(SIGNUM, lambda *_: chained.append(True))
    with caplog.at_level(logging.ERROR):
        for why in (FireReason.FIRST, FireReason.UNSEEN):
            ask(interrupter.new_delivery().fire(why))
    assert len(chained) == 2
    assert caplog.text.count(f"signal {SIGNUM} was given another handler") == 1


def busy(begun):
    begun.set()
    while True:
        sum(range(10))


@pytest.mark.parametrize("reset", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_function_that_has_reset_its_signals_is_interrupted_without_one(function_thread, interrupter, reset):
    requested(function_thread)
    signal.signal(SIGNUM, reset)
    begun = threading.Event()

    def drive():
        begun.wait()
        interrupter.drive(None)

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        with pytest.raises(RankShouldRestart):
            busy(begun)
    finally:
        function_thread.armed = False
        with suppress(Withdrawn):
            function_thread.drop()
        function_thread.leave()
        thread.join()
    assert function_thread.raised == 1
    function_thread.reset()
    function_thread.arm()
    assert signal.getsignal(SIGNUM) == function_thread.handle_signal


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_the_line_of_each_handler_that_swallows_the_interruption_is_logged_once(function_thread, interrupter, caplog):
    for _restart in range(2):
        function_thread.reset()
        requested(function_thread)
        with suppress(BaseException):
            fire()
        first = function_thread.swallowed_at
        for times in (1, 2, 3):
            interrupter._caught.swallowed(times, function_thread.landed_at, first)
        interrupter._caught.swallowed(4, function_thread.landed_at, "script.py:7")
    assert first.startswith(f"{__file__}:")
    assert [told.partition(", where")[0] for told in warnings(caplog)] == [
        f"the interruption of a restart was swallowed at {first}",
        "the interruption of a restart was swallowed at script.py:7",
    ]


def test_a_function_that_swallows_the_interruption_and_ends_is_told_of_its_handler(
    function_thread, interrupter, caplog
):
    requested(function_thread)
    try:
        fire()
    except BaseException:
        handled = True
    assert handled
    function_thread.leave()
    interrupter.drive(NOTHING_BLOCKS)
    (told,) = warnings(caplog)
    assert f"swallowed at {function_thread.swallowed_at}, where every BaseException is caught" in told
    assert told.endswith("the function has run on to its end")


def test_a_function_that_the_interruption_ends_is_told_of_no_handler(function_thread, interrupter, caplog):
    requested(function_thread)
    with pytest.raises(RankShouldRestart):
        fire()
    function_thread.leave()
    interrupter.drive(NOTHING_BLOCKS)
    assert warnings(caplog) == []


def test_a_stored_interruption_that_goes_later_names_no_handler(function_thread):
    requested(function_thread)
    with suppress(BaseException):
        fire()
    assert function_thread.swallowed_at
    stored = []
    try:
        fire()
    except BaseException as error:
        stored.append(error)
    stored.clear()
    assert not function_thread.swallowed_at
    kept = threading.local()

    def keep():
        try:
            kept.error = stored.pop()
        finally:
            function_thread.armed = True

    try:
        fire()
    except BaseException as error:
        stored.append(error)
    in_a_thread(keep)  # it goes with the thread, in no frame
    assert not function_thread.swallowed_at


def test_what_a_package_swallows_is_no_warning(caplog):
    CaughtInterruptions().swallowed(1, "train.py:3", "/venv/lib/python3.11/site-packages/package/io.py:7")
    assert not warnings(caplog)


def test_the_line_that_swallows_the_interruption_is_logged_once(function_thread, interrupter, caplog):
    requested(function_thread)
    with pytest.raises(RankShouldRestart):
        fire()
    with caplog.at_level(logging.DEBUG, logger="nvrx_core.inprocess"):
        for _restart in range(2):
            for times in range(4):
                interrupter._caught.swallowed(times, function_thread.landed_at, "")
    (warning,) = warnings(caplog)
    assert "was swallowed 3 times, last at " in warning
    assert __file__ in warning


def test_the_stack_is_that_of_the_interrupted_thread(function_thread):
    assert "test_the_stack_is_that_of_the_interrupted_thread" in innermost_frames(function_thread.ident)


def test_outside_of_the_main_thread_no_signal_is_used(caplog):
    made = []

    def make():
        function_thread = FunctionThread(SIGNUM)
        function_thread.install()
        function_thread.uninstall()
        made.append(function_thread)

    thread = threading.Thread(target=make)
    with caplog.at_level(logging.WARNING, logger="nvrx_core.inprocess"):
        thread.start()
        thread.join()
    assert not made[0].by_signal
    assert not innermost_frames(made[0].ident)
    assert "does not run in the main thread" in caplog.text


@pytest.fixture
def _debugged():
    """A trace function of other code, which keeps the interruption from awaiting a line."""
    former = sys.gettrace()
    sys.settrace(lambda *event: None)
    yield
    sys.settrace(former)


@pytest.mark.usefixtures("_debugged")
def test_it_does_not_land_where_it_breaks_something_unless_it_must(function_thread, interrupter):
    requested(function_thread)
    done = []

    def acquire_and_try():
        fire()
        try:
            done.append("entered")
        finally:
            done.append("cleaned up")

    acquire_and_try()
    assert done == ["entered", "cleaned up"]
    assert (function_thread.raised, function_thread.deferred) == (0, 1)
    assert function_thread.deferral.landing is Landing.ACQUIRES
    function_thread.shot = Shot(waits=True)  # the lock may have been handed over since it was seen to wait
    acquire_and_try()
    assert (function_thread.raised, function_thread.deferred) == (0, 2)
    seen = ask(interrupter.new_delivery().observe())
    assert (seen.waited, seen.ran > 0.0) == (1, True)
    acquire_and_try()
    seen = ask(interrupter.new_delivery().observe())
    assert (seen.deferred, seen.waited) == (3, 1), "the wait was seen for one signal"
    function_thread.shot = Shot(insists=True)
    with pytest.raises(RankShouldRestart):
        acquire_and_try()
    assert len(done) == 6


@pytest.mark.usefixtures("_debugged")
def test_where_it_lands_is_told_by_who_has_judged_last(function_thread, interrupter, monkeypatch, caplog):
    requested(function_thread)
    delivery = interrupter.new_delivery()
    for reset, judged in ((True, Landing.FRAGILE), (False, Landing.IMPORT), (True, Landing.CLEANUP)):
        signal.signal(SIGNUM, signal.SIG_DFL if reset else function_thread.handle_signal)
        verdict = landing.Judged(judged, f"train.py:{len(judged.value)}")
        monkeypatch.setattr(interrupt_module, "judge", lambda *_, verdict=verdict, **__: verdict)
        before = ask(delivery.observe())
        ask(delivery.fire(FireReason.UNSEEN))
        seen = ask(delivery.observe())
        assert (seen.deferred, seen.landing) == (before.deferred + 1, judged)
        ask(delivery.report_deferred())
        assert caplog.messages[-1] == f"the interruption was deferred at {verdict.location}: {judged.value}"
    assert (function_thread.raised, function_thread.deferred) == (0, 1)


@pytest.mark.usefixtures("_debugged")
def test_an_import_that_adds_modules_makes_progress_and_one_that_stands_still_does_not(
    function_thread, interrupter, monkeypatch
):
    requested(function_thread)
    reported = []
    monkeypatch.setattr(function_thread, "import_progressed", lambda: reported.append(len(reported)))
    delivery = interrupter.new_delivery()
    monkeypatch.setattr(interrupt_module, "judge", lambda *_, **__: landing.Judged(Landing.IMPORT, "here"))
    for added, expected in (("a_module_of_a_test", 1), (None, 1), ("another_one_of_a_test", 2)):
        if added:
            monkeypatch.setitem(sys.modules, added, landing)
        fire()
        assert ask(delivery.observe()).deferred == function_thread.deferred
        ask(delivery.observe())
        assert len(reported) == expected


@pytest.mark.usefixtures("_debugged")
def test_a_second_signal_during_the_first_is_ignored(function_thread, monkeypatch):
    requested(function_thread)
    judged = []

    def judge_and_be_hit(frame, catching_code, *, library):
        judged.append(frame)
        fire()
        return landing.judge(frame, catching_code, library=library)

    monkeypatch.setattr(interrupt_module, "judge", judge_and_be_hit)

    def acquire_and_try():
        fire()
        try:
            judged.append("entered")
        finally:
            len("released")

    acquire_and_try()
    assert (len(judged), function_thread.raised, function_thread.deferred) == (2, 0, 1)


def test_inside_an_event_loop_it_is_what_asyncio_lets_through(function_thread):
    requested(function_thread)

    async def work():
        fire()

    with pytest.raises(RankShouldRestart) as raised:
        asyncio.run(work())
    assert isinstance(raised.value, KeyboardInterrupt)
    with pytest.raises(RankShouldRestart) as raised:
        fire()
    assert not isinstance(raised.value, KeyboardInterrupt)


def test_a_task_group_does_not_wrap_the_interruption(function_thread):
    requested(function_thread)

    async def child():
        fire()

    async def work():
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    with pytest.raises(RankShouldRestart):
        asyncio.run(work())


def test_the_signal_is_let_through_and_all_is_put_back():
    signal.pthread_sigmask(signal.SIG_BLOCK, [SIGNUM])
    try:
        function_thread = FunctionThread(SIGNUM)
        function_thread.install()
        assert SIGNUM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        function_thread.uninstall()
        function_thread.uninstall()
        assert SIGNUM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [SIGNUM])


@pytest.mark.parametrize("may_come", [True, False])
def test_a_late_signal_does_not_terminate_the_process(may_come):
    function_thread = FunctionThread(SIGNUM)
    function_thread.install()
    function_thread.uninstall(may_come=may_come)
    try:
        assert signal.getsignal(SIGNUM) == (signal.SIG_IGN if may_come else signal.SIG_DFL)
    finally:
        signal.signal(SIGNUM, signal.SIG_DFL)


def test_the_line_that_stores_the_interruption_is_logged(function_thread, interrupter, caplog):
    requested(function_thread)
    kept = []
    try:
        fire()
    except RankShouldRestart as error:
        kept.append(error)
    line = sys._getframe().f_lineno - 3
    with caplog.at_level(logging.WARNING):
        ask(interrupter.new_delivery().report_stored())
    with pytest.raises(RankShouldRestart):
        ask(interrupter.new_delivery().fire(FireReason.STORED))
    assert f"was caught and stored at {__file__}:{line}" in caplog.text


def stored_at(file, line):
    """Return an exception that has unwound from another file up to this line of it."""
    try:
        exec(compile("\n" * (line - 1) + "raise ValueError", file, "exec"), {})
    except ValueError as error:
        return error.with_traceback(error.__traceback__.tb_next)


def test_each_place_that_stores_the_interruption_is_logged_once(caplog):
    caught = CaughtInterruptions()
    for line in (3, 3, 7, 3, 7):
        caught.stored(stored_at("script.py", line), __file__, "unknown")
        caught.stored(stored_at("/venv/lib/python3.11/site-packages/torch/distributed.py", line), __file__, "unknown")
    assert warnings(caplog) == [
        f"the interruption was caught and stored at script.py:{line}; raising it again" for line in (3, 7)
    ]


def test_the_signal_handler_reads_the_end_of_the_round_from_the_page(function_thread):
    function_thread._page = {ProgressField.ROUND_OVER: 4, ProgressField.ITERATION: 3}
    fire()
    assert function_thread.raised == 0  # not in the function
    function_thread.armed = True
    with pytest.raises(RankShouldRestart):
        fire()
    assert function_thread.requested


def test_a_function_that_is_profiled_begins_after_an_exception_was_withdrawn(function_thread, interrupter):
    function_thread.armed = False
    with suppress(Withdrawn):
        interrupter._exception.drop()
    begun = []
    former = sys.getprofile()
    sys.setprofile(lambda *event: None)
    try:
        fire_nothing(begun)
    finally:
        sys.setprofile(former)
    assert begun


def fire_nothing(begun):
    begun.append(True)


def in_a_thread(play):
    thread = threading.Thread(target=play)
    thread.start()
    thread.join()


def test_an_exception_that_was_asked_for_in_another_thread_is_raised_once_or_taken_back():
    caught = []

    def play():
        function_thread = FunctionThread(SIGNUM)
        interrupter = Interrupter(function_thread, unwind=10.0)
        function_thread.armed = True
        try:
            interrupter._exception.set_if(0, None, -1)
            with suppress(Withdrawn):
                interrupter._exception.drop()
            interrupter._exception.set_if(0, None, -1)
            innermost_frames(function_thread.ident)
        except RankShouldRestart as error:
            caught.append((function_thread.raised, function_thread.unwinds(), type(pickle.loads(pickle.dumps(error)))))
        for armed, depth, raised in ((False, 0, 1), (True, 1, 1), (True, 0, 0)):
            function_thread.armed, function_thread.depth = armed, depth
            assert interrupter._exception.set_if(raised, None, -1)
            innermost_frames(function_thread.ident)
        assert not interrupter._exception.set_if(1, sys._getframe(), -1), "the thread has gone on"
        caught.append(function_thread.raised)

    in_a_thread(play)
    assert caught == [(1, True, RankShouldRestart), 1]
