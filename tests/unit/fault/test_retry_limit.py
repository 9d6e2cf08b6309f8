"""Giving up on a job that fails in the same way without progress."""

import pytest
from hypothesis import given, strategies as st

from nvrx_core.errors import InternalError
from nvrx_core.fault.retry_limit import NoProgressLimit, NoProgressState


def ended(machine, error_type="ValueError", origin="train.py:7", step=None, culprit=1, counts=True, **more):
    verdict = machine.iteration_ended(
        error_type=error_type, origin=origin, step=step, culprit=culprit, counts=counts, **more
    )
    machine.check()
    return verdict


def counts(machine, *ends):
    return [ended(machine, **end).count for end in ends]


def test_without_steps_equal_failures_count_from_the_first():
    machine = NoProgressLimit(3)
    assert [ended(machine).reached for _ in range(3)] == [False, False, True]


def test_another_type_or_origin_starts_anew():
    machine = NoProgressLimit(3)
    ends = (
        {},
        {},
        {"error_type": "KeyError"},
        {"error_type": "KeyError"},
        {"error_type": "KeyError", "origin": "x.py:1"},
    )
    assert counts(machine, *ends) == [1, 2, 1, 2, 1]


def test_another_line_that_raises_below_that_of_the_user_starts_anew():
    c10d, adam = {"raised_at": "torch/c10d.py:9"}, {"raised_at": "torch/adam.py:7"}
    assert counts(NoProgressLimit(3), c10d, c10d, adam, adam) == [1, 2, 1, 2]


def test_an_iteration_that_does_not_count_starts_anew():
    assert counts(NoProgressLimit(3), {}, {}, {"counts": False}, {}) == [1, 2, 0, 1]
    assert ended(NoProgressLimit(3), counts=False).reason.endswith("after a long iteration")


def test_restarts_back_off_from_the_third_equal_failure_on():
    machine, unlimited = NoProgressLimit(100), NoProgressLimit(None)
    assert [ended(machine).pause for _ in range(10)] == [0, 0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert {ended(unlimited).pause for _ in range(10)} == {0}
    assert ended(machine, error_type="KeyError").pause == 0


def test_a_step_beyond_the_highest_is_progress():
    machine = NoProgressLimit(2)
    steps = [{"step": step} for step in (5, 5, 6, 3, 6)]
    assert counts(machine, *steps) == [0, 1, 0, 1, 2]


def test_steps_that_go_on_without_what_has_failed_are_no_progress():
    """As where each checkpoint fails to be written, behind a step that is in memory."""
    machine, behind = NoProgressLimit(3), {"behind_step": True}
    assert counts(machine, *({"step": step, **behind} for step in (2, 5))) == [1, 2]
    verdict = ended(machine, step=8, **behind)
    assert verdict.reached
    assert "1: 3 in a row behind a commit, where a restart does not do it again (" in verdict.reason
    assert counts(machine, {"step": 9}, {"step": 9}) == [0, 1], "the highest step is known"


def test_a_long_training_between_failures_behind_a_step_does_not_count():
    behind = {"counts": False, "behind_step": True}
    assert counts(NoProgressLimit(3), *({"step": step, **behind} for step in (2, 5))) == [0, 0]


def test_no_step_after_steps_is_no_progress():
    assert counts(NoProgressLimit(9), {"step": 5}, {}, {"step": 0}) == [0, 1, 2]


def test_another_failure_after_progress_counts_from_one():
    assert counts(NoProgressLimit(9), {"step": 5}, {"error_type": "KeyError", "step": 5}) == [0, 1]


def test_the_verdict_names_the_culprit_and_says_why():
    machine = NoProgressLimit(1)
    assert ended(machine, step=4).reason == "ValueError at train.py:7 on initial rank 1 after progress to step 4"
    verdict = ended(machine, step=4)
    assert (verdict.reached, verdict.culprit) == (True, 1)
    where = "ValueError at train.py:7 on initial rank 1"
    assert verdict.reason == f"{where}: 1 in a row without a step beyond 4 (no_progress_limit=1, None for no limit)"


def test_the_reason_omits_what_is_unknown():
    verdict = ended(NoProgressLimit(None), "SOFT_TIMEOUT", "", culprit=None)
    assert verdict.reason == "SOFT_TIMEOUT: 1 in a row with no step reported (no_progress_limit is off)"


def test_without_a_limit_it_is_never_reached():
    machine = NoProgressLimit(None)
    assert not any(ended(machine).reached for _ in range(100))


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(ValueError, match=f"no_progress_limit={limit}: must be at least 1"):
        NoProgressLimit(limit)


def test_a_broken_invariant_of_the_state_is_reported():
    for broken in (NoProgressState(count=-1), NoProgressState(count=1)):
        with pytest.raises(InternalError, match="impossible count"):
            NoProgressLimit.from_state(3, broken).check()


ENDS = st.fixed_dictionaries({
    "error_type": st.sampled_from("ab"), "origin": st.sampled_from("xy"), "step": st.none() | st.integers(0, 3),
})  # fmt: skip


@given(st.lists(ENDS, max_size=20), st.integers(1, 4))
def test_a_machine_rebuilt_from_its_state_answers_the_same(ends, limit):
    machine = NoProgressLimit(limit)
    for end in ends:
        rebuilt = NoProgressLimit.from_state(limit, machine.state())
        assert ended(rebuilt, **end) == ended(machine, **end)
        assert hash(rebuilt.state()) == hash(machine.state())


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "PermissionError: [Errno 13] Permission denied: '/ckpt'",
            "PermissionError: [Errno 13] Permission denied: '/ckpt'",
        ),
        ("RuntimeError: Error(s) in loading:\n\tsize mismatch", "RuntimeError: Error(s) in loading:"),
        ("x" * 300, "x" * 200 + "..."),
        ("", "PermissionError"),
    ],
)
def test_the_reason_has_the_message_in_a_line(message, shown):
    verdict = NoProgressLimit(3).iteration_ended(
        error_type="PermissionError", origin="/me/train.py:7", step=None, culprit=0, message=message
    )
    assert verdict.reason.startswith(f"{shown} at /me/train.py:7 on initial rank 0: 1 in a row")
