"""A callback of the user begins anew, also one that had no state as the fit began, and one that does not take it."""

from __future__ import annotations

import logging
from typing import Any

from nvrx_lightning.snapshot import _begin_anew


class Average:
    """A callback that has a state from its first step on."""

    def __init__(self, value: float | None) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {} if self.value is None else {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state.get("value")


def test_a_state_that_the_attempt_made_goes():
    callback = Average(3.0)
    _begin_anew(callback, {})
    assert callback.value is None


def test_the_initial_state_comes_back():
    callback = Average(3.0)
    _begin_anew(callback, {"value": 1.0})
    assert callback.value == 1.0


def test_a_callback_that_does_not_take_its_initial_state_is_named(caplog):
    class Strict(Average):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]

    callback = Strict(3.0)
    with caplog.at_level(logging.ERROR, "nvrx_lightning"):
        _begin_anew(callback, {})
    assert callback.value == 3.0
    assert "Strict does not take its initial state" in caplog.text


def test_a_callback_without_a_state_is_left_alone():
    class Plain(Average):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError

    _begin_anew(Plain(None), {})
