"""Signals and log levels, by name or number."""

import logging
import signal

import pytest

from nvrx_core.settings.forms import Misread
from nvrx_core.settings.process_forms import ENDS_A_PROCESS, LOG_LEVEL, SIGNAL


@pytest.mark.parametrize("written", ["SIGTERM", "term", " sigterm ", 15, "15", signal.SIGTERM])
def test_a_signal_has_a_name_and_a_number(written):
    assert SIGNAL.read(written) is signal.SIGTERM
    assert SIGNAL.write(signal.SIGTERM) == "SIGTERM"


@pytest.mark.parametrize("written", ["SIGNONE", "SIG", "", 0, 1000, -9, True, None, 9.0, "_IGN"])
def test_what_is_no_signal_is_refused(written):
    with pytest.raises(Misread, match="name or the number of a signal"):
        SIGNAL.read(written)


def test_a_signal_that_stops_or_is_ignored_ends_no_process():
    ending = {each.name for each in signal.Signals if ENDS_A_PROCESS.holds(each)}
    assert {"SIGKILL", "SIGTERM", "SIGINT", "SIGABRT", "SIGUSR1"} <= ending
    assert not ending & {"SIGSTOP", "SIGTSTP", "SIGCONT", "SIGCHLD", "SIGWINCH", "SIGURG"}


@pytest.mark.parametrize(
    ("written", "level"),
    [
        ("INFO", logging.INFO), ("dbg", logging.DEBUG), ("Warn", logging.WARNING), ("WARNING", logging.WARNING),
        ("fatal", logging.CRITICAL), (25, 25), ("25", 25), (0, 0),
    ],
)  # fmt: skip
def test_a_log_level_has_a_name_and_a_number(written, level):
    assert LOG_LEVEL.read(written) == level


@pytest.mark.parametrize("written", ["VERBOSE", -1, "-1", True, None, 1.5, ""])
def test_what_is_no_log_level_is_refused(written):
    with pytest.raises(Misread, match="DEBUG, INFO"):
        LOG_LEVEL.read(written)


def test_a_log_level_is_written_by_its_name_where_it_has_one():
    assert [LOG_LEVEL.write(level) for level in (logging.DEBUG, logging.WARNING, 25)] == ["DEBUG", "WARNING", 25]
