"""What a launcher is asked for when a training fails."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from nvrx_lightning.monitoring.control import ask, consult

from nvrx_core.fault_tolerance import WorkloadAction, WorkloadControlRequest

LOG = logging.getLogger("test")


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer."""
    monkeypatch.setenv("FT_LAUNCHER_IPC_SOCKET", "/nowhere/launcher.socket")
    monkeypatch.setenv("RANK", "0")


def policy(action: Any) -> Any:
    return lambda error: WorkloadControlRequest(action, str(error))


def test_without_a_launcher_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FT_LAUNCHER_IPC_SOCKET", raising=False)
    assert consult(policy(WorkloadAction.ShutdownWorkload), ValueError(), LOG) is None


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit()])
def test_a_signal_is_no_fault(error: BaseException) -> None:
    assert consult(policy(WorkloadAction.ShutdownWorkload), error, LOG) is None


@pytest.mark.usefixtures("launcher")
def test_without_a_policy_nothing_is_asked_for() -> None:
    assert consult(None, ValueError(), LOG) is None
    assert consult(policy(WorkloadAction.Continue), ValueError(), LOG) is None


@pytest.mark.usefixtures("launcher")
def test_a_launcher_that_does_not_answer_hides_no_exception(caplog: pytest.LogCaptureFixture) -> None:
    request = consult(policy(2), SystemExit(1), LOG)
    assert request == WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "1")
    ask(request, LOG)
    assert "the launcher was not asked for ShutdownWorkload: the launcher at /nowhere" in caplog.text


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize("broken", [lambda error: 1 / 0, lambda error: None, policy("Shutdown")])
def test_a_broken_policy_hides_no_exception(broken: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert consult(broken, ValueError("mine"), LOG) is None
    assert "exc_handling_policy has failed for ValueError('mine')" in caplog.text
