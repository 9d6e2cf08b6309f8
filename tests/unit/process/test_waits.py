"""Each wait of launchers, rendezvous, stores and monitors has a deadline, or its reason is in `waits.txt`.

A call counts as a wait without a deadline by its name and arguments, such as `join()` or `os.read(fd, n)`; whether a
descriptor is non-blocking is not seen here, so those that are have this as their reason.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.harness.sources import sources

LIST = pathlib.Path(__file__).with_name("waits.txt")
PACKAGES = (
    "launcher/nvrx_launcher/", "nvrx_core/store/", "nvrx_core/fault_tolerance/", "nvrx_core/health/",
    "nvrx_core/process/", "nvrx_core/inprocess/", "nvrx_core/logs/",
)  # fmt: skip
ENDLESS = {"recv", "recv_fds", "recvmsg", "recv_into", "recvfrom", "accept", "readline", "readlines", "sigwait",
           "eventfd_read", "pthread_mutex_lock", "sendall"}  # fmt: skip
"""Calls that have no parameter for a deadline."""
BOUNDED_BY_AN_ARGUMENT = {"wait", "get", "join", "acquire"}
BOUNDED_BY_TIMEOUT = {"communicate", "subprocess.run", "subprocess.call", "subprocess.check_call",
                      "subprocess.check_output", "urlopen"}  # fmt: skip
STREAMS = ("stdin", "stdout", "stderr")


def waits_in(tree: ast.Module) -> Iterator[str]:
    """Yield `function: call` for each wait without a deadline."""

    def visit(node: ast.AST, function: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.Call) and is_endless(child):
                yield f"{inner}: {ast.unparse(child)}"
            if isinstance(child, ast.For) and ast.unparse(child.iter).endswith(STREAMS):
                yield f"{inner}: for {ast.unparse(child.target)} in {ast.unparse(child.iter)}"
            yield from visit(child, inner)

    yield from visit(tree, "module")


def is_endless(call: ast.Call) -> bool:  # noqa: PLR0911
    whole = ast.unparse(call.func)
    name = whole.rpartition(".")[2]
    timeouts = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg in ("timeout", "within")]
    has_timeout = bool(timeouts) and "None" not in timeouts[0]
    if name in ENDLESS or whole in ("os.read", "self._selector.select"):
        return True
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant):  # the join of a string
        return False
    if name in BOUNDED_BY_AN_ARGUMENT:
        return not has_timeout and (not call.args or "None" in ast.unparse(call.args[0]))
    if name == "communicate" or whole in BOUNDED_BY_TIMEOUT:
        return not has_timeout
    if name == "readable":
        return "None" in ast.unparse(call.args[1]) if len(call.args) > 1 else not has_timeout
    if name in ("waitpid", "waitid"):
        return "WNOHANG" not in ast.unparse(call)
    if name in ("select", "flock"):
        return len(call.args) == 3 if name == "select" else "LOCK_NB" not in ast.unparse(call)
    if name == "create_connection":
        return len(call.args) < 2 and not has_timeout
    if name == "connect":  # of a socket, which takes an address
        return isinstance(call.func, ast.Attribute) and len(call.args) == 1
    return whole.endswith(".stdin.write")


@functools.cache
def waits_of_the_product() -> Counter[str]:
    of_packages = [(path, tree) for path, tree in sources().items() if path.startswith(PACKAGES)]
    return Counter(f"{path} {each}" for path, tree in of_packages for each in waits_in(tree))


def stated() -> Iterator[tuple[str, str]]:
    """Yield each wait of the list with its reason: the same call twice in one function stands there twice."""
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            wait, _, reason = line.partition("  # ")
            yield wait.strip(), reason.strip()


def test_each_wait_has_a_deadline_or_a_stated_reason() -> None:
    assert waits_of_the_product() - Counter(wait for wait, _ in stated()) == Counter()


def test_no_reason_is_stated_for_a_wait_that_is_gone() -> None:
    assert Counter(wait for wait, _ in stated()) - waits_of_the_product() == Counter()
    assert [wait for wait, reason in stated() if not reason] == []


@pytest.mark.parametrize(
    "text",
    [
        "event.wait()", "queue.get()", "queue.get(timeout=None)", "thread.join()", "thread.join(None)",
        "channel.sendall(packet)", "channel.connect(address)", "lock.acquire()", "channel.recv(1)",
        "process.communicate()", "subprocess.run(command)", "os.read(fd, 1)", "readable([fd])", "readable([fd], None)",
        "readable([fd], every if runs else None)", "os.waitpid(pid, 0)", "select.select([fd], [], [])",
        "fcntl.flock(fd, fcntl.LOCK_EX)", "socket.create_connection(address)", "process.stdin.write(line)",
        "for line in sys.stdin: pass",
    ],
)  # fmt: skip
def test_a_wait_without_a_deadline_is_found(text: str) -> None:
    assert len(list(waits_in(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "event.wait(1)", "queue.get(timeout=left)", "found.get(key)", "found.get(key, None)",
        "thread.join(within)", "rendezvous.connect()", "', '.join(words)",
        "process.communicate(timeout=5)", "subprocess.run(command, timeout=5)", "readable([fd], 0)",
        "os.waitpid(pid, os.WNOHANG)", "select.select([fd], [], [], 1.0)", "fcntl.flock(fd, LOCK_EX | LOCK_NB)",
        "socket.create_connection(address, timeout=5)", "for line in lines: pass",
    ],
)  # fmt: skip
def test_a_wait_with_a_deadline_is_not(text: str) -> None:
    assert list(waits_in(ast.parse(text))) == []
