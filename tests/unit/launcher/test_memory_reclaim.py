"""A node waits for the memory of its GPUs before a restart, and never for ever."""

from __future__ import annotations

import math

import pytest
from nvrx_launcher.memory_reclaim import (
    MB,
    GpuMemory,
    MemoryAction,
    MemoryAwaited,
    MemoryFree,
    MemoryInUse,
    MemoryReclaim,
    MemoryUnknown,
    ReadMemory,
)

TOTAL = 80000 * MB


def gpus(*used: int) -> list[GpuMemory]:
    return [GpuMemory(f"GPU {number}", each * MB, TOTAL) for number, each in enumerate(used)]


class Node:
    """A node whose workers have had memory, in virtual time."""

    def __init__(self, *before: int, timeout: float = 50.0) -> None:
        self.now = 100.0
        self.reclaim = MemoryReclaim(timeout=timeout, tolerance=512 * MB, interval=2.0)
        assert self.begin(is_first=True) == (ReadMemory(),)
        self.measured(*before)

    def begin(self, *, is_first: bool = False) -> tuple[MemoryAction, ...]:
        return self.reclaim.begin(is_first=is_first, now=self.now)

    def measured(self, *used: int, problem: str = "") -> tuple[MemoryAction, ...]:
        return self.reclaim.measured(gpus(*used), problem, now=self.now)

    def wake(self) -> tuple[MemoryAction, ...]:
        self.now = self.reclaim.deadline
        return self.reclaim.tick(now=self.now)


def test_the_first_reading_keeps_no_node_waiting() -> None:
    node = Node(70000, 3)
    assert not node.reclaim.is_waiting
    assert node.reclaim.deadline == math.inf


def test_a_node_waits_until_each_gpu_is_below_the_tolerance() -> None:
    node = Node(3, 3)
    node.begin()
    expected = "GPU 0 3 of 80000 MB, GPU 1 40000 of 80000 MB (512 MB may be)"
    assert node.measured(3, 40000) == (MemoryAwaited(expected),)
    assert node.reclaim.is_waiting
    assert node.wake() == (ReadMemory(),)
    assert node.now == 100.1
    assert node.measured(3, 512) == (
        MemoryFree("0.1 s after the workers' end: GPU 0 3 of 80000 MB, GPU 1 40000 MB, now 512 of 80000 MB"),
    )
    assert not node.reclaim.is_waiting


def test_readings_follow_each_other_sooner_at_first_and_at_the_interval_later() -> None:
    node, pauses = Node(3), list[float]()
    node.begin()
    for _ in range(7):
        before = node.now
        assert bool(node.measured(40000)) == (not pauses), "it is said once"
        assert node.wake() == (ReadMemory(),)
        pauses.append(round(node.now - before, 6))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_at_the_timeout_the_node_restarts_all_the_same() -> None:
    node = Node(3, timeout=0.15)
    node.begin()
    node.measured(40000)
    assert node.wake() == (ReadMemory(),)
    node.measured(30000)
    expected = "0.15 s after the workers' end: GPU 0 40000 MB, now 30000 of 80000 MB (512 MB may be)"
    assert node.wake() == (MemoryInUse(expected),)
    assert not node.reclaim.is_waiting


def test_a_reading_that_comes_after_the_timeout_ends_the_wait() -> None:
    node = Node(3)
    node.begin()
    node.now += 50.0
    assert isinstance(node.measured(40000)[0], MemoryInUse)
    assert node.measured(3) == (), "and nothing follows it"


def test_what_others_had_in_use_before_is_not_waited_for() -> None:
    """Where they free some of it later, as much less may be in use."""
    node = Node(20000)
    node.begin()
    node.measured(60000)
    node.wake()
    assert isinstance(node.measured(20400)[0], MemoryFree)
    node.begin()
    node.measured(5000)
    node.begin()
    node.measured(20000)
    assert node.reclaim.is_waiting


@pytest.mark.parametrize("problem", ["gpu-memory: nvidia-ml-py is not installed", ""])
def test_without_a_reading_the_node_restarts_at_once(problem: str) -> None:
    node = Node()
    node.begin()
    assert node.measured(problem=problem) == (MemoryUnknown(problem or "NVML finds none of them"),)
    assert not node.reclaim.is_waiting


def test_a_gpu_that_cannot_be_read_does_not_hold_up_the_others() -> None:
    node = Node(3)
    node.begin()
    assert isinstance(node.measured(3, problem="gpu-memory GPU 1: GPU is lost")[0], MemoryFree)


def test_a_driver_that_does_not_answer_is_bounded() -> None:
    node = Node(3)
    node.begin()
    assert node.wake() == (MemoryUnknown("the driver has not answered within 50 s"),)
    assert node.now == 150.0


def test_memory_that_was_not_read_at_first_may_not_be_that_of_others() -> None:
    node = Node()
    node.begin()
    assert isinstance(node.measured(40000)[0], MemoryAwaited)


def test_a_wait_that_has_begun_goes_on() -> None:
    node = Node(3)
    node.begin()
    node.measured(40000)
    node.now += 10.0
    assert node.begin() == ()
    assert node.reclaim.deadline == 100.1
    assert node.reclaim.tick(now=100.05) == ()
