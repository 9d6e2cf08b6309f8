"""The exit of a process that somebody else has started, before and after it is reaped."""

import os
import platform
import struct

import pytest

from nvrx_core.process import lifeline

TELLS = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2]) >= (6, 15)
"""Whether the kernel tells the exit of a process that is reaped."""


def ended(status):
    """A process that has ended with this wait status, as a zombie, and its pidfd."""
    pid = os.fork()
    if pid == 0:
        if os.WIFSIGNALED(status):
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.WEXITSTATUS(status))
    pidfd = os.pidfd_open(pid)
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    return pid, pidfd


@pytest.mark.parametrize("reaped", [False, True])
@pytest.mark.parametrize(
    ("status", "text", "code"),
    [(0, "ended with exit code 0", 0), (7 << 8, "ended with exit code 7", 7), (9, "ended by SIGKILL", 137)],
)
def test_the_exit_of_a_process_is_known_also_when_it_is_reaped(status, text, code, reaped):
    pid, pidfd = ended(status)
    try:
        if reaped:
            os.waitpid(pid, 0)
        found = lifeline.exit_status(pid, pidfd)
        if reaped and not TELLS:
            status, text, code = None, "ended", 0
        assert (found, lifeline.describe_exit(found), lifeline.exit_code(found)) == (status, text, code)
    finally:
        os.close(pidfd)
        if not reaped:
            os.waitpid(pid, 0)


def test_an_exit_that_the_kernel_does_not_tell_is_unknown(monkeypatch):
    pid, pidfd = ended(0)
    os.waitpid(pid, 0)
    monkeypatch.setattr(lifeline.fcntl, "ioctl", lambda *_: (_ for _ in ()).throw(OSError("ENOTTY")))
    found = lifeline.exit_status(pid, pidfd)
    os.close(pidfd)
    assert (found, lifeline.describe_exit(found), lifeline.exit_code(found)) == (None, "ended", 0)


def test_the_layout_is_that_of_the_first_version_of_the_kernels_structure():
    assert lifeline._PIDFD_INFO.size == struct.calcsize("64x")
    assert (3 << 30) | (lifeline._PIDFD_INFO.size << 16) | (0xFF << 8) | 11 == lifeline.PIDFD_GET_INFO
