"""The rendezvous of several launchers: who may join, in which order, and what is said when it does not come about."""

from __future__ import annotations

import socket
from pathlib import Path

from nvrx_launcher.rendezvous.ports import OF_CONNECTIONS, free_port

from tests.harness.process.launch import Start, rendezvous_options


def test_a_launcher_of_another_command_is_refused(launcher: Start) -> None:
    """It ends with code 2; the job goes on, and takes one of its own, which comes later."""
    where = (*rendezvous_options(), "--nnodes", "2")
    first = launcher("done", *where)
    first.await_log("host the rendezvous")
    code, log = launcher("waits", *where).finish()
    assert code == 2, log
    assert "the job runs another command" in log
    assert "launcher_worker.py done'" in log
    assert "launcher_worker.py waits'" in log
    second = launcher("done", *where)
    assert [job.finish()[0] for job in (first, second)] == [0, 0]


def test_a_wrong_endpoint_says_what_was_tried(launcher: Start) -> None:
    """A name that nobody knows, a port where something else listens, and one that this launcher was to host."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        taken = f"127.0.0.1:{mute.getsockname()[1]}"
        cases = [("no.such.host:9", ""), (taken, ""), (taken, ",is_host=1")]
        jobs = [
            launcher(
                "done",
                *rendezvous_options(where),
                "--nnodes",
                "2",
                "--rdzv-conf",
                f"store_connect_wait_seconds=0.5{more}",
            )
            for where, more in cases
        ]
        ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [1, 1, 1], ends
    assert "nobody hosts the rendezvous at no.such.host:9: to listen there failed (" in ends[0][1]
    assert f"{taken} accepted a connection and did not answer" in ends[1][1]
    assert f"cannot host the rendezvous at {taken}: Address already in use" in ends[2][1]
    assert all("Traceback" not in log for _, log in ends)


def test_a_wrong_key_ends_the_launcher_before_anything_is_started(launcher: Start, tmp_path: Path) -> None:
    code, log = launcher("done", "--nnodes", "2", "--rdzv-conf", "join_timeuot=3").finish()
    assert code == 2
    assert "--rdzv-conf: c10d has no 'join_timeuot'; did you mean join_timeout?" in log
    assert list(tmp_path.iterdir()) == []


def test_workers_meet_at_a_port_that_no_outgoing_connection_gets(tmp_path: Path) -> None:
    """Where the kernel gives away all ports, it is one of those."""
    first = int(OF_CONNECTIONS.read_text().split()[0])
    with socket.create_server(("", free_port())) as server:
        assert server.getsockname()[1] < first
    everything = tmp_path / "range"
    everything.write_text("1024\t65535\n")
    assert free_port(everything) > 0
