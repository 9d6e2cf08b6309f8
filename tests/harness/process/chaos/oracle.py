"""What must hold of a job once nothing disturbs it any more.

It goes on, or has ended, in the time that `bounds.py` states. Each launcher that was not killed has a documented exit
code, and one line that says why. Nothing is left of any of them.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

from . import bounds
from .job import ChaosJob, Launched
from .processes import stands_at

__all__ = ["ChaosFailure", "Watch", "await_workers", "check"]

WHY = re.compile(r"the (?:job|launcher) ends with code (?P<code>\d+): .|the launcher ends: .|ft_launcher: error: .")
TRACE = re.compile(r"Traceback \(most recent call last\):\r?\n(?:(?:\[\w+\]:)?  .*\n)+")
"""Workers may have their own."""
NOISE = re.compile(r"^(?!\[default\d+\]:).*(\[[WEF]\d{4} .*\.cpp:\d+\].*)", re.MULTILINE)
"""A program that prints this waits for the reader of the console, and a store must not. Those of workers are shown."""
CODES = {0, 1, 75}
"""Of a launcher that was sent no signal: docs/reference/exit-codes.md."""
STEPS = 5
"""Each worker must take so many."""
TAIL, FRAMES = 25, 5
PRINTED = "." * 100
"""In each line that a worker prints."""


class ChaosFailure(AssertionError):
    """What does not hold, and all that is known of the job."""

    def __init__(self, problem: str, job: ChaosJob) -> None:
        super().__init__("\n".join([problem, *_report(job)]))
        self.problem = problem


def await_workers(job: ChaosJob) -> None:
    """Wait until all workers of the first cycle run.

    Raises:
        ChaosFailure: when they do not.
    """

    def all_run() -> bool:
        found = _at_work(job)
        return bool(found) and len(found) == found[0]["world"] and all(each["step"] for each in found)

    within = bounds.START[job.shape.worker] + bounds.JOIN
    _await(job, lambda: all_run() or len(job.running) < len(job.launched), within, "the workers do not start")
    if not all_run():
        raise ChaosFailure("a launcher ends before its workers run", job)


def check(job: ChaosJob, *, must_go_on: bool) -> str:
    """Wait until a job that nothing disturbs any more goes on, let it end, and check how; return how it ended.

    Args:
        job: the job.
        must_go_on: nothing was done to it that may end it.

    Raises:
        ChaosFailure: when something does not hold.
    """
    goes_on = _settled(job)
    if must_go_on and not goes_on:
        raise ChaosFailure("the job has ended, and nothing was done to it that may end it", job)
    at_work = {each["pid"] for each in _at_work(job)} if goes_on else set()
    nodes = {each.node for each in job.processes() if each.pid in at_work}
    job.gate.touch()
    _await(job, lambda: not job.running, bounds.ended_within(job.shape), "the workers may end, and launchers run on")
    for launched in job.launched:
        launched.console.read_all()
        codes = {0} if goes_on and launched.node in nodes and launched is _last_of(job, launched.node) else CODES
        if problem := _wrong_end(launched, codes):
            raise ChaosFailure(problem, job)
    _await(job, lambda: not job.processes(), bounds.LEFT, "processes are left")
    if left := [*_left(job)]:
        raise ChaosFailure(f"left behind: {left}", job)
    return ("went on" if goes_on else "ended") + f", codes {[each.code for each in job.launched]}"


def _last_of(job: ChaosJob, node: int) -> Launched:
    return [each for each in job.launched if each.node == node][-1]


class Watch:
    """Watches a job while something is done to it.

    What lasts does not hold up the nodes that it does not strike: in the same time they go on without the others, or
    end. An exception are ranks that wait for one that is stopped, and that nobody watches.
    """

    def __init__(self, job: ChaosJob) -> None:
        self._job, self._changed_at, self._is_settled = job, job.changed_at, False
        self._steps = dict[int, int]()

    def until(self, at: float) -> None:
        """Let time pass until so many seconds after the start, or until the end of the job.

        Raises:
            ChaosFailure: when the job neither goes on nor ends.
        """
        job = self._job
        while job.running and job.now() < at:
            job.turn(min(0.5, at - job.now()))
            if job.changed_at != self._changed_at:
                self._changed_at, self._is_settled = job.changed_at, False
                self._steps.clear()
            self._is_settled = self._is_settled or self._settles()
            within = bounds.settled_within(job.shape)
            if not self._is_settled and time.monotonic() > job.changed_at + within:
                raise ChaosFailure(f"those that are not struck neither go on nor have ended, {within:g} s later", job)

    def _settles(self) -> bool:
        job = self._job
        if not (job.shape.monitored or job.shape.worker == "wrapped"):
            return True
        if all(each.node in job.struck for each in job.running):
            return True
        if not job.shape.teed and not all(each.console.is_read for each in job.running):
            return True  # workers wait for the console themselves, those that start unwatched
        return _advance(_at_work(job), self._steps) or _advance(_at_work(job, without=job.struck), self._steps)


def _settled(job: ChaosJob) -> bool:
    """Wait until the job goes on, which is true, or has ended."""
    before = dict[int, int]()
    within = bounds.settled_within(job.shape)
    truth = lambda: not job.running or _advance(_at_work(job), before)  # noqa: E731
    _await(job, truth, within, "the job neither goes on nor has ended")
    return bool(job.running)


def _advance(at_work: list[dict[str, Any]], before: dict[int, int]) -> bool:
    """Return whether all of them have taken steps since they were first seen."""
    for each in at_work:
        before.setdefault(each["pid"], each["step"])
    return bool(at_work) and all(each["step"] >= before[each["pid"]] + STEPS for each in at_work)


def _at_work(job: ChaosJob, without: Collection[int] = ()) -> list[dict[str, Any]]:
    """Return how far the workers are, if they are all those of one cycle; nothing if they are not.

    Args:
        job: the job.
        without: nodes of which nothing is known; then those of the other nodes need not be all.
    """
    living = {each.pid for each in job.processes() if each.kind == "worker" and each.node not in without}
    found = [each for each in job.steps().values() if each["pid"] in living]
    if len(found) < len(living) or len({(each["cycle"], each["world"]) for each in found}) != 1:
        return []
    is_whole = len({each["rank"] for each in found}) == found[0]["world"]
    return found if is_whole or without or job.shape.policy == "min-healthy" else []


def _await(job: ChaosJob, truth: Callable[[], bool], within: float, otherwise: str) -> None:
    end = time.monotonic() + within
    while not truth():
        if time.monotonic() >= end:
            raise ChaosFailure(f"{otherwise}, {within:g} s later", job)
        job.turn(0.2)


def _wrong_end(launched: Launched, codes: set[int]) -> str:
    """Return what is wrong with the end of a launcher."""
    code = launched.code
    if code == -signal.SIGKILL and signal.SIGKILL in launched.signals:
        return ""
    signalled = {128 + number for number in launched.signals} | {-number for number in launched.signals}
    if code not in (signalled | CODES if launched.signals else codes):
        return f"launcher {launched.process.pid} of node {launched.node} has ended with code {code}"
    return _wrong_words(launched)


def _wrong_words(launched: Launched) -> str:
    """Return what is wrong with what is on the console of a launcher."""
    code, said = launched.code, list(WHY.finditer(launched.console.text))
    if code is not None and code >= 0 and not launched.was_stalled:
        if len(said) != 1:
            return f"launcher {launched.process.pid} of node {launched.node} says {len(said)} times why it ends"
        if said[0]["code"] not in (None, str(code)):
            return f"launcher {launched.process.pid} says {said[0]['code']} and ends with code {code}"
    if noise := NOISE.search(launched.console.text):
        return f"torch's C++ log on the console of launcher {launched.process.pid}: {noise[1]}"
    if any("/nvrx_launcher/" in trace for trace in TRACE.findall(launched.console.text)):
        return f"a traceback of launcher {launched.process.pid} of node {launched.node}"
    return ""


def _left(job: ChaosJob) -> Iterator[str]:
    """Name what launchers have left on the disks of their nodes; nobody is there to tidy a node that was lost."""
    for node in range(job.shape.launchers):
        folder = job.disk(node, "run") / "r"
        if folder.exists() and node not in job.lost_nodes:
            yield from (str(path) for path in folder.iterdir())


def _report(job: ChaosJob) -> Iterator[str]:
    yield from job.done
    for launched in job.running:
        with suppress(ProcessLookupError):
            os.kill(launched.process.pid, signal.SIGUSR2)
    job.turn(0.5)
    for launched in job.launched:
        yield f"--- launcher {launched.process.pid} of node {launched.node}: code {launched.code}"
        lines = [line for line in launched.console.text.splitlines() if PRINTED not in line]
        yield from lines[-TAIL:]
        if launched.is_running:
            yield from _innermost(launched.stacks.read_text())
    yield "--- processes"
    for each in sorted(job.processes()):
        yield f"{each.pid} node {each.node} {each.kind} {each.state} {each.command[:100]}| {stands_at(each.pid)}"
    yield f"--- steps: {job.steps()}"


def _innermost(stacks: str) -> Iterator[str]:
    """Name where each thread stands, by its innermost frames."""
    for thread in stacks.strip().split("\n\n"):
        yield from thread.splitlines()[: FRAMES + 1]
