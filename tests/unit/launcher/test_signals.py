"""Signals to the launcher: which ones become events, and what is as before afterwards."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from nvrx_launcher.signals import signals_as_events


@pytest.fixture(params=[signal.SIG_IGN, signal.SIG_DFL])
def found(request: pytest.FixtureRequest) -> Iterator[signal.Handlers]:
    """The disposition of SIGHUP that the launcher finds."""
    before = signal.signal(signal.SIGHUP, request.param)
    yield request.param
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_that_is_ignored_stays_ignored(found: signal.Handlers) -> None:
    received: list[int] = []
    with signals_as_events([signal.SIGHUP], received.append) as (_, read):
        signal.raise_signal(signal.SIGHUP)
        if found is signal.SIG_DFL:
            read()
    assert received == ([] if found is signal.SIG_IGN else [signal.SIGHUP])
    assert signal.getsignal(signal.SIGHUP) is found
