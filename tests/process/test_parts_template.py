"""The template process and its worker: replaced when lost, ended when asked, holding nothing of the caller's."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from nvrx_core.process import fork_server as module
from nvrx_core.process.fork_server import ForkServer, TemplateError

Ready = Callable[[], None]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def started(pipe: tuple[int, int]) -> Iterator[Callable[[Callable[[Ready], None]], ForkServer]]:
    templates: list[ForkServer] = []

    def start(work: Callable[[Ready], None]) -> ForkServer:
        templates.append(ForkServer.start(work, keep=pipe))
        templates[-1].await_ready()
        return templates[-1]

    yield start
    for fork_server in templates:
        if fork_server.channel.fileno() >= 0:
            fork_server.end(0.0)


def test_a_caller_that_ignores_sigchld_has_its_worker(started, pipe) -> None:  # type: ignore[no-untyped-def]
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        fork_server = started(forever)
        os.kill(fork_server.worker, signal.SIGKILL)
        assert news_of(fork_server).startswith("lost to SIGKILL")
    finally:
        signal.signal(signal.SIGCHLD, before)


def forever(ready: Ready) -> None:
    ready()
    signal.pause()


def news_of(fork_server: ForkServer) -> str:
    """The next news, which is there within a few seconds."""
    for _ in range(2):
        assert select.select([fork_server.channel], [], [], 10)[0], "no news"
        if (poll := fork_server.poll()) is not None:
            return poll
    raise AssertionError("a worker was ready twice")


def await_worker_after(fork_server: ForkServer, before: int) -> None:
    while fork_server.worker == before:
        assert select.select([fork_server.channel], [], [], 10)[0], "no new worker"
        fork_server.poll()


def test_a_worker_that_returns_has_done_its_work(started: Callable[..., ForkServer], pipe: tuple[int, int]) -> None:
    def work(ready: Ready) -> None:
        ready()
        os.write(pipe[1], b"done")

    fork_server, begun = started(work), time.monotonic()
    fork_server.end(5.0)
    assert time.monotonic() - begun < 2.0
    assert os.read(pipe[0], 9) == b"done"


def test_a_template_that_has_done_its_work_has_ended(started: Callable[..., ForkServer]) -> None:
    fork_server = started(lambda ready: ready())
    while not fork_server.ended:  # its channel stays readable from then on
        assert select.select([fork_server.channel], [], [], 10)[0], "no news"
        assert fork_server.poll() is None
    assert fork_server.done


def test_a_worker_that_ends_with_code_0_before_its_work_is_done_is_replaced(
    started: Callable[..., ForkServer], pipe: tuple[int, int]
) -> None:
    os.write(pipe[1], b"x")
    os.set_blocking(pipe[0], False)

    def work(ready: Ready) -> None:
        ready()
        with suppress(BlockingIOError):
            os.read(pipe[0], 1)
            os._exit(0)
        signal.pause()

    fork_server = started(work)
    assert news_of(fork_server).startswith("failed with exit code 0")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_a_lost_worker_is_replaced(started: Callable[..., ForkServer], number: int) -> None:
    fork_server = started(forever)
    before = fork_server.worker
    os.kill(before, number)
    assert f"(pid {before})" in news_of(fork_server)
    await_worker_after(fork_server, before)
    fork_server.end(0.0)


def test_a_worker_that_fails_is_replaced(started: Callable[..., ForkServer], pipe: tuple[int, int]) -> None:
    def work(ready: Ready) -> None:
        ready()
        if os.read(pipe[0], 1) == b"x":
            raise RuntimeError("planted")

    fork_server = started(work)
    before = fork_server.worker
    os.write(pipe[1], b"x")
    assert news_of(fork_server)
    await_worker_after(fork_server, before)
    os.write(pipe[1], b"y")
    fork_server.end(5.0)


def test_a_worker_that_is_never_ready_is_an_error(
    started: Callable[..., ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READY_WITHIN", 0.2)
    with pytest.raises(TemplateError, match=r"not ready within 0\.2 s, 3 times in a row"):
        started(lambda ready: signal.pause())


def test_a_worker_that_does_not_return_is_ended(started: Callable[..., ForkServer]) -> None:
    fork_server, begun = started(forever), time.monotonic()
    fork_server.end(0.1)
    assert time.monotonic() - begun < 1.0
    with pytest.raises(ProcessLookupError):
        _ended(fork_server.worker)


@pytest.mark.parametrize("stopped", [["server"], ["worker", "server"], ["server", "worker"]], ids="+".join)
def test_a_template_that_is_stopped_ends_all_the_same(
    started: Callable[..., ForkServer], pipe: tuple[int, int], stopped: list[str]
) -> None:
    def work(ready: Ready) -> None:
        ready()
        os.read(pipe[0], 1)

    fork_server = started(work)
    for name in stopped:
        os.kill(getattr(fork_server, name), signal.SIGSTOP)
    os.write(pipe[1], b"x")
    fork_server.end(5.0)
    for pid in (fork_server.worker, fork_server.server):
        with pytest.raises(ProcessLookupError):
            _ended(pid)


def test_a_template_that_is_stopped_ends_with_its_worker_when_the_caller_is_gone(
    started: Callable[..., ForkServer], pipe: tuple[int, int]
) -> None:
    def work(ready: Ready) -> None:
        ready()
        os.read(pipe[0], 1)

    fork_server = started(work)
    os.kill(fork_server.server, signal.SIGSTOP)
    fork_server.channel.close()
    os.write(pipe[1], b"x")
    with pytest.raises(ProcessLookupError):
        _ended(fork_server.server)


def test_a_template_whose_news_nobody_has_read_goes_on_when_it_is_let_go(
    started: Callable[..., ForkServer], pipe: tuple[int, int]
) -> None:
    fork_server = started(lambda ready: (ready(), os.read(pipe[0], 1)))
    os.kill(fork_server.worker, signal.SIGKILL)
    assert select.select([fork_server.channel], [], [], 10)[0], "no news"
    fork_server.detach()
    assert_goes_on_to_its_end(fork_server, pipe)


def test_a_worker_that_is_lost_after_the_caller_is_replaced(
    started: Callable[..., ForkServer], pipe: tuple[int, int]
) -> None:
    fork_server = started(lambda ready: (ready(), os.read(pipe[0], 1)))
    fork_server.detach()
    os.kill(fork_server.worker, signal.SIGKILL)
    assert_goes_on_to_its_end(fork_server, pipe)


def assert_goes_on_to_its_end(fork_server: ForkServer, pipe: tuple[int, int]) -> None:
    """The template is there until its worker, which reads the pipe, is done."""
    server = os.pidfd_open(fork_server.server)
    try:
        assert not select.select([server], [], [], 1.5)[0], "the template has ended before its worker was done"
        os.write(pipe[1], b"x")
        assert select.select([server], [], [], 10)[0], "the template is still there"
    finally:
        os.close(server)


def test_the_worker_has_none_of_the_caller_s_files(started: Callable[..., ForkServer], pipe: tuple[int, int]) -> None:
    def work(ready: Ready) -> None:
        targets = set[str]()
        for fd in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the listing's own
                targets.add(os.readlink(f"/proc/self/fd/{fd}"))
        ready()
        os.write(pipe[1], "\n".join(targets).encode())

    with socket.socket() as mine:
        inode = os.fstat(mine.fileno()).st_ino
        fork_server = started(work)
        fork_server.end(5.0)
    held = os.read(pipe[0], 65536).decode().splitlines()
    assert f"socket:[{inode}]" not in held
    assert "/dev/null" in held


def test_the_worker_is_in_a_session_of_its_own(started: Callable[..., ForkServer]) -> None:
    fork_server = started(forever)
    assert os.getsid(fork_server.worker) != os.getsid(0)
    fork_server.end(0.0)


def _ended(pid: int) -> None:
    """Raises ProcessLookupError when no process of this pid runs; one that is only a zombie does not."""
    for _ in range(100):
        with open(f"/proc/{pid}/stat") if os.path.exists(f"/proc/{pid}/stat") else open(os.devnull) as status:
            text = status.read()
        if not text or text.rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError(pid)
        time.sleep(0.02)


def test_the_caller_goes_on_while_the_worker_starts(pipe: tuple[int, int]) -> None:
    """A worker that is ready only when the caller has gone on: to wait for it at once would be a deadlock."""

    def work(ready: Ready) -> None:
        os.read(pipe[0], 1)
        ready()
        signal.pause()

    fork_server = ForkServer.start(work, keep=pipe)
    os.write(pipe[1], b"x")
    fork_server.await_ready()
    assert fork_server.worker
    fork_server.end(0.0)
