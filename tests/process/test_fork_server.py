"""The fork server and its worker: replaced when lost, ended when asked, holding nothing of the caller's."""

from __future__ import annotations

import errno
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from nvrx_core.process import fork_server as module
from nvrx_core.process.fork_server import ForkServer, ForkServerError, Postponement
from nvrx_core.process.lifeline import ParentDeathSignal
from nvrx_core.process.signals import SENT_TO_ALL
from tests.harness.process import host

Ready = Callable[[], None]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def started(pipe: tuple[int, int]) -> Iterator[Callable[[Callable[[Ready], None]], ForkServer]]:
    servers: list[ForkServer] = []

    def start(work: Callable[[Ready], None]) -> ForkServer:
        servers.append(ForkServer.start(work, keep=pipe))
        servers[-1].await_ready()
        return servers[-1]

    yield start
    for fork_server in servers:
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
    fork_server.end(20.0)
    assert time.monotonic() - begun < 10.0
    assert os.read(pipe[0], 9) == b"done"


def test_a_fork_server_that_has_done_its_work_has_ended(started: Callable[..., ForkServer]) -> None:
    fork_server = started(lambda ready: ready())
    while not fork_server.ended:  # its channel stays readable from then on
        assert select.select([fork_server.channel], [], [], 10)[0], "no news"
        assert fork_server.poll() is None
    assert fork_server.done


