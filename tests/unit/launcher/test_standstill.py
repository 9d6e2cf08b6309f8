"""The launcher's own pauses."""

import pytest
from nvrx_launcher.loop import Pause, Standstill
from nvrx_launcher.rendezvous.lease import Lease


@pytest.fixture
def standstill():
    return Standstill(now=100.0)


def test_waiting_is_no_pause(standstill):
    assert standstill.turned(150.0, asked=100.1, now=150.2) is None
    assert standstill.turned(1e9, asked=150.3, now=180.0) is None


def test_a_loop_that_wakes_late_was_stopped(standstill):
    pause = standstill.turned(101.0, asked=100.0, now=108.0)
    assert pause == Pause(7.0, 8.0, "", is_busy=False)
    assert pause.is_worth_a_line
    assert str(pause) == "this launcher stood still for 7 to 8 s: it was stopped, or got no processor"


def test_what_took_long_is_named(standstill):
    standstill.did("opening files", 0.1)
    standstill.did("starting the workers", 2.9)
    standstill.did("opening files", 0.1)
    pause = standstill.turned(103.0, asked=103.0, now=103.0)
    assert str(pause) == "this launcher stood still for 3 s, starting the workers"


def test_a_loop_that_was_long_at_work_may_have_waited_for_a_file(standstill):
    assert str(standstill.turned(103.0, asked=103.0, now=103.0)).endswith(
        "3 s: it was stopped, or got no processor, or a file that it writes or reads did not answer"
    )


def test_what_took_a_small_part_of_it_is_not_named(standstill):
    standstill.did("starting the workers", 0.5)
    pause = standstill.turned(101.0, asked=101.2, now=101.2)
    assert pause == Pause(pytest.approx(1.2), pytest.approx(1.2), "", is_busy=True)
    assert not pause.is_worth_a_line
    assert standstill.turned(105.0, asked=101.2, now=105.0) is None


def test_a_pause_of_the_launcher_is_no_silence_of_the_store():
    """It has a beat to renew its lease, and the answer to an old renewal does not end that."""
    lease = Lease(1.0, 4.0)
    lease.moved(begun=10.0)
    assert lease.deadline == 14.0
    lease.paused(now=17.0)
    lease.moved(begun=10.5)
    assert not lease.is_lost(now=17.9)
    assert lease.is_lost(now=18.0)
    lease.moved(begun=17.5)
    assert lease.deadline == 21.5


def test_a_pause_without_a_lease_gives_none():
    lease = Lease(1.0, 4.0)
    lease.paused(now=17.0)
    assert not lease.is_lost(now=1e9)
