"""How long the exit of a process waits for threads of torch."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterable, Mapping

import pytest

from nvrx_core.process import native_threads
from nvrx_core.process.native_threads import RUNS, await_native_threads, sleeps

Look = Callable[[], Mapping[int, int]]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_threads, "PAUSE", 0.0)


def looks(seen: Iterable[Mapping[int, int]]) -> tuple[Look, list[Mapping[int, int]]]:
    """Return a look at threads in these states, and those that were looked at."""
    coming, had = iter(seen), list[Mapping[int, int]]()

    def look() -> Mapping[int, int]:
        had.append(next(coming))
        return had[-1]

    return look, had


@pytest.mark.parametrize(
    ("seen", "looked"),
    [
        ([{}], 1),
        ([{7: 3}, {7: 3}], 2),
        ([{7: 3}, {7: 4}, {7: 4}], 3),
        ([{7: RUNS}, {7: RUNS}, {7: 4}, {7: 4}], 4),
        ([{7: 3, 8: 2}, {7: 3}, {}], 3),
    ],
    ids=["no such thread", "all sleep", "one was woken", "one has not had a processor yet", "they end"],
)
def test_it_waits_until_each_has_slept_through_a_pause(seen: list[Mapping[int, int]], looked: int) -> None:
    look, had = looks(itertools.chain(seen, itertools.repeat({7: RUNS})))
    await_native_threads(look)
    assert had == seen[:looked]


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_threads, "AT_MOST", 0.05)
    await_native_threads(lambda: {7: RUNS})


def test_a_script_that_leaves_no_descriptor_free_ends_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> dict[int, str]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(native_threads, "thread_names", names)
    assert sleeps() == {}
