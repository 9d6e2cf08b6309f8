"""The log server, its leaves and the processes of nodes, with outages, full disks and hostile clients."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nvrx_core.process.file_limit import allow_more_files
from tests.harness.process.host import free_ports, stop
from tests.harness.process.log_service import Service, ask, lines

pytest.importorskip("grpc")


@pytest.fixture
def service(tmp_path):
    started = Service(tmp_path)
    yield started
    started.close()


def wait_for(condition: Callable[[], bool], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nodes_lines_arrive_in_order_and_a_cycle_has_its_own_file(tmp_path, service):
    logs = tmp_path / "logs"
    logs.mkdir()
    server = service.server("--root", str(logs))
    nodes = [service.node(server.endpoint, f"node{number}") for number in range(2)]
    for cycle in range(2):
        for rank, node in enumerate(nodes):
            node.put(logs / f"train_cycle{cycle}.log", lines(1000, 1000 * cycle, rank))
    assert [node.end() for node in nodes] == [0, 0]
    assert server.end() == 0
    for cycle in range(2):
        written = (logs / f"train_cycle{cycle}.log").read_bytes()
        for rank in range(2):
            own = b"".join(line for line in written.splitlines(True) if line.startswith(b"%d:" % rank))
            assert own == lines(1000, 1000 * cycle, rank)


@pytest.mark.parametrize("is_leaf", [False, True], ids=["root", "leaf"])
def test_nothing_is_lost_when_the_server_is_killed_and_started_again(tmp_path, is_leaf, service):
    logs = tmp_path / "logs"
    logs.mkdir()
    port = free_ports(1)
    options = ("--root", str(logs))
    if is_leaf:
        root = service.server(*options)
        options = ("--forward", root.endpoint)
    server = service.server(*options, listen=f"127.0.0.1:{port}")
    node = service.node(server.endpoint, within=40.0)
    for number in range(0, 60_000, 1000):
        node.put(logs / "train_cycle0.log", lines(1000, number))
        if number == 20_000:
            wait_for((logs / "train_cycle0.log").exists)
            server.kill()
        if number == 40_000:
            server = service.server(*options, listen=f"127.0.0.1:{port}")
    assert node.end() == 0, node.said()
    assert server.end() == 0
    if is_leaf:
        assert root.end() == 0
    found = Counter((logs / "train_cycle0.log").read_bytes().splitlines(True))
    assert set(found) == set(lines(60_000).splitlines(True))
    if is_leaf:  # the root still knew what it had written
        assert max(found.values()) == 1


def test_a_disk_that_is_full_for_a_while_loses_nothing_and_is_said_once(tmp_path, tmpfs, service):
    filler = tmpfs / "filler"
    filler.write_bytes(bytes(900 << 10))
    server = service.server("--root", str(tmpfs), within=20.0)
    node = service.node(server.endpoint, within=30.0)
    data = lines(20_000)
    assert len(data) > 200 << 10
    node.put(tmpfs / "train_cycle0.log", data)
    wait_for(lambda: "No space left" in server.said())
    time.sleep(2.5)  # further attempts say nothing
    assert server.said().count("No space left") == 1
    filler.unlink()
    assert node.end() == 0
    assert server.end() == 0
    assert (tmpfs / "train_cycle0.log").read_bytes() == data
    assert "is written again" in server.said()


def test_a_disk_that_stays_full_ends_within_the_deadline_and_says_how_much_is_lost(tmp_path, tmpfs, service):
    (tmpfs / "filler").write_bytes(bytes(1000 << 10))
    server = service.server("--root", str(tmpfs), within=2.0)
    node = service.node(server.endpoint, within=3.0)
    node.put(tmpfs / "train_cycle0.log", lines(20_000))
    wait_for(lambda: "No space left" in server.said())
    began = time.monotonic()
    assert node.end() == 1
    assert time.monotonic() - began < 10
    assert "20000 lines" in node.said()
    assert server.end() == 1
    assert "bytes are not written" in server.said()


@pytest.fixture
def tmpfs(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True, timeout=10)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


def test_what_a_buffer_drops_in_an_outage_is_counted_in_the_file_and_in_the_log(tmp_path, service):
    logs = tmp_path / "logs"
    logs.mkdir()
    port = free_ports(1)
    node = service.node(f"127.0.0.1:{port}", "node0", "--limit", "100000")
    for number in range(0, 50_000, 1000):
        node.put(logs / "train_cycle0.log", lines(1000, number))
    wait_for(lambda: "are dropped so far" in node.said())
    server = service.server("--root", str(logs), listen=f"127.0.0.1:{port}")
    node.end()
    server.end()
    written = (logs / "train_cycle0.log").read_text().splitlines()
    kept = [line for line in written if not line.startswith("[nvrx]")]
    missing = [int(line.split()[3]) for line in written if line.startswith("[nvrx]")]
    assert len(kept) + sum(missing) == 50_000
    assert kept[-1] == "0: line 49999 of rank 0"
    assert missing


def test_hostile_paths_tokens_and_messages_are_answered_and_write_nothing(tmp_path, service):
    logs, outside = tmp_path / "logs", tmp_path / "outside"
    logs.mkdir()
    outside.mkdir()
    (logs / "link").symlink_to(outside)
    (logs / "file-link.log").symlink_to(outside / "file.log")
    os.mkfifo(logs / "fifo")
    server = service.server("--root", str(logs))

    tricks = ["../outside/x", "a/../../x", str(outside / "x"), f"{logs}/../outside/x", "", "a//b", "x\0y", "/etc/x",
              str(logs), "a" * 256, "/".join("a" * 40), f"{logs}x/y", "."]  # fmt: skip
    at_the_file = ["link/x", "file-link.log", "fifo", "missing-folder/x"]
    answers = ask("send", server.endpoint, [
        *({"path": path} for path in (*tricks, *at_the_file)),
        {"path": "good.log", "token": "another job's token, as long"},
        {"path": "good.log", "times": 1 << 20},
        {"path": "good.log", "data": "good\n"},
    ])  # fmt: skip
    for path, answer in zip(tricks, answers, strict=False):
        assert answer.startswith("PERMISSION_DENIED"), path
    for path, answer in zip(at_the_file, answers[len(tricks) :], strict=False):
        assert answer.startswith(path), answer
    assert answers[-3].startswith("UNAUTHENTICATED")
    assert answers[-2].startswith("RESOURCE_EXHAUSTED")
    assert answers[-1] == ""
    assert server.end() == 0
    assert not any(outside.iterdir())
    assert sorted(path.name for path in logs.iterdir()) == ["fifo", "file-link.log", "good.log", "link"]
    assert (logs / "good.log").stat().st_mode & 0o777 == 0o640


def test_malformed_frames_end_their_call_only(tmp_path, service):
    server = service.server("--root", str(tmp_path))
    assert "OK" not in ask("malformed", server.endpoint)
    host, _, port = server.endpoint.rpartition(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(garbage)
    assert ask("send", server.endpoint, [{"path": "good.log"}]) == [""]
    assert server.end() == 0


def test_a_server_that_answers_a_connection_late_is_reached(tmp_path, service):
    """Its process gets no CPU time for longer than any pause between two attempts to connect."""
    server = service.server("--root", str(tmp_path))
    stop(server.process.pid)
    try:
        with ThreadPoolExecutor(1) as executor:
            answer = executor.submit(ask, "send", server.endpoint, [{"path": "good.log"}])
            wait_for(lambda: is_connected_to(server.endpoint))
            time.sleep(1.5)
            os.kill(server.process.pid, signal.SIGCONT)
            assert answer.result() == [""]
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert server.end() == 0


def is_connected_to(endpoint: str) -> bool:
    """Whether the kernel has established a connection to an endpoint of this host."""
    port = f":{int(endpoint.rpartition(':')[2]):04X}"
    tables = (path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists())
    entries = [line.split() for path in tables for line in path.read_text().splitlines()[1:]]
    return any(remote.endswith(port) and state == "01" for _, _, remote, state, *_ in entries)


def test_thousands_of_silent_connections_do_not_keep_a_node_out(tmp_path, service):
    allow_more_files()
    server = service.server("--root", str(tmp_path))
    host, _, port = server.endpoint.rpartition(":")
    silent = [socket.create_connection((host, int(port)), 10) for _ in range(10_000)]
    try:
        assert ask("send", server.endpoint, [{"path": "good.log"}]) == [""]
    finally:
        for each in silent:
            each.close()
    assert server.end() == 0


def test_a_client_with_one_long_stream_is_written_as_it_sends(tmp_path, service):
    server = service.server("--root", str(tmp_path))
    file = tmp_path / "train.log"
    assert ask("one stream", server.endpoint, str(file)) == ["ok", 13, True]
    assert file.read_bytes() == b"first\nsecond\n"
    assert server.end() == 0


def test_tls_is_used_where_it_is_asked_for(tmp_path, service):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    server = service.server("--root", str(tmp_path), "--tls-certificate", str(certificate), "--tls-key", str(key)
    )  # fmt: skip
    assert ask("send", server.endpoint, [{"path": "train.log"}])[0].startswith("UNAVAILABLE")
    node = service.node(server.endpoint, "node0", "--tls-authority", str(certificate))
    node.put("train.log", b"a line\n")
    assert node.end() == 0, node.said()
    assert server.end() == 0
    assert (tmp_path / "train.log").read_bytes() == b"a line\n"


def test_lines_of_a_launcher_that_is_killed_are_sent(tmp_path, service):
    server = service.server("--root", str(tmp_path))
    node = service.node(server.endpoint)
    node.put("train.log", b"0: the first line\n")
    wait_for((tmp_path / "train.log").exists)
    node.process.terminate()  # as a scheduler does with all processes of a job
    node.put("train.log", b"0: the last line\n")
    assert node.end() == 0
    assert server.end() == 0
    assert (tmp_path / "train.log").read_bytes() == b"0: the first line\n0: the last line\n"