def test_a_worker_that_is_killed_when_its_work_is_done_is_not_replaced(
    started: Callable[..., ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvrx_core.process.fork_server_process.LINGERS", 60.0)
    fork_server = started(lambda ready: ready())
    worker = fork_server.worker
    while not fork_server.done:
        assert select.select([fork_server.channel], [], [], 10)[0], "no news"
        assert fork_server.poll() is None
    os.kill(worker, signal.SIGKILL)
    while not fork_server.ended:
        assert select.select([fork_server.channel], [], [], 10)[0], "no news"
        assert fork_server.poll() is None
    assert fork_server.worker == worker


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
            raise RuntimeError("injected")

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
    with pytest.raises(ForkServerError, match=r"no worker was ready within 0\.2 s, 3 times in a row"):
        started(lambda ready: signal.pause())


def test_a_worker_that_does_not_return_is_ended(
    started: Callable[..., ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENDS_WITHIN", 20.0)
    fork_server, begun = started(forever), time.monotonic()
    fork_server.end(0.1)
    assert time.monotonic() - begun < 10.0, "it was not told to end"
    with pytest.raises(ProcessLookupError):
        _ended(fork_server.worker)


@pytest.mark.parametrize("stopped", [["server"], ["worker", "server"], ["server", "worker"]], ids="+".join)
def test_a_fork_server_that_is_stopped_ends_all_the_same(
    started: Callable[..., ForkServer], pipe: tuple[int, int], stopped: list[str]
) -> None:
    def work(ready: Ready) -> None:
        ready()
        os.read(pipe[0], 1)

    fork_server = started(work)
    for name in stopped:
        host.stop(getattr(fork_server, name))
    os.write(pipe[1], b"x")
    fork_server.end(5.0)
    for pid in (fork_server.worker, fork_server.server):
        with pytest.raises(ProcessLookupError):
            _ended(pid)


def test_a_fork_server_that_is_stopped_ends_with_its_worker_when_the_caller_is_gone(
    started: Callable[..., ForkServer], pipe: tuple[int, int]
) -> None:
    def work(ready: Ready) -> None:
        ready()
        os.read(pipe[0], 1)

    fork_server = started(work)
    host.stop(fork_server.server)
    fork_server.channel.close()
    os.write(pipe[1], b"x")
    with pytest.raises(ProcessLookupError):
        _ended(fork_server.server)


def test_a_detached_fork_server_continues_with_unread_messages(
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
    """The fork server is there until its worker, which reads the pipe, is done."""
    server = os.pidfd_open(fork_server.server)
    try:
        assert not select.select([server], [], [], 1.5)[0], "the fork server has ended before its worker was done"
        os.write(pipe[1], b"x")
        assert select.select([server], [], [], 10)[0], "the fork server is still there"
    finally:
        os.close(server)


@pytest.mark.parametrize("numbers", ["orphan._SET_TID_ADDRESS", "{}"], ids=["vfork", "second fork"])
def test_a_fork_server_is_no_child_of_its_caller(numbers: str) -> None:
    program = f"""
import os, signal
from nvrx_core.process import orphan
from nvrx_core.process.fork_server import ForkServer
orphan._SET_TID_ADDRESS = {numbers}
fork_server = ForkServer.start(lambda ready: (ready(), signal.pause()), [])
fork_server.await_ready()
print(open(f"/proc/self/task/{{os.getpid()}}/children").read().split())
print(os.getsid(fork_server.server) == os.getsid(fork_server.worker) != os.getsid(0))
fork_server.end(0.0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]


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
    for _ in range(500):
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


# Postponed


LONG = 60.0


@pytest.fixture
def postponed(pipe: tuple[int, int]) -> Iterator[Callable[..., ForkServer]]:
    servers: list[ForkServer] = []

    def start(
        seconds: float = LONG, urgent: tuple[int, ...] = (), work: Callable[[Ready], None] = forever
    ) -> ForkServer:
        servers.append(ForkServer.start(work, keep=pipe, postponement=Postponement(seconds, urgent)))
        servers[-1].await_ready()
        assert servers[-1].server
        return servers[-1]

    yield start
    for fork_server in servers:
        fork_server.end(0.0)


def test_a_postponed_worker_is_started_after_its_time(postponed: Callable[..., ForkServer]) -> None:
    begun = time.monotonic()
    fork_server = postponed(0.2)
    assert not fork_server.worker
    await_worker_after(fork_server, 0)
    assert time.monotonic() - begun >= 0.2


def test_a_postponed_worker_is_started_when_it_is_asked_for(postponed: Callable[..., ForkServer]) -> None:
    fork_server = postponed()
    assert not select.select([fork_server.channel], [], [], 0.2)[0], "it was started at once"
    fork_server.hasten()
    await_worker_after(fork_server, 0)


def test_a_postponed_worker_is_started_when_an_urgent_descriptor_is_readable(
    postponed: Callable[..., ForkServer], pipe: tuple[int, int]
) -> None:
    fork_server = postponed(urgent=(pipe[0],))
    os.write(pipe[1], b"x")
    await_worker_after(fork_server, 0)


def test_a_postponed_worker_does_its_work_for_a_caller_that_is_gone(
    postponed: Callable[..., ForkServer], pipe: tuple[int, int]
) -> None:
    def work(ready: Ready) -> None:
        ready()
        os.write(pipe[1], b"done")

    postponed(work=work).detach()
    assert select.select([pipe[0]], [], [], 10)[0], "it was not started"
    assert os.read(pipe[0], 9) == b"done"


def test_a_postponed_worker_that_is_not_needed_is_not_started(
    postponed: Callable[..., ForkServer], pipe: tuple[int, int]
) -> None:
    fork_server, begun = postponed(work=lambda ready: os.write(pipe[1], b"started")), time.monotonic()
    fork_server.end(0.0)
    assert time.monotonic() - begun < 10.0
    with pytest.raises(ProcessLookupError):
        _ended(fork_server.server)
    assert not select.select([pipe[0]], [], [], 0)[0], "it was started"


def test_a_server_that_is_hastened_too_late_ends_when_it_is_told_to(postponed: Callable[..., ForkServer]) -> None:
    fork_server = postponed(0.0)
    await_worker_after(fork_server, 0)
    fork_server.hasten()
    fork_server.hasten()
    fork_server.end(0.0)
    with pytest.raises(ProcessLookupError):
        _ended(fork_server.worker)


def test_a_postponed_worker_that_is_not_there_in_time_is_overdue(
    postponed: Callable[..., ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STARTS_WITHIN", 0.0)
    fork_server = postponed()
    assert fork_server.is_overdue(0.1)
    fork_server.hasten()
    await_worker_after(fork_server, 0)
    assert not fork_server.is_overdue(0.1)


# Without a process for the worker


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the forks of servers fail, the first ones or all."""
    fork, caller = os.fork, os.getpid()

    def scarce(number: int | None = None, code: int = errno.EAGAIN) -> None:
        failures = itertools.repeat(None) if number is None else itertools.repeat(None, number)

        def fails() -> int:
            if os.getpid() != caller:
                for _ in failures:
                    raise OSError(code, os.strerror(code))
            return fork()

        monkeypatch.setattr(os, "fork", fails)

    return scarce


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM])
def test_a_fork_for_which_there_is_no_process_is_tried_again(
    scarce: Callable[..., None], postponed: Callable[..., ForkServer], code: int
) -> None:
    scarce(4, code)
    fork_server = postponed(0.0)
    assert select.select([fork_server.channel], [], [], 10)[0], "no news"
    assert fork_server.poll() is None
    assert fork_server.late
    assert os.strerror(code) in fork_server.reason
    await_worker_after(fork_server, 0)
    assert not fork_server.late
    assert not fork_server.reason


def test_a_caller_that_waits_for_its_worker_waits_for_a_process(
    scarce: Callable[..., None], started: Callable[..., ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIES", 1)
    scarce(4)
    assert started(forever).worker


@pytest.mark.parametrize(("number", "code"), [(None, errno.EAGAIN), (1, errno.ENOSYS)], ids=["for long", "for good"])
def test_a_server_without_a_process_for_its_worker_ends_and_says_why(
    scarce: Callable[..., None],
    postponed: Callable[..., ForkServer],
    monkeypatch: pytest.MonkeyPatch,
    number: int | None,
    code: int,
) -> None:
    monkeypatch.setattr("nvrx_core.process.fork_server_process.STARTS_WITHIN", 0.3)
    scarce(number, code)
    fork_server = postponed(0.0)
    while not fork_server.ended:
        assert select.select([fork_server.channel], [], [], 10)[0], "no news"
        poll = fork_server.poll()
    assert poll == ""
    assert os.strerror(code) in fork_server.reason


def test_a_server_without_a_process_for_its_worker_ends_when_it_is_told_to(
    scarce: Callable[..., None], postponed: Callable[..., ForkServer]
) -> None:
    scarce()
    fork_server = postponed(0.0)
    assert select.select([fork_server.channel], [], [], 10)[0], "no news"
    fork_server.end(0.0)
    with pytest.raises(ProcessLookupError):
        _ended(fork_server.server)


def test_a_worker_for_which_there_was_no_process_does_its_work_for_a_caller_that_is_gone(
    scarce: Callable[..., None], postponed: Callable[..., ForkServer], pipe: tuple[int, int]
) -> None:
    scarce(4)
    postponed(work=lambda ready: os.write(pipe[1], b"done")).detach()
    assert select.select([pipe[0]], [], [], 10)[0], "it was not started"
    assert os.read(pipe[0], 9) == b"done"


# Started by exec

PROGRAM = """
import os, sys
from nvrx_core.process.fork_server_process import serve

kept = [int(fd) for fd in sys.argv[1:-2]]

def work(ready):
    ready()
    if os.read(kept[0], 1) == b"!":
        raise RuntimeError("injected")

serve(work, sys.argv[-2:], keep=kept)
"""


def spawned(reader: int, *, dies_with_caller: bool = False) -> ForkServer:
    fork_server = ForkServer.spawn(
        [sys.executable, "-c", PROGRAM, str(reader)], keep=[reader], dies_with_caller=dies_with_caller
    )
    fork_server.await_ready()
    return fork_server


@contextmanager
def another_thread() -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("dies_with_caller", [False, True])
def test_a_caller_with_threads_starts_the_server_by_exec(pipe: tuple[int, int], dies_with_caller: bool) -> None:
    with another_thread():
        fork_server = spawned(pipe[0], dies_with_caller=dies_with_caller)
    before = fork_server.worker
    assert host.parent(before) == fork_server.server
    assert os.getsid(before) == os.getsid(fork_server.server) != os.getsid(0)
    os.write(pipe[1], b"!")
    assert news_of(fork_server) == f"failed with exit code 70 (pid {before}): RuntimeError: injected"
    await_worker_after(fork_server, before)
    os.write(pipe[1], b"x")
    fork_server.end(5.0)
    with pytest.raises(ProcessLookupError):
        _ended(fork_server.server)


def test_a_spawned_server_holds_none_of_the_caller_s_files(pipe: tuple[int, int]) -> None:
    fork_server = spawned(pipe[0])
    try:
        files = {os.readlink(f"/proc/{fork_server.worker}/fd/{fd}") for fd in (0, 1, 2)}
        assert files == {"/dev/null"}
        assert os.readlink(f"/proc/self/fd/{pipe[1]}") in files_of(fork_server.worker)
    finally:
        fork_server.end(0.0)


def files_of(pid: int) -> set[str]:
    return {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}


def test_a_program_that_never_serves_is_an_error_and_does_not_stay(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENDS_WITHIN", 0.1)
    program = "import os, signal, sys; os.write(int(sys.argv[1]), str(os.getpid()).encode()); signal.pause()"
    fork_server = ForkServer.spawn([sys.executable, "-c", program, str(pipe[1])], keep=[pipe[1]])
    pid = int(os.read(pipe[0], 99))
    monkeypatch.setattr(module, "READY_WITHIN", 0.1)
    with pytest.raises(ForkServerError, match=r"no worker was ready within 0\.1 s"):
        fork_server.await_ready()
    fork_server.end(0.0)  # again, in the caller's own cleanup
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        ForkServer.spawn(["/nowhere/program"], keep=[])


# The caller's end, and its signals

CALLER = f"""
import os, signal, sys
from nvrx_core.process.fork_server import ForkServer

how, dies, ignores = sys.argv[1], sys.argv[2] == "dies", sys.argv[3] == "ignores"
if ignores:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
reader, writer = kept = os.pipe()

def work(ready):
    ready()
    os.read(reader, 1)

if how == "start":
    fork_server = ForkServer.start(work, keep=kept, dies_with_caller=dies)
else:
    command = [sys.executable, "-c", {PROGRAM!r}, *map(str, kept)]
    fork_server = ForkServer.spawn(command, keep=kept, dies_with_caller=dies)
fork_server.await_ready()
print(fork_server.worker, fork_server.server, flush=True)
for order in sys.stdin:
    while fork_server.poll() is None:
        pass
    before = fork_server.worker
    while fork_server.worker == before:
        fork_server.poll()
    os.write(writer, b"x")
    fork_server.end(5.0)
    print("ended", flush=True)
"""


@contextmanager
def caller(how: str, dies: str = "", ignores: str = "") -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """A process that has a fork server; with the pids of worker and server."""
    command = [sys.executable, "-c", CALLER, how, dies, ignores]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker, server = map(int, process.stdout.readline().split())
        try:
            yield process, worker, server
        finally:
            process.kill()
            for pid in (server, worker):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("how", ["start", "spawn"])
def test_server_and_worker_do_not_outlive_a_killed_caller_where_asked_for(how: str, stopped: bool) -> None:
    with caller(how, "dies") as (process, worker, server):
        if stopped:
            host.stop(server, worker)
        process.kill()
        for pid in (server, worker):
            with pytest.raises(ProcessLookupError):
                _ended(pid)


@pytest.mark.parametrize(("dies", "children"), [("", 0), ("dies", 1)])
@pytest.mark.parametrize("how", ["start", "spawn"])
def test_only_a_server_that_dies_with_its_caller_is_its_child(how: str, dies: str, children: int) -> None:
    with caller(how, dies) as (process, worker, server):
        assert [host.parent(pid) for pid in (worker, server)].count(process.pid) == children
        assert host.parent(worker) == server


@pytest.mark.parametrize("how", ["start", "spawn"])
def test_server_and_worker_outlive_a_killed_caller_otherwise(how: str) -> None:
    with caller(how) as (process, worker, server):
        process.kill()
        process.wait()
        pidfds = [os.pidfd_open(pid) for pid in (worker, server)]
        assert not select.select(pidfds, [], [], 0.5)[0]
        for fd in pidfds:
            os.close(fd)


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    death_signal = ParentDeathSignal(parent=1)  # not this process
    child = os.fork()
    if child == 0:
        death_signal.set()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("dies", ["", "dies"])
@pytest.mark.parametrize("how", ["start", "spawn"])
def test_a_caller_that_ignores_sigchld_starts_and_ends_its_server(how: str, dies: str) -> None:
    with caller(how, dies, "ignores") as (process, worker, server):
        os.kill(worker, signal.SIGKILL)
        told, _ = process.communicate("end\n", timeout=20)
        assert (told, process.returncode) == ("ended\n", 0)
        with pytest.raises(ProcessLookupError):
            _ended(server)


@pytest.mark.parametrize("signum", SENT_TO_ALL)
def test_a_signal_for_all_processes_of_a_job_ends_neither_server_nor_worker(
    started: Callable[..., ForkServer], signum: signal.Signals
) -> None:
    fork_server = started(forever)
    for pid in (fork_server.server, fork_server.worker):
        os.kill(pid, signum)
    assert not select.select([fork_server.channel], [], [], 0.1)[0]
    os.kill(fork_server.worker, signal.SIGKILL)
    assert news_of(fork_server).startswith("lost to SIGKILL")


def test_a_fork_that_fails_leaves_no_signal_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("no process is left")

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        ForkServer.start(forever, keep=())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
