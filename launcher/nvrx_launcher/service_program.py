"""A service process beside a launcher, which is started again when it exits.

It ends when its standard input does, and gets the token of the job by a descriptor.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Final

from nvrx_core.backoff import Backoff
from nvrx_core.process.children import end_child, start_child, watch_child
from nvrx_core.process.lifeline import describe_exit, exit_status
from nvrx_core.process.waiting import readable
from nvrx_launcher.loop import EventLoop

__all__ = ["ENDS_LATER", "ServiceProgram", "end_program"]

log = logging.getLogger("nvrx_launcher")
PAUSES: Final = Backoff(0.5, 30.0)
"""Before a process is started again."""
WORKED: Final = 60.0
"""Seconds after which a process has worked: the next pause is the first one again."""
ENDS_LATER: Final = 15.0
"""Seconds beyond those for what is left in which a process ends: a server writes, and exits."""


class ServiceProgram:
    """A process that is started again when it exits, until `close`.

    Args:
        loop: watches it.
        name: its name in the log.
        command: starts it; `--token-file` is appended.
        token: the token of the job.
        log_file: gets its standard error; "": that of the launcher.
        environ: its environment.
        started: gets its standard input, each time.
        inherits: descriptors that it has under the same numbers.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(
        self, loop: EventLoop, name: str, command: Sequence[str], *, token: bytes, log_file: str = "",
        environ: Mapping[str, str], started: Callable[[IO[bytes]], object] = bool, inherits: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._loop, self._name, self._command, self._token, self._log_file = loop, name, command, token, log_file
        self._environ, self._started, self._inherits = environ, started, inherits
        self._process: subprocess.Popen[bytes] | None = None
        self._ended, self._failures, self._began, self.deadline = -1, 0, 0.0, math.inf

    @property
    def ended(self) -> int:
        """A descriptor that becomes readable when it exits; -1 while it does not run."""
        return -1 if self._process is None else self._ended

    def start(self) -> None:
        """Start it; where that fails, later."""
        self.deadline, self._began = math.inf, time.monotonic()
        try:
            with os.fdopen(os.memfd_create("nvrx-token"), "wb", buffering=0) as token, ExitStack() as files:
                token.write(self._token)
                process = start_child(
                    [*self._command, "--token-file", f"/proc/self/fd/{token.fileno()}"], stdin=subprocess.PIPE,
                    env=self._environ, stdout=subprocess.DEVNULL, start_new_session=True,
                    stderr=files.enter_context(open(self._log_file, "ab", buffering=0)) if self._log_file else None,
                    pass_fds=[token.fileno(), *self._inherits],
                )  # fmt: skip
            self._ended = watch_child(process)
        except OSError as error:
            log.warning("cannot start the %s: %s", self._name, error)
            self._again()
            return
        self._process = process
        self._loop.watch(self._ended, self.exited)
        assert process.stdin is not None
        self._started(process.stdin)

    def tick(self, *, now: float) -> None:
        """Start it again when its pause is over."""
        if now >= self.deadline:
            self.start()

    def finish(self) -> None:
        """Let it end by itself: its input ends."""
        self.deadline = math.inf
        if self._process is not None:
            self._loop.forget(self._ended)
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()

    def close(self, deadline: float) -> None:
        """Wait until it has ended; kill it at a time of the monotonic clock."""
        if self._process is None:
            return
        if not readable([self._ended], max(0.0, deadline - time.monotonic())):
            log.warning("the %s (pid %d) does not end in time, and is killed", self._name, self._process.pid)
        self._forget()

    def exited(self) -> None:
        """Handle that it has exited: it is started again after a pause."""
        assert self._process is not None
        self._loop.forget(self._ended)
        how = describe_exit(exit_status(self._process.pid, self._ended))
        log.warning("the %s (pid %d) was %s, and is started again", self._name, self._process.pid, how)
        self._forget()
        self._again()

    def _forget(self) -> None:
        assert self._process is not None
        end_program(self._process, self._ended, self._name, ENDS_LATER)
        self._process = None

    def _again(self) -> None:
        now = time.monotonic()
        self._failures = 1 if now - self._began > WORKED else self._failures + 1
        self.deadline = now + PAUSES.pause(self._failures)


def end_program(process: subprocess.Popen[bytes], ended: int, name: str, within: float) -> None:
    """End a process, unless it has exited; say so where that cannot be done.

    Args:
        process: the process.
        ended: its pidfd, which is closed.
        name: its name in the log.
        within: seconds that it has to end.
    """
    if end_child(process, within) is None:
        log.warning("the %s (pid %d) survives SIGKILL, and is left behind", name, process.pid)
    os.close(ended)
