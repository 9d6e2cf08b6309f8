"""The interruption in the thread that is interrupted: when the handler raises, and what holds it off."""

import gc
import logging
import signal
import threading

import pytest

from nvrx_core import failpoint
from nvrx_core.inprocess.interrupt import Atomic, Interrupt, RankShouldRestart, new_atomic
from nvrx_core.inprocess.interruption import Fire, Unblock, Why

SIGNUM = signal.SIGRTMIN + 3


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
    with pytest.raises(RankShouldRestart) as unwinding:
        fire()
    assert interrupt.alive
    fire()
    assert interrupt.raised == 1
    del unwinding
    gc.collect()
    assert not interrupt.alive
    with pytest.raises(RankShouldRestart):
        fire()


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


@pytest.mark.parametrize("struck", ["atomic-enter", "atomic-exit"])
def test_a_section_that_is_struck_is_closed(interrupt, struck):
    def strike(name, iteration):
        if name == struck:
            raise KeyError(name)

    failpoint.install(strike)
    try:
        with pytest.raises(KeyError), new_atomic(interrupt, 0):
            requested(interrupt, armed=False)
    finally:
        failpoint.clear()
    assert interrupt.depth == 0
    assert interrupt.free.is_set() == (struck == "atomic-exit")


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
    atomic = Atomic(interrupt)

    def work():
        try:
            fire()
        finally:
            interrupt.armed = False
            with atomic:
                assert interrupt.depth == 1

    with pytest.raises(RankShouldRestart):
        work()
    assert interrupt.raised == 1


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
    interrupt.drive(lambda: pytest.fail("nothing to unblock"))
    interrupt.out.clear()
    threading.Timer(0.0, interrupt.out.set).start()
    interrupt.drive(lambda: pytest.fail("nothing to unblock"))
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


def test_what_the_machine_asks_for_is_done(interrupt, caplog):
    requested(interrupt)
    unblocked = []
    interrupt._perform(Unblock(), lambda: unblocked.append(True))
    assert unblocked == [True]
    with pytest.raises(RankShouldRestart):
        interrupt._perform(Fire(Why.FIRST), lambda: None)
    signal.signal(SIGNUM, signal.SIG_IGN)
    with caplog.at_level(logging.ERROR):
        interrupt._perform(Fire(Why.FIRST), lambda: None)
    assert f"signal {SIGNUM} was given another handler" in caplog.text


def test_who_swallows_it_is_named(interrupt, caplog):
    requested(interrupt)
    with pytest.raises(RankShouldRestart):
        fire()
    with caplog.at_level(logging.DEBUG, logger="nvrx_core.inprocess"):
        for times in range(4):
            interrupt._name_swallower(times)
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "was swallowed 3 times, last at " in warning
    assert __file__ in warning


def test_the_stack_is_that_of_the_interrupted_thread(interrupt):
    assert "test_the_stack_is_that_of_the_interrupted_thread" in interrupt.stack()


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
    assert not made[0].stack()
    assert "does not run in the main thread" in caplog.text
