"""Threads whose end is noticed, and the scan that finds one that is not."""

from __future__ import annotations

import ast
import os
import threading

import pytest

from nvrx_core import failpoint
from nvrx_core.process import helper_thread
from nvrx_core.process.helper_thread import HelperThread, HelperThreadError, end_process
from tests.harness.sources import name_of_call, nodes

BARE = {
    "launcher/nvrx_launcher/attribution_client.py": "cuts a request off; whoever waits for it has its own timeout",
    "launcher/nvrx_launcher/signals.py": "ends the process, before there is anything that it could hold up",
    "nvrx_core/process/bounded.py": "the caller waits for the call with a deadline, and raises its exception",
    "nvrx_core/inprocess/progress_watchdog.py": "an exception ends the rank's part in the job (`Losses`)",
    "nvrx_core/inprocess/monitor_thread.py": "an exception ends the rank's part in the job (`Losses`)",
    "nvrx_core/inprocess/call/own_faults.py": "writes a traceback to the log; the end of the call waits for it",
    "integrations/nvrx_compat/raising.py": "raises one exception again; it is interrupted again if that fails",
    "nvrx_core/inprocess/coordination/joining.py": "the rank waits for its answer with the deadline of the entry",
    "nvrx_core/inprocess/groups/observer.py": "releases objects; they stay held if it fails",
    "nvrx_core/inprocess/groups/nccl.py": "wakes threads to save time; nobody waits for it",
    "nvrx_core/inprocess/groups/blocked_read.py": "runs the user's call; the caller raises its exception",
    "nvrx_core/inprocess/groups/gloo_connections.py": "closes connections later; they stay open if it fails",
    "nvrx_core/testing/dispatch.py": "injects a fault later",
    "nvrx_core/testing/injection.py": "injects a fault later",
    "nvrx_core/testing/injectors.py": "injects an exception that nobody catches",
    "integrations/nvrx_megatron/atomic_file.py": "writes one line to the log",
}
"""The modules that start a `threading.Thread` or a timer, and why an exception in it needs no `HelperThread`."""


def calls(*names: str) -> list[tuple[str, ast.Call]]:
    return [(path, node) for path, node in nodes(ast.Call) if name_of_call(node) in names]


def test_a_bare_thread_has_a_stated_reason() -> None:
    assert {path for path, _ in calls("Thread", "Timer", "start_new_thread")} == BARE.keys()


def test_each_helper_thread_has_a_failpoint() -> None:
    named = dict[str, set[str]]()
    for path, call in calls("HelperThread", "Follower", "Requests"):
        name = next(ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "name")
        named.setdefault(name.strip("f'").removesuffix("-{rank}"), set()).add(path)
    named.pop("name", None)  # a class of threads, named where each is made
    assert named.keys() == set(failpoint.THREAD_NAMES)


def run(body: object, failed: object) -> None:
    thread = HelperThread(body, name="nvrx-stacks", failed=failed)  # type: ignore[arg-type]
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_an_exception_is_handed_to_the_owner_in_the_thread() -> None:
    found = list[tuple[str, str]]()

    def body() -> None:
        raise ValueError("not JSON: ''\nand more")

    run(body, lambda error: found.append((str(error), threading.current_thread().name)))
    assert found == [("the thread nvrx-stacks has failed: ValueError: not JSON: ''", "nvrx-stacks")]


def test_a_body_that_returns_is_no_failure() -> None:
    ran, failures = list[int](), list[HelperThreadError]()
    run(lambda: ran.append(1), failures.append)
    assert (ran, failures) == ([1], [])


def test_the_process_ends_when_the_owner_fails_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[str]()
    monkeypatch.setattr(helper_thread, "end_process", lambda error: ended.append(str(error)))

    def fail(_: object = None) -> None:
        raise SystemExit

    run(fail, fail)
    assert ended == ["the thread nvrx-stacks has failed: SystemExit"]


def test_the_end_of_a_process_is_one_line_and_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does not read delays it for a bounded time only."""
    codes, (reader, writer) = list[int](), os.pipe2(os.O_NONBLOCK)
    monkeypatch.setattr(helper_thread, "STDERR", writer)
    monkeypatch.setattr(helper_thread, "WRITE_TIMEOUT", 0.01)
    monkeypatch.setattr(os, "_exit", codes.append)
    try:
        end_process(HelperThreadError("nvrx-node", OSError()))
        line = os.read(reader, 1 << 16).decode()
        while True:
            try:
                os.write(writer, b"x" * 4096)
            except BlockingIOError:
                break
        end_process(HelperThreadError("nvrx-node", OSError()))
    finally:
        os.close(reader)
        os.close(writer)
    assert line == f"the thread nvrx-node has failed: OSError; process {os.getpid()} ends with code 75\n"
    assert codes == [75, 75]
