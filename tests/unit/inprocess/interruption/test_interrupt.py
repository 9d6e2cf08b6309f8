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
from nvrx_core.inprocess.interruption.interrupt import Delivery, Interrupt, Shot
from nvrx_core.inprocess.interruption.landing import Landing
from nvrx_core.inprocess.interruption.policy import FireReason
from nvrx_core.inprocess.interruption.swallowed import CaughtInterruptions, innermost_frames
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart
from nvrx_core.progress.page import ProgressField

SIGNUM = signal.SIGRTMIN + 3
NOTHING_BLOCKS = SimpleNamespace(unblock=lambda: pytest.fail("nothing to unblock"))


@pytest.fixture
def interrupt():
    made = Interrupt(SIGNUM, unwind=10.0)
    made.install()
    yield made
    made.uninstall()


def requested(interrupt, *, armed=True):
    interrupt.armed = armed
    interrupt.request(lambda: RankShouldRestart("the round ends"))
    return interrupt


def ask(operation):
    """Carry out one operation of a delivery."""

    async def flow():
        return await operation

    return run(flow())


def fire():
    signal.raise_signal(SIGNUM)


def test_a_requested_interruption_is_raised_where_the_function_is(interrupt):
    requested(interrupt)
    with pytest.raises(RankShouldRestart, match="the round ends"):
        fire()
    assert interrupt.raised == 1


def test_nothing_is_raised_before_the_request_or_outside_of_the_function(interrupt):
    interrupt.armed = True
    fire()
    requested(interrupt, armed=False)
    fire()
    assert interrupt.raised == 0


def test_a_request_made_before_is_raised_at_the_first_line(interrupt):
    requested(interrupt, armed=False)
    with pytest.raises(RankShouldRestart):
        interrupt.arm()
    interrupt.reset()
    interrupt.arm()
    assert interrupt.raised == 0


def test_while_the_exception_unwinds_it_is_not_raised_again(interrupt):
    requested(interrupt)

    def work():
        try:
            fire()
        finally:
            fire()

    with pytest.raises(RankShouldRestart):
        work()
    assert interrupt.raised == 1


def test_one_that_insists_does_not_land_in_the_cleanup_of_one_that_was_not_seen(interrupt):
    requested(interrupt)
    done = []

    def work():
        try:
            fire()
        finally:
            for seen in (False, True):
                interrupt.shot = Shot(raised=int(seen), insists=True)
                fire()
                done.append(seen)

    with pytest.raises(RankShouldRestart):
        work()
    assert done == [False]
    assert interrupt.raised == 2


def test_a_swallowed_or_stored_interruption_is_raised_again(interrupt):
    requested(interrupt)
    with pytest.raises(RankShouldRestart) as stored:
        fire()
    assert not interrupt.unwinds()
    with pytest.raises(RankShouldRestart) as again:
        fire()
    assert again.value is not stored.value
    assert interrupt.raised == 2


def test_an_exception_group_with_the_interruption_unwinds(interrupt):
    requested(interrupt)

    def work():
        try:
            try:
                fire()
            except RankShouldRestart as error:
                raise ValueError("because of it") from error
        finally:
            assert interrupt.unwinds()
            fire()

    with pytest.raises(ValueError, match="because of it"):
        work()
    assert interrupt.raised == 1


def test_an_atomic_section_holds_it_off_until_its_end(interrupt):
    atomic, done = Atomic(interrupt), []

    def work():
        with atomic, atomic:
            requested(interrupt)
            fire()
            done.append("in the section")
        done.append("after it")

    with pytest.raises(RankShouldRestart):
        work()
    assert done == ["in the section"]
    assert interrupt.depth == 0
    assert interrupt.free.is_set()


def test_without_a_hook_a_section_has_no_failpoints_to_look_at(interrupt):
    assert type(new_atomic(interrupt, 0)) is Atomic


def test_both_failpoints_of_a_section_are_passed_while_it_is_open(interrupt):
    passed = []
    failpoint.install(lambda name, iteration: passed.append((name, iteration, interrupt.depth)))
    try:
        with new_atomic(interrupt, 4):
            passed.append("in the section")
    finally:
        failpoint.clear()
    assert passed == [("atomic-enter", 4, 1), "in the section", ("atomic-exit", 4, 1)]
    assert interrupt.depth == 0


@pytest.mark.parametrize("interrupted", ["atomic-enter", "atomic-exit"])
def test_a_section_that_is_interrupted_is_closed(interrupt, interrupted):
    def raise_there(name, iteration):
        if name == interrupted:
            raise KeyError(name)

    failpoint.install(raise_there)
    try:
        with pytest.raises(KeyError), new_atomic(interrupt, 0):
            requested(interrupt, armed=False)
    finally:
        failpoint.clear()
    assert interrupt.depth == 0
    assert interrupt.free.is_set() == (interrupted == "atomic-exit")


