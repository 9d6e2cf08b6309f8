"""A process that cannot be started, or not be watched, leaves no descriptor, process or folder behind."""

from __future__ import annotations

import errno
import gc
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from nvrx_launcher import guardian, store_host
from nvrx_launcher.launch import LaunchConfig, elastic_launch
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.node_health import NodeHealth
from nvrx_launcher.rendezvous.elastic.handler import CoordinatedRendezvous
from nvrx_launcher.service_program import ServiceProgram
from nvrx_launcher.workers import standbys
from torch.distributed.elastic.rendezvous import RendezvousParameters

from nvrx_core.errors import ConfigurationError
from nvrx_core.health import program
from nvrx_core.health.probes import Probe
from nvrx_core.health.result import Status
from nvrx_core.health.settings import HealthSettings
from nvrx_core.process import children
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


@pytest.mark.parametrize(("module", "function"), [(standbys, "start_guarded"), (children, "open_pidfd")])
def test_a_standby(monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str) -> None:
    monkeypatch.setattr(module, function, refuse)
    with pytest.raises(OSError, match="Too many open files"):
        standbys.Standby([sys.executable, "function"], dict(os.environ), None)


def test_a_guardian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "open_pidfd", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        guardian._Guardian(["launch", "/nowhere", ""])


def test_the_program_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "open_pidfd", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        store_host._Program("127.0.0.1:1", "job")


@pytest.mark.parametrize("module", [os, children])
def test_a_service_is_started_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, module: ModuleType
) -> None:
    monkeypatch.setattr(module, "memfd_create" if module is os else "open_pidfd", refuse)
    with closing(EventLoop()) as loop:
        service = ServiceProgram(
            loop, "service", [sys.executable, "-c", ""], token=b"", log_file=str(tmp_path / "log"), environ=os.environ
        )
        service.start()
        assert service.ended == -1
        assert time.monotonic() < service.deadline < math.inf
    assert "cannot start the service: [Errno 24] Too many open files" in caplog.text


def test_the_command_of_an_excluded_node(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(children, "open_pidfd", refuse)
    with closing(EventLoop()) as loop:
        health = NodeHealth(loop, HealthSettings(on_exclude="sleep 600"), os.environ)
        health.excluded("a GPU is gone")
        assert not health.is_excluding
        health.close()
    assert "the command of --ft-on-exclude cannot be run: [Errno 24] Too many open files" in caplog.text


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
