"""Health checks of hardware in a rank: they ask real processes, which find a fake NVML or a tree of NICs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvrx_core.errors import HealthCheckError
from nvrx_core.inprocess.health_check import ChainedGPUHealthCheck, ChainedNicHealthCheck, ChainedNVLHealthCheck
from nvrx_core.rank_assignment.base import AssignmentState

NVML = Path(__file__).parents[1] / "harness" / "health" / "nvml"
STATE = AssignmentState(rank=1, world_size=4).freeze()
Write = Callable[..., None]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes what NVML says of these GPUs."""
    monkeypatch.setenv("NVRX_TEST_NVML", str(tmp_path / "nvml.json"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NVML), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("LOCAL_RANK", "1")

    def write(*found: dict[str, Any], **more: Any) -> None:
        (tmp_path / "nvml.json").write_text(json.dumps({"gpus": found} | more))

    return write


def test_hardware_that_fails_makes_a_rank_leave(gpus: Write) -> None:
    """Only that of its own GPU."""
    check = ChainedGPUHealthCheck()
    gpus({"action": 1}, {"action": 0})
    assert check(STATE) is STATE
    gpus({"action": 0}, {"action": 2})
    with pytest.raises(HealthCheckError, match=r"gpu GPU 1 .*the driver asks for a recovery: reboot the node"):
        check(STATE)
    assert ChainedGPUHealthCheck(device_index=0)(STATE) is STATE


def test_the_gpu_of_a_rank_is_the_visible_one(gpus: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus({"action": 0}, {"action": 1}, {"action": 0, "uuid": "GPU-2"})
    for visible in ("1,0", "1,GPU-2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert ChainedGPUHealthCheck()(STATE) is STATE


def test_a_link_that_was_active_and_is_not_is_a_failure(gpus: Write) -> None:
    check = ChainedNVLHealthCheck()
    gpus({}, {"links": [1, 0, 1]})
    check(STATE)
    gpus({}, {"links": [1, 0, 0]})
    with pytest.raises(HealthCheckError, match="link 2 active was 1 and is 0"):
        check(STATE)


def test_a_nic_that_has_lost_its_link_is_a_failure(
    gpus: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus({}, {})
    counter = tmp_path / "mlx5_0"
    monkeypatch.setenv("NVRX_FT_LINK_DOWN_PATH_TEMPLATE", f"{tmp_path}/mlx5_{{nic}}")
    monkeypatch.setenv("NVRX_FT_LOG_LEVEL", "DEBUG")
    check = ChainedNicHealthCheck()
    for text in ("3", "3"):
        counter.write_text(text)
        check(STATE)
    counter.write_text("4")
    with pytest.raises(HealthCheckError, match="link-down counter of 0 has risen from 3 to 4"):
        check(STATE)


@pytest.mark.parametrize("kind", [ChainedGPUHealthCheck, ChainedNVLHealthCheck])
def test_a_check_without_nvml_passes_with_one_warning(
    kind: type[ChainedGPUHealthCheck], gpus: Write, caplog: pytest.LogCaptureFixture
) -> None:
    gpus(error=12)
    check = kind()
    assert check(STATE) is check(STATE) is STATE
    (line,) = caplog.messages
    assert line == f"{kind.__name__} does not know: {kind.checked}: NVML cannot be used: error 12"
