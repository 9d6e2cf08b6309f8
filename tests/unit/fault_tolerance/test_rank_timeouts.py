"""The timeouts of a rank: configured, loaded, learned."""

from __future__ import annotations

import pytest

from nvrx_core.fault_tolerance.data import HeartbeatTimeouts, RankMonitorClientError, SectionTimeouts
from nvrx_core.fault_tolerance.rank_timeouts import RankTimeouts
from nvrx_core.fault_tolerance.timeouts import Measured

CONFIGURED = HeartbeatTimeouts(3600.0, 2700.0), SectionTimeouts({"step": 60.0}, 30.0)
MEASURED = Measured(initial=10.0, subsequent=2.0, out_of_section=0.5, sections={"step": 1.0})


def configured() -> RankTimeouts:
    timeouts = RankTimeouts()
    timeouts.configure(*CONFIGURED, safety_factor=5.0)
    return timeouts


def learned() -> RankTimeouts:
    timeouts = configured()
    timeouts.learn_heartbeat(MEASURED)
    timeouts.learn_sections(MEASURED, ["step"], out_of_section=False)
    return timeouts


def test_learned_timeouts_replace_configured_ones_times_the_safety_factor():
    timeouts = learned()
    assert (timeouts.heartbeat.initial, timeouts.heartbeat.subsequent) == (50.0, 10.0)
    assert (timeouts.sections.section, timeouts.sections.out_of_section) == ({"step": 5.0}, 30.0)


def test_a_state_that_is_loaded_before_the_configuration_is_known_prevails_over_it():
    timeouts = RankTimeouts()
    timeouts.load(learned().state())
    timeouts.configure(*CONFIGURED, safety_factor=5.0)
    assert (timeouts.heartbeat, timeouts.sections) == (learned().heartbeat, learned().sections)


def test_a_malformed_state_changes_nothing():
    timeouts = configured()
    with pytest.raises(RankMonitorClientError, match="not what state_dict"):
        timeouts.load({"current_timeouts": 3})
    timeouts.configure(*CONFIGURED, safety_factor=5.0)
    assert (timeouts.heartbeat, timeouts.sections) == CONFIGURED
