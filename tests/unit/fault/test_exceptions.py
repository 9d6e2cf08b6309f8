"""The exceptions chained to an exception."""

from dataclasses import dataclass

import pytest

from nvrx_core.fault.exceptions import add_note, chain_contains, exit_code, related, set_traceback


@dataclass(frozen=True)
class Frozen(Exception):
    """Refuses each assignment."""

    step: int


def chained(*, cause=None, context=None):
    error = ValueError("outer")
    error.__cause__, error.__context__ = cause, context
    return error


def test_causes_contexts_and_members_are_found_at_any_depth():
    inner, other = KeyError("inner"), OSError("other")
    group = BaseExceptionGroup("several", [chained(cause=inner), other])
    assert set(related(chained(context=group))) >= {inner, other, group}
    assert chain_contains(group, inner)
    assert not chain_contains(inner, group)


def test_a_cycle_of_exceptions_terminates():
    one, two = ValueError(1), ValueError(2)
    one.__context__, two.__cause__ = two, one
    assert list(related(one)) == [one, two]


def test_what_the_caller_handles_and_what_it_leads_to_is_left_out():
    outside = chained(cause=KeyError("inner"))
    error, other = chained(context=outside), OSError("other")
    error.__cause__ = other
    assert set(related(error, outside)) == {error, other}
    assert list(related(outside, outside)) == []


def test_no_exception_contains_nothing():
    assert list(related(None)) == []
    assert not chain_contains(None, ValueError())


@pytest.mark.parametrize("failures", ["a tuple", "bare", "none"])
def test_the_failures_of_a_torch_checkpoint_error_are_members(failures):
    inner = ValueError("disk full")

    class CheckpointError(BaseException):
        pass

    CheckpointError.__module__ = "torch.distributed.checkpoint.api"
    error = CheckpointError()
    error.failures = {"a tuple": {0: (inner, "stack")}, "bare": {0: inner}, "none": 7}[failures]
    assert chain_contains(error, inner) == (failures != "none")


def test_a_frozen_dataclass_gets_a_traceback_and_notes():
    with pytest.raises(Frozen) as raised:
        raise Frozen(3)
    error = raised.value
    assert error.__traceback__ is not None
    set_traceback(error, None)
    add_note(error, "one")
    add_note(error, "two")
    assert error.__traceback__ is None
    assert error.__notes__ == ["one", "two"]


def test_an_exception_may_have_no_module():
    error = type("Nameless", (Exception,), {"__module__": None})()
    assert list(related(error)) == [error]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SystemExit(3), 3),
        (SystemExit("over"), 1),
        (SystemExit(-1), 255),
        (SystemExit(256), 1),
        (SystemExit(0), 0),
        (SystemExit(False), 0),
        (SystemExit(), 0),
        (KeyboardInterrupt(), 130),
        (GeneratorExit(), 0),
        (ValueError(), 0),
        (BaseExceptionGroup("several", [SystemExit(3)]), 0),
    ],
    ids=repr,
)
def test_the_exit_code_is_that_of_a_process_that_ends_by_the_exception(error, code):
    assert exit_code(error) == code
