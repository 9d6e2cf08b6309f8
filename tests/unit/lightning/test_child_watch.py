"""Which failed ranks end the others."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from typing import Any

import pytest
from nvrx_lightning.restart import launcher
from nvrx_lightning.restart.launcher import ChildWatch


class Watched:
    """A child that fails once it is told to, and a watch that looks for it once it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.child = subprocess.Popen(["sh", "-c", "read _; exit 3"], stdin=subprocess.PIPE)
        self.watch, self.ended = ChildWatch([self.child]), list[Any]()
        self._watching, self._may_look, self._readable = threading.Event(), threading.Event(), launcher.readable
        monkeypatch.setattr(launcher, "readable", self._look)
        monkeypatch.setattr(self.watch, "_end_all", self.ended.append)
        self.watch.start()
        assert self._watching.wait(10)

    def _look(self, files: Any) -> Any:
        self._watching.set()
        assert self._may_look.wait(10)
        return self._readable(files)

    def fail(self) -> None:
        self.child.communicate()

    def look(self) -> None:
        self._may_look.set()
        self.watch.join(10)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_rank_that_fails_outside_of_a_fit_ends_all(watched: Watched) -> None:
    with watched.watch.held():
        pass
    watched.fail()
    watched.look()
    assert watched.ended == [watched.child]


def test_a_rank_that_failed_in_a_fit_ends_no_process_after_the_fit(watched: Watched) -> None:
    with watched.watch.held():
        watched.fail()
    watched.look()
    assert watched.ended == []


def test_after_a_fit_that_an_exception_has_ended_each_rank_ends_by_itself(watched: Watched) -> None:
    with contextlib.suppress(ValueError), watched.watch.held():
        raise ValueError
    watched.fail()
    watched.look()
    assert watched.ended == []
