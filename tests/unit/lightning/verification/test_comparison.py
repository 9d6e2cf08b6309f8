"""The first difference between two fits, by its name and its place."""

from __future__ import annotations

import dataclasses

from nvrx_lightning.verification.comparison import Difference, Event, Observation, differences, unstable

EVENTS = [
    Event("epoch 0, batch 0", {"sample order": "a", "lr": "0.1", "output of training_step.loss": "2.0"}),
    Event("epoch 0, batch 1", {"sample order": "b", "lr": "0.1", "module.outputs": "list of 1"}),
]
FINAL = {"weights": {"net.weight": "x"}, "attribute": {"module.outputs": "list of 2"}}
SEEN = Observation(EVENTS, FINAL, [], injected=False, warnings=[], error="")


def changed(**fields: object) -> Observation:
    return dataclasses.replace(SEEN, **fields)


def with_field(number: int, name: str, text: str) -> Observation:
    events = list(EVENTS)
    events[number] = Event(events[number].where, {**events[number].fields, name: text})
    return changed(events=events)


def test_equal_fits_do_not_differ():
    assert list(differences(SEEN, SEEN)) == []


def test_a_difference_has_its_name_its_place_and_both_values():
    (found,) = differences(SEEN, with_field(1, "lr", "0.2"))
    assert found == Difference("lr", "epoch 0, batch 1", "0.1", "0.2")
    assert str(found) == "lr at epoch 0, batch 1: 0.1 became 0.2"


def test_what_is_ignored_is_not_compared():
    assert list(differences(SEEN, with_field(1, "lr", "0.2"), {"lr"})) == []


def test_a_value_that_one_fit_lacks_at_a_batch_is_not_compared():
    """A rank that is interrupted in a step which its peer saves has not seen the step's outcome."""
    lacking = Event(EVENTS[0].where, {"sample order": "a"})
    assert list(differences(SEEN, changed(events=[lacking, EVENTS[1]]))) == []


def test_a_batch_that_is_left_out_is_named():
    found = list(differences(SEEN, changed(events=EVENTS[1:])))
    assert found[0] == Difference("order of events", "epoch 0, batch 0", "epoch 0, batch 0", "epoch 0, batch 1")


def test_a_fit_that_ends_early_is_named():
    (found,) = differences(SEEN, changed(events=EVENTS[:1]))
    assert found == Difference("order of events", "the end", "epoch 0, batch 1", "")


def test_a_fit_that_ends_late_is_named():
    (found,) = differences(changed(events=EVENTS[:1]), SEEN)
    assert (found.expected, found.found) == ("", "epoch 0, batch 1")


def test_what_a_fit_leaves_is_compared_by_kind_and_name():
    found = differences(SEEN, changed(final={"weights": {"net.weight": "y"}, "attribute": {}}))
    assert [each.what for each in found] == ["weights net.weight", "module.outputs"]


def test_an_observation_is_read_back_from_its_file():
    assert Observation.read(SEEN.written()) == SEEN


def test_a_measured_time_is_unstable_and_does_not_stop_the_verification():
    other = changed(final={**FINAL, "metric": {"seconds": "0.1"}})
    first = changed(final={**FINAL, "metric": {"seconds": "0.2"}})
    assert unstable(first, other) == (frozenset({"metric seconds"}), None)


def test_a_training_that_does_not_repeat_is_told_by_what_differs_first():
    names, first = unstable(SEEN, with_field(0, "sample order", "z"))
    assert names == {"sample order"}
    assert first is not None
    assert first.what == "sample order"
