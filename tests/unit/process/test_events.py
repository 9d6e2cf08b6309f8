"""Waits for events of `multiprocessing`."""

from __future__ import annotations

import multiprocessing

from nvrx_core.process.waiting import wait_for_mp_events


def test_all_events_are_awaited_within_one_time():
    first, second = multiprocessing.Event(), multiprocessing.Event()
    assert wait_for_mp_events([])
    first.set()
    assert not wait_for_mp_events([first, second], timeout=0.01)
    second.set()
    assert wait_for_mp_events([first, second], timeout=0)
