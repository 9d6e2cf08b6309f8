"""Learned timeouts, against figures worked by hand."""

from __future__ import annotations

import pytest

from nvrx_core.fault_tolerance.data import HeartbeatTimeouts, RankMonitorClientError, SectionTimeouts
from nvrx_core.fault_tolerance.timeouts import (
    Measured,
    from_state,
    in_force,
    learn_heartbeat,
    learn_sections,
    to_state,
)

MEASURED = Measured(initial=10.0, subsequent=2.0, out_of_section=0.5, sections={"step": 1.0, "save": 8.0})


def test_a_learned_timeout_is_the_longest_interval_times_the_safety_factor():
    configured = HeartbeatTimeouts(3600.0, 2700.0)
    assert learn_heartbeat(configured, MEASURED, 5.0) == HeartbeatTimeouts(50.0, 10.0, were_calculated=True)


def test_a_second_calculation_is_the_mean_of_both():
    first = HeartbeatTimeouts(30.0, 20.0, were_calculated=True)
    assert learn_heartbeat(first, MEASURED, 5.0) == HeartbeatTimeouts(40.0, 15.0, were_calculated=True)


def test_configured_section_timeouts_are_replaced_and_learned_ones_averaged():
    current = SectionTimeouts({"step": 9.0, "save": 20.0, "eval": 7.0}, 60.0, frozenset({"save"}), False)
    learned = learn_sections(current, MEASURED, 5.0, ["step", "save"], out_of_section=True)
    assert learned == SectionTimeouts(
        {"step": 5.0, "save": 30.0, "eval": 7.0}, 2.5, frozenset({"step", "save"}), is_out_of_section_calculated=True
    )


def test_the_time_out_of_sections_is_averaged_once_it_was_learned():
    current = SectionTimeouts({}, 7.5, frozenset(), is_out_of_section_calculated=True)
    assert learn_sections(current, MEASURED, 5.0, [], out_of_section=True).out_of_section == 5.0


def test_the_time_out_of_sections_stays_where_it_is_not_asked_for():
    current = SectionTimeouts({}, 60.0)
    learned = learn_sections(current, MEASURED, 5.0, ["step"], out_of_section=False)
    assert (learned.out_of_section, learned.is_out_of_section_calculated) == (60.0, False)


@pytest.mark.parametrize(
    ("measured", "heartbeats", "sections"),
    [
        (MEASURED, True, True),
        (Measured(initial=1.0), False, False),
        (Measured(subsequent=1.0, sections={"step": 1.0}), False, False),
        (Measured(out_of_section=1.0, sections={"step": 0.0}), False, False),
        (Measured(out_of_section=1.0, sections={"step": 1.0}), False, True),
    ],
)
def test_what_was_not_measured_cannot_be_learned(measured, heartbeats, sections):
    assert measured.has_heartbeats() is heartbeats
    assert measured.has_sections(["step"], out_of_section=True) is sections


def test_section_timeouts_say_whether_all_are_there_and_whether_all_were_learned():
    assert not SectionTimeouts({"step": None}, 1.0).are_valid
    assert SectionTimeouts({"step": 1.0}, 1.0).are_valid
    assert not SectionTimeouts({"step": 1.0}, 1.0, frozenset({"step"})).were_calculated
    assert SectionTimeouts({"step": 1.0}, 1.0, frozenset({"step"}), is_out_of_section_calculated=True).were_calculated
    assert not HeartbeatTimeouts(1.0).are_valid
    assert HeartbeatTimeouts(1.0, 1.0).are_valid


HEARTBEAT = HeartbeatTimeouts(50.0, 10.0, were_calculated=True)
SECTIONS = SectionTimeouts(
    {"step": 5.0, "save": 30.0, "eval": 7.0}, 2.5, frozenset({"step", "save"}), is_out_of_section_calculated=True
)
STATE = {
    "current_timeouts": {
        "heartbeat": {"initial": 50.0, "subsequent": 10.0, "were_calculated": True},
        "section": {
            "section": {"step": 5.0, "save": 30.0, "eval": 7.0},
            "out_of_section": 2.5,
            "calculated_sections": ["save", "step"],
            "is_out_of_section_calculated": True,
        },
    }
}


def test_a_state_has_what_was_learned():
    assert to_state(HEARTBEAT, SECTIONS) == STATE
    assert to_state(HeartbeatTimeouts(50.0, 10.0), SectionTimeouts({"step": 5.0}, 2.5)) == {"current_timeouts": {}}
    only_out = SectionTimeouts({}, 2.5, is_out_of_section_calculated=True)
    assert to_state(HeartbeatTimeouts(), only_out)["current_timeouts"].keys() == {"section"}


def test_what_was_learned_replaces_what_is_configured_and_nothing_else_does():
    configured = SectionTimeouts({"eval": 70.0, "step": 80.0}, 60.0)
    heartbeat, sections = from_state(STATE, HeartbeatTimeouts(3600.0, 2700.0), configured)
    assert heartbeat == HEARTBEAT
    assert sections == SectionTimeouts(
        {"eval": 70.0, "step": 5.0, "save": 30.0}, 2.5, frozenset({"step", "save"}), is_out_of_section_calculated=True
    )


def test_an_empty_state_changes_nothing():
    assert from_state({"current_timeouts": {}}, HEARTBEAT, SECTIONS) == (HEARTBEAT, SECTIONS)


def test_times_out_of_sections_that_were_not_learned_stay_as_configured():
    state = to_state(HeartbeatTimeouts(), SectionTimeouts({"step": 5.0}, 2.5, frozenset({"step"})))
    _, sections = from_state(state, HEARTBEAT, SectionTimeouts({}, 60.0))
    assert (sections.out_of_section, sections.is_out_of_section_calculated) == (60.0, False)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"current_timeouts": 3},
        {"current_timeouts": {"heartbeat": {}}},
        {"current_timeouts": {"heartbeat": {"initial": None, "subsequent": 1.0, "were_calculated": True}}},
        {"current_timeouts": {"heartbeat": {"initial": float("nan"), "subsequent": 1.0, "were_calculated": True}}},
        {"current_timeouts": {"section": {"section": {}, "calculated_sections": ["step"]}}},
        {"current_timeouts": {"section": {"section": {"step": -1.0}, "calculated_sections": ["step"]}}},
    ],
)
def test_another_state_is_refused(state):
    with pytest.raises(RankMonitorClientError, match=r"load_state_dict\(\): not what state_dict\(\) has returned"):
        from_state(state, HEARTBEAT, SECTIONS)


def test_a_state_with_heartbeats_that_were_not_learned_changes_nothing():
    state = {"current_timeouts": {"heartbeat": {"initial": 1.0, "subsequent": 1.0, "were_calculated": False}}}
    assert from_state(state, HEARTBEAT, SECTIONS) == (HEARTBEAT, SECTIONS)


def test_a_learned_timeout_is_enforced_from_a_minimum_up():
    assert [in_force(t, learned=True, least=60.0) for t in (0.001, 90.0, None)] == [60.0, 90.0, None]
    assert in_force(0.001, learned=False, least=60.0) == 0.001
    assert [in_force(20.0, learned=learned, least=30.0) for learned in (True, False)] == [30.0, 20.0]
