"""The iteration of the last checkpoint, which the training writes to a file, as Megatron-LM does.

The file is on a shared file system that may not answer: a program reads it, and the launcher waits for its descriptor.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import time
from contextlib import suppress
from typing import Final

from nvrx_core.parsing import count_in
from nvrx_core.process.children import end_child, start_child
from nvrx_core.process.lifeline import open_pidfd
from nvrx_launcher.loop import EventLoop

__all__ = ["CheckpointIteration"]

log = logging.getLogger("nvrx_launcher")
READ_TIMEOUT: Final = 10.0
"""Seconds that the file system has to answer."""
LONGEST: Final = 64
"""Bytes that are read; a number of iterations is shorter."""
KILL_TIMEOUT: Final = 1.0


class CheckpointIteration:
    """Reads the file of a job each time that a node has stopped.

    Args:
        loop: the event loop that watches the program that reads it.
        path: the file; None: there is none, and nothing is read.
        timeout: seconds that a reading may take.

    Attributes:
        iteration: what the last reading has found; -1 for no iteration.
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, loop: EventLoop, path: str | None, timeout: float = READ_TIMEOUT) -> None:
        self._loop, self._path, self._timeout = loop, path, timeout
        self.iteration, self.deadline = -1, math.inf
        self._program: subprocess.Popen[bytes] | None = None
        self._killed = dict[int, subprocess.Popen[bytes]]()  # those that have not ended yet, by pidfd
        self._output, self._logged = b"", ""

    @property
    def is_reading(self) -> bool:
        """Whether a reading is under way."""
        return self._program is not None

    def begin(self) -> bool:
        """Begin to read, unless a reading is under way; return whether the result is still to come."""
        if self._path is None or self.is_reading:
            return self.is_reading
        self.iteration, self._output = -1, b""
        command = ["head", "-c", str(LONGEST), "--", self._path]
        try:
            program = start_child(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:
            self._unknown(f"head cannot be started: {error.strerror}")
            return False
        self._program, self.deadline = program, time.monotonic() + self._timeout
        assert program.stdout is not None
        os.set_blocking(program.stdout.fileno(), False)
        self._loop.watch(program.stdout.fileno(), self._read)
        return True

    def tick(self, *, now: float) -> None:
        """Handle that time has passed: give up a reading that takes too long."""
        if now >= self.deadline:
            self._give_up()
            self._unknown(f"it cannot be read within {self._timeout:g} s")

    def close(self) -> None:
        """End a reading."""
        if self.is_reading:
            self._give_up()
        for ended, program in list(self._killed.items()):
            self._end(ended, program, KILL_TIMEOUT)

    def _read(self) -> None:
        assert self._program is not None
        assert self._program.stdout is not None
        data = os.read(self._program.stdout.fileno(), LONGEST)
        if data:
            self._output += data
            return
        program = self._detach()
        with suppress(subprocess.TimeoutExpired):
            program.wait(KILL_TIMEOUT)
        code = end_child(program, 0.0)
        text = self._output.decode(errors="replace").strip()
        if code:
            self._unknown(text[:200])
        elif (found := count_in(text)) >= 0:
            self.iteration, self._logged = found, ""
        else:
            self._unknown(f"{text!r} is no number of iterations")

    def _unknown(self, reason: str) -> None:
        if reason != self._logged:
            log.warning("the iteration of the last checkpoint is unknown, so that no cycle counts: %s", reason)
        self._logged = reason

    def _give_up(self) -> None:
        """Kill the program, and do not wait for it: in a call that does not return it cannot be killed."""
        program = self._detach()
        program.kill()
        if program.returncode is not None:  # it had ended, and `kill` has reaped it
            return
        ended = open_pidfd(program.pid)
        self._killed[ended] = program
        self._loop.watch(ended, lambda: self._end(ended, program, 0.0))

    def _end(self, ended: int, program: subprocess.Popen[bytes], within: float) -> None:
        del self._killed[ended]
        self._loop.forget(ended)
        os.close(ended)
        end_child(program, within)

    def _detach(self) -> subprocess.Popen[bytes]:
        """Return the program, whose output is of no interest any more."""
        assert self._program is not None
        program, self._program, self.deadline = self._program, None, math.inf
        assert program.stdout is not None
        self._loop.forget(program.stdout.fileno())
        program.stdout.close()
        return program
