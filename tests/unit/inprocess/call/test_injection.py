# ruff: noqa: UP007, UP045 (the old forms of a union are what is tested)
"""Which parameters of a function get the call wrapper: by annotation in any form, or by name."""

import functools
import types
from typing import Optional, Union

import pytest

from nvrx_core.inprocess.call.injection import bind, parameters_for, refuse_shape


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


async def coroutine(): ...
async def async_generator():
    yield


def generator():
    yield


class Asynchronous:
    async def __call__(self): ...


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (coroutine, "coroutine is an async function"),
        (functools.partial(coroutine), "an async function"),
        (Asynchronous(), "an async function"),
        (async_generator, "async_generator is an async generator function"),
        (generator, "generator is a generator function"),
        (3, "Wrapper wraps a function, not 3; write"),
    ],
)
def test_a_body_that_would_run_after_the_call_is_refused(function, shape):
    with pytest.raises(TypeError, match=shape):
        refuse_shape(function)
    refuse_shape(plain)


def bound(function, names, args, kwargs):
    return bind(function, names, args, kwargs, kind=CallWrapper, new_handle=lambda parts: parts)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "told"),
    [
        (plain, (), {}, r"plain\(\): missing a required argument: 'x'"),
        (plain, (1, 2), {}, r"plain\(\): too many positional arguments"),
        (direct, (1,), {"other": 2}, r"direct\(\): got an unexpected keyword argument 'other'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(function, args, kwargs, told):
    with pytest.raises(TypeError, match=told):
        bound(function, parameters_for(CallWrapper, function), args, kwargs)


class Training:
    def run(self, call: CallWrapper, steps):
        return call, steps


def given(*args):
    return args


def first(call: CallWrapper, steps=3, *more):
    return given(call, steps, *more)


def last(x, call: CallWrapper):
    return given(x, call)


def default(x, call: CallWrapper | None = None, y=4):
    return given(x, call, y)


def two_of_them(call: CallWrapper, x, call_wrapper, y):
    return given(call, x, call_wrapper, y)


def positional_only(call: CallWrapper, x, /):
    return given(call, x)


def keyword(*x, call: CallWrapper):
    return given(*x, call)


@pytest.mark.parametrize(
    ("function", "args", "called_with"),
    [
        (last, (1,), (1, "handle")),
        (first, (), ("handle", 3)),
        (first, (5,), ("handle", 5)),
        (first, (5, 6, 7), ("handle", 5, 6, 7)),
        (default, (1,), (1, "handle", 4)),
        (default, (1, 2), (1, "handle", 2)),
        (default, (1, None), (1, "handle", 4)),
        (default, (1, None, 2), (1, "handle", 2)),
        (first, (None,), ("handle", None)),
        (two_of_them, (1, 2), ("handle", 1, "handle", 2)),
        (positional_only, (1,), ("handle", 1)),
        (keyword, (1, 2), (1, 2, "handle")),
        (Training().run, (5,), ("handle", 5)),
        (functools.partial(first, steps=8), (), ("handle", 8)),
    ],
)
def test_a_function_is_called_without_the_parameter_wherever_it_stands(function, args, called_with):
    assert bound(function, parameters_for(CallWrapper, function), args, {}).enter("handle") == called_with


def test_a_parameter_that_is_filled_already_is_left_alone():
    own = CallWrapper()
    assert bound(last, ("call",), (1, 2), {}).enter("handle") == (1, 2)
    assert bound(first, ("call",), (own, 2), {}).enter("handle") == (own, 2)
    made = bound(types.SimpleNamespace, ("call",), (), {}).enter("handle")
    assert made == types.SimpleNamespace(call="handle")