def test_no_section_is_entered_after_the_request(interrupt):
    requested(interrupt)
    done = []
    with pytest.raises(RankShouldRestart), Atomic(interrupt):
        done.append("in the section")
    assert not done
    assert interrupt.depth == 0
    assert interrupt.free.is_set()


def test_cleanup_may_use_atomic_sections_while_the_exception_unwinds(interrupt):
    requested(interrupt)
    done = []

    def work():
        try:
            fire()
        finally:
            assert interrupt.armed
            with Atomic(interrupt):
                assert interrupt.depth == 1
                fire()
                done.append("saved")
            done.append("and left")

    with pytest.raises(RankShouldRestart):
        work()
    assert done == ["saved", "and left"]
    assert interrupt.raised == 1


def test_a_section_left_open_ends_with_the_iteration(interrupt):
    def suspended():
        with Atomic(interrupt):
            yield

    held = suspended()
    next(held)
    requested(interrupt)
    waiting = threading.Thread(target=interrupt.wait_unmasked)
    waiting.start()
    interrupt.leave()
    waiting.join(5.0)
    assert not waiting.is_alive()
    interrupt.reset()
    with Atomic(interrupt):
        held.close()
        assert interrupt.depth == 1
    assert interrupt.depth == 0


def test_an_atomic_section_belongs_to_its_thread(interrupt):
    errors = []

    def enter():
        try:
            Atomic(interrupt).__enter__()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert errors == ["atomic() belongs to the thread that runs the wrapped function; enter it there"]
    assert interrupt.depth == 0


def test_without_an_open_section_nobody_waits_for_its_end(interrupt):
    interrupt.wait_unmasked()
    interrupt.depth = 1
    interrupt.out.set()
    interrupt.wait_unmasked()


def test_a_handler_of_the_user_s_is_called_too():
    called = []
    before = signal.signal(SIGNUM, lambda signum, frame: called.append(signum))
    try:
        interrupt = Interrupt(SIGNUM, unwind=10.0)
        interrupt.install()
        fire()
        interrupt.uninstall()
        fire()
    finally:
        signal.signal(SIGNUM, before)
    assert called == [SIGNUM, SIGNUM]


def test_out_of_the_function_the_drive_is_over(interrupt):
    interrupt.out.set()
    interrupt.drive(NOTHING_BLOCKS)
    interrupt.out.clear()
    threading.Timer(0.0, interrupt.out.set).start()
    interrupt.drive(NOTHING_BLOCKS)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


def close(interrupt, unblock):
    """Close what the thread blocks in."""
    delivery = Delivery(interrupt)
    delivery.blocking = SimpleNamespace(unblock=unblock)
    ask(delivery.close_blocked())


def test_nothing_is_closed_for_a_thread_that_has_left_meanwhile(interrupt):
    interrupt.leave()
    close(interrupt, lambda: pytest.fail("the thread may block in a connection of the wrapper's"))


def test_a_thread_that_leaves_waits_until_what_is_being_closed_is_closed(interrupt):
    begun, closed = threading.Event(), []

    def unblock():
        begun.set()
        interrupt.out.wait(10.0)
        threading.Event().wait(0.05)
        closed.append(True)

    closing = threading.Thread(target=close, args=(interrupt, unblock))
    closing.start()
    begun.wait()
    interrupt.leave()
    assert closed == [True]
    closing.join()


def test_what_the_machine_asks_for_is_done(interrupt, caplog, monkeypatch):
    monkeypatch.setattr(interrupt_module, "FRESH", 60.0)  # this thread may lose its core between probe and signal
    requested(interrupt)
    unblocked = []
    close(interrupt, lambda: unblocked.append(True))
    assert unblocked == [True]
    with pytest.raises(RankShouldRestart):
        ask(Delivery(interrupt).fire(FireReason.FIRST))


def test_another_handler_gets_the_signal_and_is_named_once(interrupt, caplog):
    requested(interrupt)
    chained = []
    signal.signal(SIGNUM, lambda *_: chained.append(True))
    with caplog.at_level(logging.ERROR):
        for why in (FireReason.FIRST, FireReason.UNSEEN):
            ask(Delivery(interrupt).fire(why))
    assert len(chained) == 2
    assert caplog.text.count(f"signal {SIGNUM} was given another handler") == 1


def busy(begun):
    begun.set()
    while True:
        sum(range(10))


