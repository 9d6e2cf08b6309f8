"""Every action and effect that changes what runs says why."""

from __future__ import annotations

import pytest
from nvrx_launcher import node_actions
from nvrx_launcher.workers.standby_policy import StartStandby

from nvrx_core.fault_tolerance import policy as monitor_policy
from nvrx_core.inprocess.interruption import policy as interruption
from nvrx_core.inprocess.monitor import watch_effects
from nvrx_core.inprocess.protocol import monitor_effects
from nvrx_core.liveness import hang_detector

CHANGING = (
    hang_detector.SoftTimeout,
    hang_detector.SendSignal,
    hang_detector.Terminate,
    hang_detector.Kill,
    watch_effects.InterruptRank,
    watch_effects.TerminateRank,
    watch_effects.KillRank,
    watch_effects.KillWithoutStore,
    monitor_effects.InterruptFunction,
    monitor_effects.AbortFunction,
    interruption.Fire,
    interruption.Unblock,
    monitor_policy.TerminateRank,
    monitor_policy.KillRank,
    node_actions.StartWorkers,
    node_actions.StopWorkers,
    node_actions.JoinAgain,
    node_actions.EndLaunch,
    StartStandby,
)


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
def test_what_changes_what_runs_carries_its_reason(kind):
    fields = kind.__dataclass_fields__
    assert "reason" in fields or isinstance(vars(kind).get("reason"), property)
