"""Which timeouts a training learns, and when; a safety factor of 5."""

from __future__ import annotations

from typing import Any

import pytest
from nvrx_lightning.monitoring.timeouts import TimeoutLearning, TrainingHistory, due

from nvrx_core.fault_tolerance.data import HeartbeatTimeouts, RankMonitorClientError, SectionTimeouts
from nvrx_core.fault_tolerance.timeouts import Measured

DEFAULT = HeartbeatTimeouts(3600.0, 2700.0)
ALL = {"setup": 7.0, "data": 1.0, "step": 2.0, "validation": 3.0, "checkpointing": 4.0, "teardown": 5.0, "mine": 6.0}
MEASURED = Measured(initial=10.0, subsequent=8.0, out_of_section=1.5, sections=ALL)
WHOLE = TrainingHistory(steps=2, epochs=1, validates=True, saves=True)


def learning(
    heartbeat: HeartbeatTimeouts = DEFAULT, out_of_section: float | None = None, *, learns_all: bool = False,
    **sections: float,
) -> TimeoutLearning:  # fmt: skip
    return TimeoutLearning(heartbeat, SectionTimeouts(dict(sections), out_of_section), DEFAULT, learns_all=learns_all)


def learned(state: dict[str, Any]) -> dict[str, float]:
    section = state["current_timeouts"].get("section", {"calculated_sections": [], "section": {}})
    return {name: section["section"][name] for name in section["calculated_sections"]}


def test_calculations_become_rarer() -> None:
    found = [batches for batches in range(4100) if due(batches)]
    assert found == [16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096]


def test_sections_are_learned_from_their_longest_run() -> None:
    state = learning().learn(MEASURED, TrainingHistory(steps=2), 5.0)
    assert learned(state) == {"data": 5.0, "step": 10.0, "validation": 15.0, "checkpointing": 20.0}
    assert "heartbeat" not in state["current_timeouts"]
    assert state["current_timeouts"]["section"]["is_out_of_section_calculated"] is False


def test_nothing_is_learned_before_the_optimizer_has_stepped_twice() -> None:
    assert learning().learn(MEASURED, TrainingHistory(steps=1, epochs=1), 5.0) == {"current_timeouts": {}}


def test_what_was_not_measured_is_not_learned() -> None:
    state = learning().learn(Measured(sections={"step": 2.0, "validation": 0.0}), WHOLE, 5.0)
    assert learned(state) == {"step": 10.0}
    assert learning().learn(Measured(), WHOLE, 5.0) == {"current_timeouts": {}}


def test_the_setup_is_learned_from_a_training_that_has_loaded_a_checkpoint() -> None:
    state = learning().learn(MEASURED, TrainingHistory(steps=2, resumed=True), 5.0)
    assert learned(state)["setup"] == 35.0


@pytest.mark.parametrize(
    ("evidence", "sections", "complete"),
    [
        (WHOLE, ALL, True),
        (TrainingHistory(steps=2, epochs=1), {}, True),
        (TrainingHistory(steps=2, epochs=0), ALL, False),
        (TrainingHistory(steps=2, epochs=1, validates=True), {"checkpointing": 1.0}, False),
        (TrainingHistory(steps=2, epochs=1, validates=True), {"validation": 0.0}, False),
        (TrainingHistory(steps=2, epochs=1, saves=True), {"validation": 1.0}, False),
        (TrainingHistory(steps=2, epochs=1, saves=True), {"checkpointing": 0.0}, False),
    ],
)
def test_pauses_are_learned_once_each_kind_has_occurred(
    evidence: TrainingHistory, sections: dict[str, float], complete: bool
) -> None:
    measured = Measured(initial=10.0, subsequent=8.0, out_of_section=1.5, sections=sections)
    assert evidence.is_complete(measured) is complete
    state = learning().learn(measured, evidence, 5.0)["current_timeouts"]
    assert ("heartbeat" in state) is complete
    assert state.get("section", {}).get("out_of_section") == (7.5 if complete else None)


def test_the_initial_timeout_stays_until_a_checkpoint_was_loaded() -> None:
    made = learning()
    state = made.learn(MEASURED, WHOLE, 5.0)["current_timeouts"]
    assert state["heartbeat"] == {"initial": 3600.0, "subsequent": 40.0, "were_calculated": True}
    later = made.learn(MEASURED, TrainingHistory(steps=2, epochs=1, resumed=True), 5.0)["current_timeouts"]
    assert later["heartbeat"] == {"initial": (3600.0 + 50.0) / 2, "subsequent": 40.0, "were_calculated": True}


def test_what_is_configured_is_not_learned() -> None:
    configured = learning(HeartbeatTimeouts(100.0, 2700.0), 60.0, step=77.0)
    state = configured.learn(MEASURED, WHOLE, 5.0)
    assert learned(state) == {"data": 5.0, "validation": 15.0, "checkpointing": 20.0}
    assert "heartbeat" not in state["current_timeouts"]
    assert state["current_timeouts"]["section"]["is_out_of_section_calculated"] is False


def test_all_is_learned_if_asked_for() -> None:
    every = learning(HeartbeatTimeouts(None, 2700.0), 60.0, learns_all=True, step=77.0)
    state = every.learn(MEASURED, WHOLE, 5.0)
    assert learned(state)["step"] == 10.0
    assert state["current_timeouts"]["section"]["out_of_section"] == 7.5
    assert state["current_timeouts"]["heartbeat"]["initial"] == 3600.0


def test_heartbeats_without_an_initial_timeout_are_not_learned_before_one_is_known() -> None:
    none = HeartbeatTimeouts(None, None)
    made = TimeoutLearning(none, SectionTimeouts(), none)
    assert "heartbeat" not in made.learn(MEASURED, WHOLE, 5.0)["current_timeouts"]


def test_an_earlier_job_s_timeouts_are_taken_where_none_is_configured() -> None:
    state = learning().learn(MEASURED, WHOLE, 5.0)
    assert learning().load(state) == state
    configured = learning(HeartbeatTimeouts(100.0, 2700.0), 60.0, step=77.0)
    loaded = configured.load(state)
    assert learned(loaded) == {"data": 5.0, "validation": 15.0, "checkpointing": 20.0}
    assert loaded["current_timeouts"]["section"]["section"]["step"] == 77.0
    assert loaded["current_timeouts"]["section"]["out_of_section"] == 60.0
    assert "heartbeat" not in loaded["current_timeouts"]


def test_an_empty_state_changes_nothing() -> None:
    assert learning().load({"current_timeouts": {}}) == {"current_timeouts": {}}


def test_a_later_job_takes_the_mean() -> None:
    made = learning()
    made.load(learning().learn(MEASURED, WHOLE, 5.0))
    slower = Measured(sections={"step": 4.0})
    assert learned(made.learn(slower, TrainingHistory(steps=2), 5.0))["step"] == (10.0 + 20.0) / 2


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(RankMonitorClientError, match="not what state_dict"):
        learning().load({"something": "else"})