@pytest.mark.parametrize("reset", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_function_that_has_reset_its_signals_is_interrupted_without_one(interrupt, reset):
    requested(interrupt)
    signal.signal(SIGNUM, reset)
    begun = threading.Event()

    def drive():
        begun.wait()
        interrupt.drive(None)

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        with pytest.raises(RankShouldRestart):
            busy(begun)
    finally:
        interrupt.armed = False
        with suppress(Withdrawn):
            interrupt.drop()
        interrupt.leave()
        thread.join()
    assert interrupt.raised == 1
    interrupt.reset()
    interrupt.arm()
    assert signal.getsignal(SIGNUM) == interrupt._handle


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_the_line_of_each_handler_that_swallows_the_interruption_is_logged_once(interrupt, caplog):
    for _restart in range(2):
        interrupt.reset()
        requested(interrupt)
        with suppress(BaseException):
            fire()
        first = interrupt._handler
        for times in (1, 2, 3):
            interrupt._caught.swallowed(times, interrupt._last_frame, first)
        interrupt._caught.swallowed(4, interrupt._last_frame, "script.py:7")
    assert first.startswith(f"{__file__}:")
    assert [told.partition(", where")[0] for told in warnings(caplog)] == [
        f"the interruption of a restart was swallowed at {first}",
        "the interruption of a restart was swallowed at script.py:7",
    ]


def test_a_function_that_swallows_the_interruption_and_ends_is_told_of_its_handler(interrupt, caplog):
    requested(interrupt)
    try:
        fire()
    except BaseException:
        handled = True
    assert handled
    interrupt.leave()
    interrupt.drive(NOTHING_BLOCKS)
    (told,) = warnings(caplog)
    assert f"swallowed at {interrupt._handler}, where every BaseException is caught" in told
    assert told.endswith("the function has run on to its end")


def test_a_function_that_the_interruption_ends_is_told_of_no_handler(interrupt, caplog):
    requested(interrupt)
    with pytest.raises(RankShouldRestart):
        fire()
    interrupt.leave()
    interrupt.drive(NOTHING_BLOCKS)
    assert warnings(caplog) == []


def test_a_stored_interruption_that_goes_later_names_no_handler(interrupt):
    requested(interrupt)
    with suppress(BaseException):
        fire()
    assert interrupt._handler
    stored = []
    try:
        fire()
    except BaseException as error:
        stored.append(error)
    stored.clear()
    assert not interrupt._handler
    kept = threading.local()

    def keep():
        try:
            kept.error = stored.pop()
        finally:
            interrupt.armed = True

    try:
        fire()
    except BaseException as error:
        stored.append(error)
    in_a_thread(keep)  # it goes with the thread, in no frame
    assert not interrupt._handler


def test_what_a_package_swallows_is_no_warning(caplog):
    CaughtInterruptions().swallowed(1, "train.py:3", "/venv/lib/python3.11/site-packages/package/io.py:7")
    assert not warnings(caplog)


def test_the_line_that_swallows_the_interruption_is_logged_once(interrupt, caplog):
    requested(interrupt)
    with pytest.raises(RankShouldRestart):
        fire()
    with caplog.at_level(logging.DEBUG, logger="nvrx_core.inprocess"):
        for _restart in range(2):
            for times in range(4):
                interrupt._caught.swallowed(times, interrupt._last_frame, "")
    (warning,) = warnings(caplog)
    assert "was swallowed 3 times, last at " in warning
    assert __file__ in warning


def test_the_stack_is_that_of_the_interrupted_thread(interrupt):
    assert "test_the_stack_is_that_of_the_interrupted_thread" in innermost_frames(interrupt.thread)


def test_outside_of_the_main_thread_no_signal_is_used(caplog):
    made = []

    def make():
        interrupt = Interrupt(SIGNUM, unwind=10.0)
        interrupt.install()
        interrupt.uninstall()
        made.append(interrupt)

    thread = threading.Thread(target=make)
    with caplog.at_level(logging.WARNING, logger="nvrx_core.inprocess"):
        thread.start()
        thread.join()
    assert not made[0].by_signal
    assert not innermost_frames(made[0].thread)
    assert "does not run in the main thread" in caplog.text


@pytest.fixture
def _debugged():
    """A trace function of other code, which keeps the interruption from awaiting a line."""
    former = sys.gettrace()
    sys.settrace(lambda *event: None)
    yield
    sys.settrace(former)


@pytest.mark.usefixtures("_debugged")
def test_it_does_not_land_where_it_breaks_something_unless_it_must(interrupt):
    requested(interrupt)
    done = []

    def acquire_and_try():
        fire()
        try:
            done.append("entered")
        finally:
            done.append("cleaned up")

    acquire_and_try()
    assert done == ["entered", "cleaned up"]
    assert (interrupt.raised, interrupt.deferred, interrupt.landing) == (0, 1, Landing.ACQUIRES)
    interrupt.shot = Shot(waits=True)  # the lock may have been handed over since it was seen to wait
    acquire_and_try()
    assert (interrupt.raised, interrupt.deferred) == (0, 2)
    seen = ask(Delivery(interrupt).observe())
    assert (seen.waited, seen.ran > 0.0) == (1, True)
    interrupt.shot = Shot(insists=True)
    with pytest.raises(RankShouldRestart):
        acquire_and_try()
    assert len(done) == 4


@pytest.mark.usefixtures("_debugged")
def test_an_import_that_adds_modules_makes_progress_and_one_that_stands_still_does_not(interrupt, monkeypatch):
    requested(interrupt)
    reported = []
    monkeypatch.setattr(interrupt, "import_progressed", lambda: reported.append(len(reported)))
    delivery = Delivery(interrupt)
    monkeypatch.setattr(interrupt_module, "judge", lambda *_, **__: landing.Judged(Landing.IMPORT, "here"))
    for added, expected in (("a_module_of_a_test", 1), (None, 1), ("another_one_of_a_test", 2)):
        if added:
            monkeypatch.setitem(sys.modules, added, landing)
        fire()
        assert ask(delivery.observe()).deferred == interrupt.deferred
        ask(delivery.observe())
        assert len(reported) == expected


@pytest.mark.usefixtures("_debugged")
def test_a_second_signal_during_the_first_is_ignored(interrupt, monkeypatch):
    requested(interrupt)
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
    assert (len(judged), interrupt.raised, interrupt.deferred) == (2, 0, 1)


def test_inside_an_event_loop_it_is_what_asyncio_lets_through(interrupt):
    requested(interrupt)

    async def work():
        fire()

    with pytest.raises(RankShouldRestart) as raised:
        asyncio.run(work())
    assert isinstance(raised.value, KeyboardInterrupt)
    with pytest.raises(RankShouldRestart) as raised:
        fire()
    assert not isinstance(raised.value, KeyboardInterrupt)


def test_a_task_group_does_not_wrap_the_interruption(interrupt):
    requested(interrupt)

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
        interrupt = Interrupt(SIGNUM, unwind=10.0)
        interrupt.install()
        assert SIGNUM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        interrupt.uninstall()
        interrupt.uninstall()
        assert SIGNUM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [SIGNUM])


