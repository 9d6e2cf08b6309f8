# ruff: noqa: UP007, UP045 (the old forms of a union are what is tested)
"""Which parameters of a function get the call wrapper: by annotation in any form, or by name."""

import functools
import types
from typing import Optional, Union

import pytest

from nvrx_core.inprocess.call.injection import parameters_for


class CallWrapper:
    pass


def plain(x): ...
def direct(x, call: CallWrapper): ...
def optional(call: Optional[CallWrapper] = None): ...
def union(call: Union[int, CallWrapper, None] = None): ...
def pep604(call: CallWrapper | None = None): ...
def string(call: "CallWrapper"): ...
def string_optional(call: "Optional[CallWrapper]" = None): ...
def string_pep604(call: "CallWrapper | None" = None): ...
def string_elsewhere(call: "inprocess.CallWrapper | None" = None): ...  # noqa: F821
def string_optional_elsewhere(call: "Optional[inprocess.CallWrapper]" = None): ...  # noqa: F821
def forward(call: Optional["CallWrapper"] = None): ...
def by_name(call_wrapper): ...
def by_long_name(inprocess_call_wrapper=None): ...
def by_name_whatever_its_type(call_wrapper: int): ...
def twice(call_wrapper, other: CallWrapper): ...
def keyword_only(*, call: CallWrapper): ...
def another_type(call: int | None, text: "no such | thing"): ...  # noqa: F722


@pytest.mark.parametrize(
    "function",
    [direct, optional, union, pep604, string, string_optional, string_pep604, string_elsewhere,
     string_optional_elsewhere, forward, keyword_only],
)  # fmt: skip
def test_an_annotation_is_found_in_every_form(function):
    assert parameters_for(CallWrapper, function) == ("call",)


def test_a_parameter_is_found_by_its_name():
    assert parameters_for(CallWrapper, by_name) == ("call_wrapper",)
    assert parameters_for(CallWrapper, by_long_name) == ("inprocess_call_wrapper",)
    assert parameters_for(CallWrapper, by_name_whatever_its_type) == ("call_wrapper",)
    assert parameters_for(CallWrapper, twice) == ("call_wrapper", "other")


def test_other_parameters_are_left_alone():
    assert parameters_for(CallWrapper, plain) == parameters_for(CallWrapper, another_type) == ()


def test_wrapped_functions_and_methods_are_seen_through():
    @functools.wraps(string)
    def decorated(*args, **kwargs): ...

    class Trainer:
        def train(self, call: "CallWrapper"): ...

    assert parameters_for(CallWrapper, decorated) == parameters_for(CallWrapper, Trainer().train) == ("call",)


def test_what_has_no_signature_has_no_parameters():
    assert parameters_for(CallWrapper, types.SimpleNamespace) == ()
    assert parameters_for(CallWrapper, print) == ()
