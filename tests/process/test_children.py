"""The end of a child: at once, by itself, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from nvrx_core.process.children import adopted, end_child, start_child, watch_child
from nvrx_core.process.waiting import readable

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def are_closed(child: subprocess.Popen[bytes]) -> bool:
    return all(pipe is not None and pipe.closed for pipe in (child.stdin, child.stdout, child.stderr))


def test_a_child_that_runs_is_killed_and_reaped() -> None:
    child = start_child(["sleep", "600"], **PIPES)
    ended = watch_child(child)
    assert child.pid not in adopted(), "whoever reaps orphans would take its exit code"
    assert end_child(child, 10.0) == -signal.SIGKILL
    assert readable([ended], 0.0)
    os.close(ended)
    assert are_closed(child)


def test_a_child_that_has_exited_keeps_its_exit_code() -> None:
    child = start_child(["sh", "-c", "exit 3"], **PIPES)
    ended = watch_child(child)
    assert readable([ended], 10.0)
    os.close(ended)
    assert end_child(child, 0.0) == 3
    assert are_closed(child)


def test_a_child_that_sigkill_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe of its input, which does not block, is full."""
    child = start_child(["sleep", "600"], **PIPES)
    monkeypatch.setattr(child, "kill", lambda: None)
    assert child.stdin is not None
    os.set_blocking(child.stdin.fileno(), False)
    with pytest.raises(BlockingIOError):
        child.stdin.write(bytes(1 << 20))
    assert end_child(child, 0.0) is None
    assert are_closed(child)
    assert child.poll() is not None, "Popen would warn of it"
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