@pytest.mark.parametrize("may_come", [True, False])
def test_a_late_signal_does_not_terminate_the_process(may_come):
    interrupt = Interrupt(SIGNUM, unwind=10.0)
    interrupt.install()
    interrupt.uninstall(may_come=may_come)
    try:
        assert signal.getsignal(SIGNUM) == (signal.SIG_IGN if may_come else signal.SIG_DFL)
    finally:
        signal.signal(SIGNUM, signal.SIG_DFL)


def test_the_line_that_stores_the_interruption_is_logged(interrupt, caplog):
    requested(interrupt)
    kept = []
    try:
        fire()
    except RankShouldRestart as error:
        kept.append(error)
    line = sys._getframe().f_lineno - 3
    with caplog.at_level(logging.WARNING):
        ask(Delivery(interrupt).report_stored())
    with pytest.raises(RankShouldRestart):
        ask(Delivery(interrupt).fire(FireReason.STORED))
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


def test_the_signal_handler_reads_the_end_of_the_round_from_the_page(interrupt):
    interrupt._page = {ProgressField.ROUND_OVER: 4, ProgressField.ITERATION: 3}
    fire()
    assert interrupt.raised == 0  # not in the function
    interrupt.armed = True
    with pytest.raises(RankShouldRestart):
        fire()
    assert interrupt.requested


def test_a_function_that_is_profiled_begins_after_an_exception_was_withdrawn(interrupt):
    interrupt.armed = False
    with suppress(Withdrawn):
        interrupt._async.drop()
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
        interrupt = Interrupt(SIGNUM, unwind=10.0)
        interrupt.armed = True
        try:
            interrupt._async.set_if(0, None, -1)
            with suppress(Withdrawn):
                interrupt._async.drop()
            interrupt._async.set_if(0, None, -1)
            innermost_frames(interrupt.thread)
        except RankShouldRestart as error:
            caught.append((interrupt.raised, interrupt.unwinds(), type(pickle.loads(pickle.dumps(error)))))
        for armed, depth, raised in ((False, 0, 1), (True, 1, 1), (True, 0, 0)):
            interrupt.armed, interrupt.depth = armed, depth
            assert interrupt._async.set_if(raised, None, -1)
            innermost_frames(interrupt.thread)
        assert not interrupt._async.set_if(1, sys._getframe(), -1), "the thread has gone on"
        caught.append(interrupt.raised)

    in_a_thread(play)
    assert caught == [(1, True, RankShouldRestart), 1]
