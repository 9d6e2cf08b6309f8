"""The progress page: shared memory that a rank writes and its monitor process reads.

A page is a row of 64-bit words, each written by one process only, so that no lock is needed: an aligned word is never
torn. Times are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host share. Behind the words lies one bit a
rank: the members lost so far. The page outlives every monitor, so that a replacement starts from what its predecessor
knew.

A reader may see half of a change. So a new stage comes after its sign of life: a rank seen in between has just moved,
and is blamed for nothing.
"""

from __future__ import annotations

import enum
import mmap
import time
from collections.abc import Iterable
from typing import Final

from nvrx_core.progress.stage import Stage

__all__ = ["Page", "ProgressField", "Stage"]

WORDS: Final = 32


class ProgressField(enum.IntEnum):
    """The words of a page, by their place."""

    VERSION = 0
    ITERATION = 1
    RANK = 2
    WORLD_SIZE = 3
    STAGE = 4
    AUTO_HEARTBEAT = 5  # ns when the main thread last has said what it is about
    PING = 6  # ns of the last manual heartbeat, 0: none in this iteration
    STEP_AT = 7  # ns when the step counter last grew, 0: not used in this iteration
    STEP = 8  # the step counter plus one, 0: not used in this iteration
    UNPROTECTED = 9  # depth of disable_hang_protection
    MEETINGS = 10  # process groups and stores begun in this iteration: calls in which ranks wait for each other
    COLLECTIVES = 11  # collectives of the default group begun in this iteration
    NOTICED = 12  # iteration plus one whose fault the monitor thread has seen
    INTERRUPTING = 13  # iteration plus one whose function is being interrupted
    STORE_LOST = 14  # ns when the store was lost, 0: it was not
    MONITOR_BEAT = 15  # ns of the monitor process's last answer from the store
    MONITOR_PID = 16
    CLAIMED = 30  # generation plus one that the rank has claimed last, or is about to; 0: none
    GENERATION = 31  # generation plus one in which the ranks have met, 0: they have not yet
    MEETING = 17  # how many meetings this rank is inside of now
    STALLED = 18  # iteration plus one in which the monitor process has reported a soft timeout
    WATCHDOG_HEARTBEAT = 19  # ns when the watchdog thread last ran, 0: it is not there
    ATOMIC = 20  # how many atomic sections were open when the watchdog thread last ran
    ROUND_OVER = 21  # iteration plus one whose event the monitor process has seen, while the rank's threads do not run
    MEETING_AT = 23  # ns when the last meeting began
    EXITED = 24  # iteration plus one that this rank has completed by SystemExit with code 0
    HOSTS_STORE = 25  # 1: this rank's process hosts the control store
    ANSWERED = 22  # ns before which the main thread had not given its last answer to the watchdog


class Page:
    """One rank's progress page, shared with the processes forked after it was made.

    Args:
        world_size: how many members the job has, for the bits of the lost ones.
    """

    VERSION: Final = 1

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._view(mmap.mmap(-1, WORDS * 8 + (world_size + 7) // 8))
        self.words[ProgressField.VERSION] = self.VERSION

    def __getitem__(self, word: ProgressField) -> int:
        return self.words[word]

    def __setitem__(self, word: ProgressField, value: int) -> None:
        self.words[word] = value

    def enter(self, stage: Stage) -> None:
        """Note that the main thread is now about `stage`; that is progress too."""
        self.words[ProgressField.AUTO_HEARTBEAT] = time.monotonic_ns()
        self.words[ProgressField.STAGE] = stage

    def begin_round(self, iteration: int, rank: int, world_size: int) -> None:
        """Note a new iteration; manual heartbeats start anew with it."""
        for word in (
            ProgressField.PING,
            ProgressField.STEP_AT,
            ProgressField.STEP,
            ProgressField.MEETINGS,
            ProgressField.MEETING,
            ProgressField.COLLECTIVES,
        ):
            self.words[word] = 0
        self.words[ProgressField.RANK] = rank
        self.words[ProgressField.WORLD_SIZE] = world_size
        self.words[ProgressField.ITERATION] = iteration

    def alive_at(self) -> float:
        """The oldest of the signs of life that are in use, monotonic seconds."""
        running = self.words[ProgressField.STAGE] == Stage.RUNNING
        used = [
            self.words[word] for word in (ProgressField.PING, ProgressField.STEP_AT) if running and self.words[word]
        ]
        automatic = max(self.words[ProgressField.AUTO_HEARTBEAT], self.words[ProgressField.ANSWERED])
        return min([automatic, *used]) / 1e9

    def lose(self, members: Iterable[int]) -> None:
        """Note members that are lost for good."""
        for member in members:
            if not 0 <= member < self.world_size:
                raise ValueError(f"no member {member} in a job of {self.world_size}")
            self._lost[member >> 3] |= 1 << (member & 7)

    def members(self) -> frozenset[int]:
        """The initial ranks not lost so far."""
        return frozenset(m for m in range(self.world_size) if not self._lost[m >> 3] >> (m & 7) & 1)

    def disown(self) -> None:
        """Go on with a private copy, in a child of `os.fork`: nobody else reads what is written from here on."""
        memory = mmap.mmap(-1, len(self._memory), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:] = self._memory[:]
        self.close()
        self._view(memory)

    def _view(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.words = memoryview(memory)[: WORDS * 8].cast("q")
        self._lost = memoryview(memory)[WORDS * 8 :]

    def close(self) -> None:
        """Give the memory back; the page must not be used afterwards."""
        self.words.release()
        self._lost.release()
        self._memory.close()
