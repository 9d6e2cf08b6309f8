"""A process that cannot be started, or not be watched, leaves no descriptor, process or folder behind."""

from __future__ import annotations

import errno
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvrx_launcher import guardian
from nvrx_launcher.launch import LaunchConfig, elastic_launch
from nvrx_launcher.rendezvous.elastic.handler import CoordinatedRendezvous
from nvrx_launcher.workers import standbys
from torch.distributed.elastic.rendezvous import RendezvousParameters

from nvrx_core.errors import ConfigurationError
from nvrx_core.health import program
from nvrx_core.health.probes import Probe
from nvrx_core.health.result import Status
from nvrx_core.process.children import children_of
from nvrx_core.store import cpp_log_level
from nvrx_core.store.endpoint import StoreConnectionError
from tests.harness.process.host import free_ports


def refuse(*_: object, **__: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd")), set(children_of(os.getpid()))
    yield
    gc.collect()
    assert (set(os.listdir("/proc/self/fd")), set(children_of(os.getpid()))) == before


@pytest.mark.parametrize("function", ["start_guarded", "open_pidfd"])
def test_a_standby(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    monkeypatch.setattr(standbys, function, refuse)
    with pytest.raises(OSError, match="Too many open files"):
        standbys.Standby([sys.executable, "function"], dict(os.environ), None)


def test_a_guardian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "open_pidfd", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        guardian._Guardian(["launch", "/nowhere", ""])


def test_a_health_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        program._Running(Probe("gpu", "", 1.0, Status.UNKNOWN, list))


def test_a_rendezvous_that_nobody_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while its caller holds the exception, nobody can connect to it any more."""
    monkeypatch.setattr(cpp_log_level, "quiet_for_good", int)
    before, endpoint = _sockets(), f"127.0.0.1:{free_ports()}"
    parameters = RendezvousParameters(
        "nvrx-c10d", endpoint, "job", 1, 1, is_host=0, store_connect_wait_seconds=0.1
    )  # fmt: skip
    with pytest.raises(StoreConnectionError, match="nobody hosts") as held:
        CoordinatedRendezvous(parameters)
    assert _sockets() == before, held


def _sockets() -> set[str]:
    return {str(each.resolve()) for each in Path("/proc/self/fd").iterdir() if "socket:" in str(each.resolve())}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"nproc_per_node": 0}, id="an option"),
        pytest.param({"nproc_per_node": 1, "start_method": "vfork"}, id="a start method"),
        pytest.param({"nproc_per_node": 1, "fault_tolerance": {"attribution_endpoint": "localhost"}}, id="a setting"),
    ],
)
def test_a_job_with_a_wrong_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises((ConfigurationError, ValueError)):
        elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, **wrong), print)()
    assert list(tmp_path.iterdir()) == []
