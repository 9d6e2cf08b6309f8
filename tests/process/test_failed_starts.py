"""A process that cannot be started, or not be watched, leaves no descriptor, process or folder behind."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvrx_launcher import guardian
from nvrx_launcher.launch import LaunchConfig, elastic_launch
from nvrx_launcher.workers import standbys

from nvrx_core.errors import ConfigurationError
from nvrx_core.health import program
from nvrx_core.health.probes import Probe
from nvrx_core.health.result import Status
from nvrx_core.process.children import children_of


def refuse(*_: object, **__: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd")), set(children_of(os.getpid()))
    yield
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


def test_a_job_with_a_wrong_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigurationError):
        elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=0), "script.py")()
    assert list(tmp_path.iterdir()) == []
