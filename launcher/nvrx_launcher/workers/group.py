"""The workers of one node: started together, watched through their descriptors, reaped individually."""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nvrx_core import failpoint
from nvrx_core.attribution.worker_report import BY_CODE, BY_SIGNAL, OUT_OF_MEMORY, PRINTED
from nvrx_core.fault.user_frames import origin_in
from nvrx_core.logs.rank_lines import last_traceback
from nvrx_core.process.children import name_processes, running_in_group
from nvrx_core.process.memory import MemoryKills
from nvrx_core.process.signals import signal_name
from nvrx_launcher.exit_codes import FAILED
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.node_actions import StartWorkers
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.environment import Placement, worker_environment
from nvrx_launcher.workers.output import Logs, Tees, WorkerOutput
from nvrx_launcher.workers.starting import Starter
from nvrx_launcher.workers.worker import Failure, Worker

__all__ = ["WorkerError", "WorkerExit", "WorkerGroup", "failure_report"]

_START_ERRORS: Final = (
    "ModuleNotFoundError:", "ImportError:", "SyntaxError:", "IndentationError:", "TabError:",
    "_Error: No module named",  # of `python -m`
)  # fmt: skip
_OURS: Final = ("nvrx_core", "nvrx_lightning", "nvrx_megatron")


@dataclass(frozen=True)
class WorkerError:
    """The exception that a worker has written to its error file.

    Attributes:
        text: its type and its message, "" for none.
        trace: its traceback.
    """

    text: str = ""
    trace: str = ""

    @classmethod
    def read(cls, path: Path) -> WorkerError:
        """Return the exception in an error file; without a text where there is none."""
        try:
            message: Any = json.loads(path.read_text())["message"]
            if isinstance(message, str):
                return cls(message)
            trace = message.get("extraInfo", {}).get("py_callstack")
            return cls(str(message["message"]), trace if isinstance(trace, str) else "")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # any text may be there
            return cls()

    @property
    def is_start_error(self) -> bool:
        """Whether it says that a script does not compile, or cannot import something."""
        return self.text.startswith(_START_ERRORS)


@dataclass(frozen=True)
class WorkerExit:
    """The exit of a worker.

    Attributes:
        local_rank: its number on this node.
        code: its exit code, negative for a signal; that of a failure also for an exit without one while monitored.
        report: how it has ended, for people; "" for a success.
        cannot_start: its script does not compile, or cannot import something.
        left: the processes in its process group that it has left, for people, where that is asked for.
    """

    local_rank: int
    code: int
    report: str
    cannot_start: bool = False
    left: str = ""


