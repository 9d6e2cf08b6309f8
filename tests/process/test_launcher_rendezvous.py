"""The rendezvous of several launchers: who may join, in which order, and what is said when it does not come about."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.process.host import eventually, free_ports
from tests.harness.process.launch import Launch, left_in

Start = Callable[..., Launch]


@pytest.fixture
def endpoint() -> str:
    return f"127.0.0.1:{free_ports()}"


@pytest.fixture
def start(tmp_path: Path, endpoint: str) -> Iterator[Start]:
    launched: list[Launch] = []

    def start(case: str, *options: str, **more: str) -> Launch:
        launched.append(Launch(tmp_path, case, "--rdzv-endpoint", endpoint, "--rdzv-id", "job", *options, **more))
        return launched[-1]

    yield start
    for each in launched:
        each.close()
    assert eventually(lambda: not left_in(tmp_path), 10.0)


def test_a_launcher_of_another_command_is_refused(start: Start) -> None:
    """It ends with code 2; the job goes on, and takes one of its own, which comes later."""
    first = start("done", "--nnodes", "2")
    first.await_log("host the rendezvous")
    code, log = start("waits", "--nnodes", "2").finish()
    assert code == 2, log
    assert "the job runs another command" in log
    assert "launcher_worker.py done'" in log
    assert "launcher_worker.py waits'" in log
    second = start("done", "--nnodes", "2")
    assert [job.finish()[0] for job in (first, second)] == [0, 0]


def test_a_wrong_endpoint_says_what_was_tried(tmp_path: Path) -> None:
    """A name that nobody knows, a port where something else listens, and one that this launcher was to host."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        taken = f"127.0.0.1:{mute.getsockname()[1]}"
        cases = [("no.such.host:9", ""), (taken, ""), (taken, ",is_host=1")]
        jobs = [
            Launch(
                tmp_path, "done", "--nnodes", "2", "--rdzv-endpoint", where,
                "--rdzv-conf", f"store_connect_wait_seconds=0.5{more}",
            )
            for where, more in cases
        ]  # fmt: skip
        ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [1, 1, 1], ends
    assert "nobody hosts the rendezvous at no.such.host:9: to listen there failed (" in ends[0][1]
    assert f"{taken} accepted a connection and did not answer" in ends[1][1]
    assert f"cannot host the rendezvous at {taken}: Address already in use" in ends[2][1]
    assert all("Traceback" not in log for _, log in ends)


def test_a_wrong_key_ends_the_launcher_before_anything_is_started(tmp_path: Path) -> None:
    code, log = Launch(tmp_path, "done", "--nnodes", "2", "--rdzv-conf", "join_timeuot=3").finish()
    assert code == 2
    assert "--rdzv-conf: c10d has no 'join_timeuot'; did you mean join_timeout?" in log
    assert list(tmp_path.iterdir()) == []
