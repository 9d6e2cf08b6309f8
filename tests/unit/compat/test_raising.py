"""Exceptions that code raises in another thread by itself."""

import threading

import pytest
from nvrx_compat.raising import async_raise, reraise_if_unraisable


class Asked(Exception):
    """What is raised."""


class Ends:
    """Raises when it is gone, where nobody can catch it."""

    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


def test_a_thread_raises_it_when_it_runs():
    with pytest.raises(Asked):
        ask_and_wait(Asked)


def ask_and_wait(kind):
    async_raise(threading.get_ident(), kind)
    while True:
        threading.Event().wait(0.001)


def test_a_thread_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="tid=1: no thread has this ident"):
        async_raise(1, Asked)


def test_what_is_lost_in_a_destructor_is_raised_again():
    with reraise_if_unraisable(Asked), pytest.raises(Asked):
        lose_and_wait(Asked())


def lose_and_wait(error):
    Ends(error)
    while True:
        threading.Event().wait(0.001)


def test_other_losses_go_to_the_former_hook(monkeypatch):
    lost = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: lost.append(args.exc_value))
    error = KeyError()
    with reraise_if_unraisable(Asked):
        Ends(error)
    Ends(error)
    assert lost == [error, error]
