"""What a launcher tells the attribution service, how it starts one, and when it follows its advice."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from nvrx_launcher import attribution, attribution_client
from nvrx_launcher.attribution import Attribution, StopAdvised, attribution_log
from nvrx_launcher.attribution_client import Advice, AttributionClient
from nvrx_launcher.log_options import LogOptions
from nvrx_launcher.log_service import Where

from nvrx_core.attribution.service_settings import read_key
from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance.config import FaultToleranceConfig

THERE = FaultToleranceConfig(attribution_endpoint="http://there:8000", attribution_stop_action="no-restart")
ADVICE = Advice(0, "STOP", "it will fail again", "")


class Recorded:
    """Loop, history, verdicts, client and program of a launcher, which record what they are given."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.given, self.more = given, more
        self.woken: Callable[[], None] = int
        self.stops, self.deadline = set[int](), 0.0

    def watch(self, _: int, woken: Callable[[], None]) -> None:
        self.woken = woken

    def says_stop(self, cycle: int) -> bool:
        return cycle in self.stops

    def close(self, *_: object) -> None: ...
    def forget(self, _: int) -> None: ...
    def start(self) -> None: ...
    def finish(self) -> None: ...
    def attributed(self, *_: object) -> None: ...


class Launcher:
    """A launcher, its client and, where it has started one, its service."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = list[Recorded]()
        self.around = Recorded()
        monkeypatch.setattr(attribution_client, "AttributionClient", self.make)
        monkeypatch.setattr(attribution, "ServiceProgram", self.make)

    def make(self, *given: Any, **more: Any) -> Recorded:
        self.made.append(Recorded(*given, **more))
        return self.made[-1]

    def begin(
        self, config: FaultToleranceConfig, environ: Mapping[str, str], prefix: str = "/logs/train"
    ) -> Attribution:
        around: Any = self.around
        where = Where("n0", "127.0.0.1", is_host=True, nodes=1, job="job")
        return Attribution(
            config, LogOptions(prefix=prefix), around, around, verdicts=self.around, where=where, environ=environ
        )  # fmt: skip


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    launcher = Launcher(monkeypatch)
    yield launcher
    vars(launcher).clear()  # what the launcher has made is gone with it


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (file := tmp_path / "key").write_text("sk-of-the-test")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize(
    ("environ", "known"),
    [
        ({"SLURM_JOB_USER": "mia", "USER": "root", "SLURM_ARRAY_JOB_ID": "7", "SLURM_JOB_ID": "8"},
            {"user": "mia", "job_id": "7"}),
        ({"USER": "ann", "SLURM_JOB_ID": "8"}, {"user": "ann", "job_id": "8"}),
        ({"SLURM_JOB_USER": "", "USER": "ann", "SLURM_ARRAY_JOB_ID": "", "SLURM_JOB_ID": "8"},
            {"user": "ann", "job_id": "8"}),
        ({"SLURM_JOB_USER": "", "USER": "", "SLURM_JOB_ID": ""}, {}),
        ({}, {}),
    ],
)  # fmt: skip
def test_a_submission_names_user_and_job_as_far_as_they_are_set(
    launcher: Launcher, environ: dict[str, str], known: dict[str, str]
) -> None:
    launcher.begin(THERE, environ).close()
    (client,) = launcher.made
    assert client.given == ("http://there:8000", "", known)


def test_localhost_is_port_50050(launcher: Launcher, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()

    def taken(address: object) -> None:
        asked.append(address)
        raise OSError(errno.EADDRINUSE, "")

    monkeypatch.setattr(socket, "create_server", taken)
    config = FaultToleranceConfig(attribution_endpoint="localhost", attribution_llm_api_key_file=str(key))
    with pytest.raises(ConfigurationError, match=r"port 50050 of 127\.0\.0\.1 cannot be used"):
        launcher.begin(config, {})
    assert asked == [("127.0.0.1", 50050)]


def test_the_service_reads_logs_where_a_symbolic_link_leads_and_logs_beside_the_prefix(
    launcher: Launcher, key: Path, tmp_path: Path
) -> None:
    (real := tmp_path / "real").mkdir()
    (link := tmp_path / "link").symlink_to(real)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = FaultToleranceConfig(attribution_endpoint=f"localhost:{port}", attribution_llm_api_key_file=str(key))
    launcher.begin(config, {}, f"{link}/train.log").close()
    program, client = launcher.made
    assert f"--root={real}" in program.given[2]
    assert program.more["log_file"] == f"{link}/train_attribution.log"
    assert client.given[0] == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("prefix", ["/logs/train.log", "/logs/train"])
def test_the_log_of_the_service_is_named_by_the_prefix(prefix: str) -> None:
    assert attribution_log(prefix) == "/logs/train_attribution.log"


def test_advice_is_followed_once_the_launchers_own_verdict_says_the_same(launcher: Launcher) -> None:
    job = launcher.begin(THERE, {})
    launcher.made[0].more["advised"](ADVICE)
    launcher.around.woken()
    assert job.events() == (), "there is no verdict yet"
    launcher.around.stops.add(0)
    assert job.events() == (StopAdvised("by the attribution of cycle 0: it will fail again"),)
    assert job.events() == (), "once"
    job.close()


def test_a_service_that_does_not_answer_in_time_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = AttributionClient(
        f"http://127.0.0.1:{port}", "", {}, starts_within=0.0, written_within=0.0, advised=lambda _: None
    )  # fmt: skip
    client.finish(10.0)
    client.close()
    (line,) = caplog.messages
    assert line.startswith(f"the attribution service at http://127.0.0.1:{port} does not answer: ")


def test_a_key_of_another_user_is_refused(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_key(str(key), "--key") == "sk-of-the-test"
    if os.geteuid() == 0:
        os.chown(key, 1234, -1)
    else:
        me = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(ConfigurationError, match="is open to others: mode 600, user"):
        read_key(str(key), "--key")