class WorkerGroup:
    """Starts and watches the workers of one node.

    Args:
        options: the job.
        loop: the event loop that watches their descriptors.
        logs: their output streams.
        starter: starts a worker.
        is_monitored: by local rank and pid, whether a worker was still monitored when it exited; then exit code 0 is
            not a success.
        spares_rest: what a worker that has exited with code 0 leaves in its process group is not killed here, and its
            output is shown.
        names_rest: say what a worker has left in its process group, where that is killed here.

    Attributes:
        placement: the ranks of this node in the cycle; None before the first one.
        failures: the failures of the current cycle by local rank, in the order of detection.
    """

    def __init__(
        self, options: LaunchOptions, loop: EventLoop, logs: Logs, *,
        starter: Starter, is_monitored: Callable[[int, int], bool], spares_rest: bool = False,
        names_rest: bool = False,
    ) -> None:  # fmt: skip
        self._options, self._loop, self._logs = options, loop, logs
        self._starter, self._is_monitored = starter, is_monitored
        self._spares_rest, self._names_rest = spares_rest, names_rest
        self._workers, self._ended = dict[int, Worker](), deque[Worker]()
        self._tees = Tees(loop, logs.rooms)
        self._stopping, self._memory_kills = False, MemoryKills(os.getpid())
        self.placement: Placement | None = None
        self.failures = dict[int, Failure]()

    def start(self, action: StartWorkers, inherited: Callable[[int], Mapping[str, str]]) -> Mapping[int, Worker]:
        """Start all workers of a cycle, and return them by local rank.

        Args:
            action: the decision with their ranks.
            inherited: by local rank, the environment that a worker inherits.

        Raises:
            OSError: when their program cannot be started.
        """
        self._tees.close_left()
        placement = self.placement = _placement(action)
        self._stopping = False
        self.failures.clear()
        environments = dict[int, dict[str, str]]()
        for local_rank in range(self._options.workers):
            environ = inherited(local_rank)
            ours = worker_environment(placement, local_rank, self._options, inherited=environ)
            environments[local_rank] = {**environ, **ours}
        self._logs.begin(placement.cycle, environments)
        for local_rank, variables in environments.items():
            self._start_one(local_rank, placement.first_rank + local_rank, variables)
        return dict(self._workers)

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return self._tees.deadline

    def tick(self, *, now: float) -> None:
        """Handle that time has passed."""
        self._tees.tick(now=now)

    def close(self) -> None:
        """Watch nothing any more."""
        self._tees.end()

    def output(self) -> Mapping[int, WorkerOutput]:
        """Return where the output of the workers of the present cycle can be read, by rank; none before the first."""
        if self.placement is None:
            return {}
        first = self.placement.first_rank
        return {first + local_rank: self._logs.output(local_rank) for local_rank in range(self._options.workers)}

    def running(self) -> list[int]:
        """Return the local ranks of the workers that have not exited."""
        return sorted(self._workers)

    def pids(self) -> list[int]:
        """Return the processes of the workers that have not exited."""
        return sorted(worker.pid for worker in self._workers.values())

    def send(self, signum: int) -> None:
        """Send a signal to the process groups of all workers."""
        self._stopping = True
        for worker in self._workers.values():
            worker.send(signum)

    def exits(self) -> Iterator[WorkerExit]:
        """Reap the workers that have ended, one after another: what is done about one may be to stop the others."""
        while self._ended:
            yield self._reap(self._ended.popleft())

    def _start_one(self, local_rank: int, rank: int, variables: Mapping[str, str]) -> None:
        output = self._logs.open(local_rank, rank, lambda tee: self._tees.attach(local_rank, tee))
        failpoint.hit("worker-spawn", self._cycle())
        worker = self._workers[local_rank] = self._starter.start(local_rank, rank, variables, output)
        output.close()
        self._loop.watch(worker.ended, lambda: self._note_end(worker))

    def _note_end(self, worker: Worker) -> None:
        self._loop.forget(worker.ended)
        self._ended.append(worker)

    def _reap(self, worker: Worker) -> WorkerExit:
        failpoint.hit("worker-reap", self._cycle())
        rest = running_in_group(worker.pid) if self._names_rest else []
        left = name_processes(rest) if rest else ""
        code = worker.reap(spares_rest=self._spares_rest)
        left = "" if self._spares_rest and not code else left
        del self._workers[worker.local_rank]
        self._tees.close(worker.local_rank, spares_rest=self._spares_rest and not code)
        if not self._workers and not self._tees.is_any_left:  # else they end with the next cycle, or with the launch
            self._logs.end()
        if not code and not self._stopping and self._is_monitored(worker.local_rank, worker.pid):
            who = f"rank {worker.rank} (local rank {worker.local_rank}, pid {worker.pid})"
            early = f"{who} has exited with code 0 while it was monitored, as by os._exit(0): that is no success"
            return WorkerExit(worker.local_rank, FAILED, early, left=left)
        if not code:
            return WorkerExit(worker.local_rank, code, "", left=left)
        failure = Failure(worker.local_rank, worker.rank, worker.pid, code, self._logs.error_file(worker.local_rank))
        error = WorkerError.read(failure.error_file)
        report = failure_report(
            failure, error, out_of_memory=self._memory_kills.rose(),
            is_shown=self._logs.shows_errors(worker.local_rank), output=self._logs.latest(worker.local_rank),
        )  # fmt: skip
        self._memory_kills.note()
        if not self._stopping:  # one that the launcher has stopped has not failed
            self.failures[worker.local_rank] = failure
        return WorkerExit(worker.local_rank, code, report, code == FAILED and error.is_start_error, left)

    def _cycle(self) -> int:
        return -1 if self.placement is None else self.placement.cycle


def _placement(action: StartWorkers) -> Placement:
    decision, place = action.decision, action.place
    return Placement(
        group_rank=action.group_rank, group_world_size=len(decision.members), first_rank=place.first_rank,
        world_size=decision.world_size, local_world_size=place.workers, master_addr=decision.master_addr,
        master_port=decision.master_port, agent_store=False, cycle=decision.cycle,
    )  # fmt: skip


def failure_report(
    failure: Failure, error: WorkerError, *, out_of_memory: bool = False, is_shown: bool = False, output: bytes = b""
) -> str:  # fmt: skip
    """Return how a worker ended, and its exception, with the user's line.

    Args:
        failure: the worker's failure.
        error: the exception in its error file.
        out_of_memory: the OOM killer has killed a process of this cgroup while the worker ran.
        is_shown: what the worker writes to stderr is shown, so that its traceback is not repeated.
        output: its latest output, in which its last traceback is looked for where its error file has none.
    """
    code = failure.code
    how = f"{BY_SIGNAL}{signal_name(-code)}" if code < 0 else f"{BY_CODE}{code}"
    if code == -signal.SIGKILL and out_of_memory:
        how += OUT_OF_MEMORY
    who = f"rank {failure.rank} (local rank {failure.local_rank}, pid {failure.pid})"
    text, trace, before = error.text, error.trace, ": "
    if not text:
        trace, before, is_shown = last_traceback(output), PRINTED, False
        text = trace.rstrip("\n").rpartition("\n")[2]  # it may be cut before its exception, at an empty line
    if not text:
        return f"{who} {how}"
    line, _, rest = text.partition("\n")
    line = line.removesuffix(": ")  # an exception without a text
    if line == "ModuleNotFoundError: No module named 'nvrx'":
        line += f"; nvrx is imported as {', '.join(_OURS)}"
    at = f", at {place}" if (place := origin_in(trace)) else ""
    return f"{who} {how}{before}{line}{at}\n{rest if is_shown else trace or rest}".rstrip()
