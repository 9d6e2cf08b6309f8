"""Whether the function's thread runs, asked without running any bytecode of ours in it.

A pending call is run by the interpreter in the main thread, between two bytecodes of whatever runs there. What it runs
here is a function of the C library, which posts a semaphore: an interruption cannot land in it, and it raises nothing.

It reaches no other thread. Of a function that runs in one, the kernel tells whether it has used any time of a CPU.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Final

__all__ = ["CpuTime", "Heartbeat", "heartbeat_of_this_thread"]

_SEMAPHORE_BYTES: Final = 64  # more than a `sem_t` has
_held = ctypes.PyDLL(None)  # its calls keep the interpreter's lock
_post = ctypes.cast(_held.sem_post, ctypes.c_void_p)
_add = ctypes.pythonapi.Py_AddPendingCall
_add.argtypes, _add.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int


class _Semaphore:
    """One a process, for good: a pending call may outlive whoever asked for it."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        _held.sem_init(self.memory, 0, 0)
        self.asked = False


_answers = _Semaphore()


class Heartbeat:
    """Asks the main thread; one question at a time. For use in one thread."""

    def __init__(self) -> None:
        self._looked = time.monotonic_ns()
        _take_answers()

    def look(self) -> int:
        """Look for an answer since the last look, and ask again if there is one.

        Returns:
            a monotonic time, in nanoseconds, before which the last answer was not given; 0 when there is none.
        """
        before, self._looked = self._looked, time.monotonic_ns()
        answered = _take_answers()
        if not _answers.asked:  # a full queue says -1: then at the next look
            _answers.asked = _add(_post, ctypes.addressof(_answers.memory)) == 0
        return before if answered else 0


def _take_answers() -> bool:
    answered = False
    while _held.sem_trywait(_answers.memory) == 0:
        answered, _answers.asked = True, False
    return answered


class CpuTime:
    """Whether the thread that makes this uses a CPU; looked at from another one, which may outlive it."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._looked, self._used = time.monotonic_ns(), 0

    def look(self) -> int:
        """Look whether it has used any since the last look; returns what `Heartbeat.look` does."""
        before, self._looked = self._looked, time.monotonic_ns()
        used_before, self._used = self._used, self._read()
        return before if self._used > used_before else 0

    def _read(self) -> int:
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:  # the thread is gone
            return 0


def heartbeat_of_this_thread() -> Heartbeat | CpuTime:
    """What tells of the thread that calls this."""
    return Heartbeat() if threading.current_thread() is threading.main_thread() else CpuTime()
