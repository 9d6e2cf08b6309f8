"""The progress page: shared memory that a rank writes and its monitor process reads.

A write is one store to memory: no lock, no system call. `fields` has the layout. The page outlives every monitor
process, so that a replacement goes on from what its predecessor knew. Processes that are forked inherit the mapping;
any other one on the host attaches to a page that was made by `Page.create`, by its descriptor.

A reader may see half of a change. So a new stage is written after its sign of life: a torn read can only make the rank
look alive.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Iterable
from typing import Final, Self

from nvrx_core.progress.fields import MAX_SECTIONS, NAME_BYTES, WORDS, ProgressField, SectionField, slot_of
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["Page", "PageError", "ProgressField", "SectionField", "Stage"]

_OF_AN_ITERATION: Final = (
    ProgressField.PING,
    ProgressField.PING_SUSPENDED,
    ProgressField.STEP_AT,
    ProgressField.STEP,
    ProgressField.RENDEZVOUS_COUNT,
    ProgressField.RENDEZVOUS_DEPTH,
    ProgressField.COLLECTIVES,
)
_OF_A_CALL: Final = range(ProgressField.CLAIMED, ProgressField.STORE_LOST + 1)
_OF_A_RANK: Final = (
    ProgressField.SECTION_AT, ProgressField.EVIDENCE_THREAD,
    *range(ProgressField.HEARTBEAT_AT, ProgressField.STACK_SIGNAL + 1),
)  # fmt: skip
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class PageError(ValueError):
    """A file that is no progress page, or one of another version."""


class Page:
    """One rank's progress page, shared with the processes that are forked after it was made.

    Args:
        world_size: how many members the job has.
        fd: a file of the size of a page, all zeros, that becomes the page's own; -1 for memory without a file.

    Attributes:
        world_size: how many members the job has.
        words: the fields and sections; for writes that must be cheap.
    """

    VERSION: Final = int.from_bytes(b"nvrx") << 32 | 5
    world_size: int
    words: memoryview[int]

    def __init__(self, world_size: int, fd: int = -1) -> None:
        self._map(mmap.mmap(fd, _size(world_size)), world_size, fd)
        self.words[ProgressField.INITIAL_WORLD_SIZE] = world_size
        self.words[ProgressField.VERSION] = self.VERSION

    @classmethod
    def create(cls, world_size: int) -> Self:
        """Create a page to which any process with its descriptor can attach."""
        fd = os.memfd_create("nvrx-progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _size(world_size))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)  # reading a mapped file that was cut short is a SIGBUS
        return cls(world_size, fd)

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Map the page of another process.

        Args:
            fd: what `fileno` has returned there; stays the caller's.

        Raises:
            PageError: when the file is no page, is of another version, or is too short.
        """
        world_size = _check(fd)
        page = cls.__new__(cls)
        page._map(mmap.mmap(fd, os.fstat(fd).st_size), world_size, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0))
        return page

    def fileno(self) -> int:
        """Return the descriptor to attach to.

        Raises:
            ValueError: when the page was not made by `create` or `attach`.
        """
        if self._fd < 0:
            raise ValueError("this page has no file; use Page.create for one that others attach to")
        return self._fd

    def __getitem__(self, field: ProgressField) -> int:
        return self.words[field]

    def __setitem__(self, field: ProgressField, value: int) -> None:
        self.words[field] = value

    def enter(self, stage: Stage) -> None:
        """Record that the main thread enters `stage`, which counts as progress."""
        self.words[ProgressField.AUTO_HEARTBEAT] = time.monotonic_ns()
        self.words[ProgressField.STAGE] = stage

    def begin_call(self, world_size: int) -> None:
        """Record that a wrapped call begins, on the page of a rank that may have made calls before.

        Args:
            world_size: how many members the job has; at most as many as the page was made for.
        """
        for field in _OF_A_CALL:
            self.words[field] = 0
        self.words[ProgressField.INITIAL_WORLD_SIZE] = self.world_size = world_size
        size = (world_size + 7) // 8
        self._lost[:size] = bytes(size)

    def begin_round(self, iteration: int, rank: int, world_size: int) -> None:
        """Record a new iteration; manual heartbeats start anew, and no section is open."""
        for field in _OF_AN_ITERATION:
            self.words[field] = 0
        self.words[ProgressField.RANK] = rank
        self.words[ProgressField.WORLD_SIZE] = world_size
        self.words[ProgressField.ITERATION] = iteration

    def begin_rank(self) -> None:
        """Record that the calling process is to be monitored, without a sign of life so far."""
        for field in (ProgressField.ATTACHED_AT, ProgressField.SECTION_COUNT, *_OF_A_CALL, *_OF_A_RANK):
            self.words[field] = 0
        start, end = slot_of(0) * 8, slot_of(MAX_SECTIONS) * 8
        self._memory[start:end] = bytes(end - start)

    def reset(self) -> None:
        """Record that the rank starts again: its earlier signs of life do not count, and no section is open."""
        words = self.words
        for slot in self.sections().values():
            words[slot + SectionField.OPENED_AT] = words[slot + SectionField.COUNT] = 0
        words[ProgressField.ATTACHED_AT] = now = time.monotonic_ns()
        if words[ProgressField.SAMPLED_AT]:
            words[ProgressField.SAMPLED_AT] = now
        words[ProgressField.HEARTBEAT_AT] = words[ProgressField.HEARTBEATS] = words[ProgressField.SECTION_AT] = 0

    def alive_at(self) -> float:
        """Return the time of the oldest sign of life in use, monotonic seconds."""
        words = self.words
        asked = words[ProgressField.STAGE] == Stage.RUNNING and not words[ProgressField.PING_SUSPENDED]
        used = [words[field] for field in (ProgressField.PING, ProgressField.STEP_AT) if asked and words[field]]
        automatic = max(words[ProgressField.AUTO_HEARTBEAT], words[ProgressField.MAIN_THREAD_HEARTBEAT])
        return min([automatic, *used]) / 1e9

    def declare_section(self, name: str) -> int:
        """Reserve a slot for a section, in the rank's process.

        Args:
            name: at most `NAME_BYTES` bytes of UTF-8, none of them zero.

        Returns:
            The first word of its slot: `words[slot + SectionField.OPENED_AT]` and so on.

        Raises:
            ValueError: when there is no room for the name, or for one more section.
        """
        if (slot := self.sections().get(name)) is not None:
            return slot
        encoded, number = name.encode(), self.words[ProgressField.SECTION_COUNT]
        if not 0 < len(encoded) <= NAME_BYTES or b"\0" in encoded:
            raise ValueError(f"a section's name has 1 to {NAME_BYTES} bytes, none of them zero; got {name!r}")
        if number == MAX_SECTIONS:
            raise ValueError(f"no room for section {name!r}: a rank has at most {MAX_SECTIONS}")
        start = (slot_of(number) + SectionField.NAME) * 8
        self._memory[start : start + len(encoded)] = encoded
        self.words[ProgressField.SECTION_COUNT] = number + 1  # after the name: a reader looks at no slot beyond
        return slot_of(number)

    def sections(self) -> dict[str, int]:
        """Return the first word of each section's slot, by the section's name."""
        slots = map(slot_of, range(min(self.words[ProgressField.SECTION_COUNT], MAX_SECTIONS)))
        return {self._name(slot): slot for slot in slots}

    def lose(self, members: Iterable[InitialRank]) -> None:
        """Record members that are lost permanently."""
        for member in members:
            if not 0 <= member < self.world_size:
                raise ValueError(f"no member {member} in a job of {self.world_size}")
            self._lost[member >> 3] |= 1 << (member & 7)

    def members(self) -> frozenset[InitialRank]:
        """Return the initial ranks that are not lost so far."""
        return frozenset(InitialRank(m) for m in range(self.world_size) if not self._lost[m >> 3] >> (m & 7) & 1)

    def disown(self) -> None:
        """Continue with a private copy, in a child of `os.fork`: no other process reads it."""
        memory = mmap.mmap(-1, len(self._memory), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:] = self._memory[:]
        self.close()
        self._map(memory, self.world_size, -1)

    def close(self) -> None:
        """Release memory and file; the page must not be used afterwards."""
        if self._memory.closed:
            return
        self.words.release()
        self._lost.release()
        self._memory.close()
        if self._fd >= 0:
            os.close(self._fd)

    def _map(self, memory: mmap.mmap, world_size: int, fd: int) -> None:
        self._memory, self.world_size, self._fd = memory, world_size, fd
        self.words = memoryview(memory)[: WORDS * 8].cast("q")
        self._lost = memoryview(memory)[WORDS * 8 :]

    def _name(self, slot: int) -> str:
        start = (slot + SectionField.NAME) * 8
        return self._memory[start : start + NAME_BYTES].rstrip(b"\0").decode(errors="replace")


def _size(world_size: int) -> int:
    return WORDS * 8 + (world_size + 7) // 8


def _check(fd: int) -> int:
    """Return the world size of the page in a file.

    Raises:
        PageError: when there is none of this version.
    """
    size, header = os.fstat(fd).st_size, memoryview(os.pread(fd, 16, 0))
    if len(header) < 16:
        raise PageError(f"not a progress page: a file of {size} bytes")
    version, world_size = header.cast("q")
    if version >> 32 != Page.VERSION >> 32:
        raise PageError(f"not a progress page: it begins with {bytes(header[:8])!r}")
    if version != Page.VERSION:
        ours = Page.VERSION & 0xFFFFFFFF
        raise PageError(f"a progress page of version {version & 0xFFFFFFFF}; this nvrx reads version {ours}")
    if world_size < 1 or size < _size(world_size):
        raise PageError(f"a progress page of {size} bytes is too short for a job of {world_size} ranks")
    return world_size
