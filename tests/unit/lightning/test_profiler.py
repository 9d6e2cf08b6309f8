"""The profiler that wraps the user's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from nvrx_lightning.monitoring.profiler import ActionListener, PhaseProfiler

WHAT = ("begin", "end", "fail")


class Users:
    """A profiler, as Lightning's are."""

    def __init__(self, heard: list[str]) -> None:
        self.heard, self.setting, self.broken = heard, 0, False

    def start(self, action_name: str) -> None:
        self.heard.append(f"start {action_name}")

    def stop(self, action_name: str) -> None:
        self.heard.append(f"stop {action_name}")
        if self.broken:
            raise ValueError(action_name)

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        self.start(action_name)
        try:
            yield action_name
        finally:
            self.stop(action_name)


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def profiler(heard: list[str]) -> PhaseProfiler:
    def find(action: str) -> ActionListener | None:
        heard.append(f"find {action}")
        return ActionListener(*(partial(heard.append, what) for what in WHAT)) if action == "step" else None

    return PhaseProfiler(Users(heard), find)


def test_the_listener_is_called_around_the_users_profiler(profiler: PhaseProfiler, heard: list[str]) -> None:
    with profiler.profile("step") as value:
        assert value == "step"
    profiler.start("step")
    profiler.stop("step")
    assert heard == ["find step", *2 * ["begin", "start step", "stop step", "end"]]


def test_other_actions_are_passed_on(profiler: PhaseProfiler, heard: list[str]) -> None:
    with profiler.profile("other"):
        pass
    profiler.start("other")
    profiler.stop("other")
    assert heard == ["find other", *2 * ["start other", "stop other"]]


def test_an_action_that_ends_by_an_exception_has_ended(profiler: PhaseProfiler, heard: list[str]) -> None:
    with pytest.raises(KeyError), profiler.profile("step"):
        raise KeyError
    assert heard[-2:] == ["stop step", "fail"]


def fetch(profiler: PhaseProfiler, error: BaseException | None) -> None:
    """As a data fetcher of Lightning does."""
    profiler.start("step")
    try:
        if error is not None:
            raise error
    finally:
        profiler.stop("step")


@pytest.mark.parametrize(("error", "end"), [(None, "end"), (StopIteration(), "end"), (OSError(), "fail")])
def test_a_stop_in_a_finally_knows_whether_an_exception_goes_through(
    profiler: PhaseProfiler, heard: list[str], error: BaseException | None, end: str
) -> None:
    try:
        raise LookupError
    except LookupError:  # a training may be started while an exception is handled
        with suppress(StopIteration, OSError):
            fetch(profiler, error)
    assert heard[-1] == end


def test_a_broken_profiler_leaves_nothing_open(profiler: PhaseProfiler, heard: list[str]) -> None:
    profiler.unwrap().broken = True
    with pytest.raises(ValueError, match="step"), profiler.profile("step"):
        pass
    with pytest.raises(ValueError, match="step"):
        profiler.stop("step")
    assert heard.count("fail") == 2
    assert "end" not in heard


def test_user_code_sees_its_own_profiler(profiler: PhaseProfiler) -> None:
    assert isinstance(profiler, Users)
    assert isinstance(profiler, PhaseProfiler)
    profiler.setting = 3
    assert profiler.setting == profiler.unwrap().setting == 3
