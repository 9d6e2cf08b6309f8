"""The rendezvous of several launchers: who may join, in which order, and what is said when it does not come about."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch.distributed as dist
from nvrx_launcher.rendezvous.ports import OF_CONNECTIONS, free_port

from nvrx_core.parsing import endpoint_text, parse_endpoint
from tests.harness.process.host import free_ports
from tests.harness.process.launch import Start, rendezvous_options


def test_launchers_of_different_commands_run_a_job_and_both_say_what_differs(launcher: Start) -> None:
    where = (*rendezvous_options(), "--nnodes", "2")
    first = launcher("done", *where)
    first.await_log("host the rendezvous")
    ends = [job.finish() for job in (launcher("prints", *where), first)]
    assert [code for code, _ in ends] == [0, 0], ends
    line = f"{socket.gethostname()} runs another command than {socket.gethostname()}: 'prints' instead of 'done'"
    assert [log.count(line) for _, log in ends] == [1, 1], ends


def test_launchers_of_different_commands_are_refused_all_at_once_where_that_is_asked_for(launcher: Start) -> None:
    where = (*rendezvous_options(), "--nnodes", "3", "--rdzv-conf", "same_command=1")
    first = launcher("done", *where)
    first.await_log("host the rendezvous")
    ends = [job.finish() for job in (launcher("waits", *where), first)]
    assert [code for code, _ in ends] == [2, 2], ends
    for _, log in ends:
        assert "the job ends with code 2: with --rdzv-conf same_command=1, the job runs another command than" in log
        assert "launcher_worker.py done'" in log
        assert "launcher_worker.py waits'" in log


def test_a_node_whose_values_do_not_count_says_so_and_so_does_the_coordinators(launcher: Start) -> None:
    where = rendezvous_options()
    first = launcher("done", *where, "--nnodes", "2", "--max-restarts", "1")
    first.await_log("host the rendezvous")
    second = launcher("done", *where, "--nnodes", "1:2", "--max-restarts", "2", "--restart-policy", "min-healthy")
    ends = [job.finish() for job in (second, first)]
    assert [code for code, _ in ends] == [0, 0], ends
    given = "was given --nnodes 1:2, --max-restarts 2, --restart-policy min-healthy;"
    assert [log.count(given) for _, log in ends] == [1, 1], ends
    counts = "what it was given counts: --nnodes 2, --max-restarts 1, --restart-policy any-failed"
    assert all(counts in log for _, log in ends)


def test_what_is_no_rendezvous_is_named(launcher: Start, store_endpoint: str) -> None:
    """A server of HTTP, one that closes each connection, and the store of a process group."""
    foreign = dist.TCPStore(*parse_endpoint(store_endpoint), is_master=False, wait_for_workers=False)
    foreign.set("default_pg/0//worker", "1")
    with serving(b"HTTP/1.1 400 Bad Request\r\n\r\n") as http, serving(b"") as closing:
        where = [(*rendezvous_options(each), "--nnodes", "2") for each in (http, closing, store_endpoint)]
        ends = [job.finish() for job in [launcher("done", *each) for each in where]]
    assert [code for code, _ in ends] == [1, 1, 1], ends
    for (_, log), endpoint in zip(ends, (http, closing, store_endpoint), strict=True):
        assert f"what listens at --rdzv-endpoint {endpoint} is no rendezvous: it " in log
    assert "it is a store with keys of something else, such as 'default_pg/0//worker'" in ends[2][1]


@contextmanager
def serving(answer: bytes) -> Iterator[str]:
    """Answer each connection so, and close it."""

    def serve() -> None:
        while True:
            try:
                connection = server.accept()[0]
            except OSError:
                return
            with connection, suppress(OSError):
                if answer:
                    connection.recv(1 << 10)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield endpoint_text(*server.getsockname())
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_job_may_have_a_long_name_with_slashes(launcher: Start, tmp_path: Path) -> None:
    job, logs = "team/" + "j" * 300, tmp_path / "logs"
    where = ("--rdzv-endpoint", f"127.0.0.1:{free_ports()}", "--rdzv-id", job, "--nnodes", "2")
    ends = [each.finish() for each in [launcher("prints", *where, "--log-dir", str(logs), "-t", "3") for _ in range(2)]]
    assert [code for code, _ in ends] == [0, 0], ends
    assert len(list(logs.glob("*/attempt_0/0/stdout.log"))) == 2
    ended = launcher("0", "--rdzv-id", job, worker="launcher_wrapped.py")
    ended.await_log("in-process restart continues without rank 0")
    (tmp_path / "gate").touch()
    code, log = ended.finish()
    assert code == 0, log


@pytest.mark.parametrize("job", ["two\nlines", "j" * 1001])
def test_a_name_that_no_log_can_show_is_refused_before_anything_starts(launcher: Start, job: str) -> None:
    code, log = launcher("done", "--rdzv-id", job).finish()
    assert code == 2
    assert "--rdzv-id: " in log


def test_launchers_that_wait_say_who_has_joined_and_who_is_missing(launcher: Start) -> None:
    host = socket.gethostname()
    options = (*rendezvous_options(), "--nnodes", "3")
    jobs = [launcher("done", *options, SLURM_JOB_NODELIST=f"{host},other[1-2]") for _ in range(2)]
    for job in jobs:
        job.await_log(f"2 of 3 have joined ({host}, {host}); 1 more needed, not joined: other1, other2;")
    jobs.append(launcher("done", *options))
    assert [job.finish()[0] for job in jobs] == [0, 0, 0]


def test_a_spare_says_that_it_has_joined_and_who_runs(launcher: Start, tmp_path: Path) -> None:
    options = (*rendezvous_options(), "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0")
    first = launcher("gated", *options)
    first.read(2, "start")
    spare = launcher("gated", *options)
    spare.await_log(f"joined as a spare: cycle 0 runs on {socket.gethostname()}")
    (tmp_path / "gate").touch()
    assert [job.finish()[0] for job in (first, spare)] == [0, 0]


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
    no_rendezvous = (
        f"what listens at --rdzv-endpoint {taken} is no rendezvous: it accepted a connection and did not answer"
    )
    assert no_rendezvous in ends[1][1]
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
