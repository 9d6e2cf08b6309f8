"""The workers of one node: started together, watched by their pidfds, reaped one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from nvrx_launcher.loop import EventLoop
from nvrx_launcher.node_policy import StartWorkers
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.command import worker_command
from nvrx_launcher.workers.environment import Placement, worker_environment
from nvrx_launcher.workers.failure_report import failure_report
from nvrx_launcher.workers.output import Logs, Tee
from nvrx_launcher.workers.worker import Worker

__all__ = ["WorkerGroup"]

log = logging.getLogger("nvrx_launcher")


class WorkerGroup:
    """Starts and watches them.

    Args:
        options: what they run.
        loop: where their descriptors are watched.
        logs: where they print.
        exited: called with the local rank, the exit code and a report of each worker that has ended.
    """

    def __init__(
        self, options: LaunchOptions, loop: EventLoop, logs: Logs, *, exited: Callable[[int, int, str], object]
    ) -> None:
        self._options, self._loop, self._logs, self._exited = options, loop, logs, exited
        self._workers = dict[int, Worker]()
        self._tees = dict[int, list[Tee]]()
        self._cycle, self._stopping = -1, False

    def start(
        self,
        action: StartWorkers,
        environ: Mapping[str, str],
        monitor: Callable[[int], Mapping[str, str]],
        python: str,
    ) -> None:
        """Start all workers of a cycle.

        Args:
            action: their place in the job.
            environ: what they inherit.
            monitor: by local rank, the variables by which a worker finds its monitor.
            python: the interpreter.

        Raises:
            OSError: when their program cannot be started.
        """
        placement = _placement(action)
        self._cycle, self._stopping = placement.cycle, False
        self._logs.begin(placement.cycle)
        for local_rank in range(self._options.workers):
            variables = {
                **environ, **monitor(local_rank), **self._variables(placement, local_rank, environ),
                "TORCHELASTIC_ERROR_FILE": str(self._logs.error_file(placement.cycle, local_rank)),
            }  # fmt: skip
            command = worker_command(self._options, local_rank, environ.get("PYTHON_EXEC", python))
            self._start_one((local_rank, placement.first_rank + local_rank), command, variables)

    def running(self) -> list[int]:
        """Return the local ranks of those that have not ended."""
        return sorted(self._workers)

    def send(self, signum: int) -> None:
        """Send a signal to all, and to what they have started."""
        self._stopping = True
        for worker in self._workers.values():
            worker.send(signum)

    def _start_one(self, ranks: tuple[int, int], command: list[str], variables: Mapping[str, str]) -> None:
        output = self._logs.open(self._cycle, *ranks, lambda tee: self._attach(ranks[0], tee))
        worker = Worker.start(ranks, command, variables, output)
        output.close()
        self._workers[ranks[0]] = worker
        self._loop.watch(worker.pidfd, lambda: self._reap(worker))

    def _variables(self, placement: Placement, local_rank: int, environ: Mapping[str, str]) -> dict[str, str]:
        options = self._options
        return worker_environment(
            placement, local_rank, role=options.role, run_id=options.run_id, max_restarts=options.max_restarts,
            inherited=environ,
        )  # fmt: skip

    def _attach(self, local_rank: int, tee: Tee) -> None:
        self._tees.setdefault(local_rank, []).append(tee)
        self._loop.watch(tee.reader, tee.read)

    def _reap(self, worker: Worker) -> None:
        self._loop.forget(worker.pidfd)
        code = worker.reap()
        del self._workers[worker.local_rank]
        for tee in self._tees.pop(worker.local_rank, ()):
            self._loop.forget(tee.reader)
            tee.close()
        report = failure_report(worker, code, self._logs.error_file(self._cycle, worker.local_rank)) if code else ""
        if report and not self._stopping:
            log.error("%s", report)
        self._exited(worker.local_rank, code, report.partition("\n")[0])


def _placement(action: StartWorkers) -> Placement:
    decision, place = action.decision, action.place
    return Placement(
        group_rank=action.group_rank, group_world_size=len(decision.members), first_rank=place.first_rank,
        world_size=decision.world_size, local_world_size=place.workers, master_addr=decision.master_addr,
        master_port=decision.master_port, agent_store=False, cycle=decision.cycle,
    )  # fmt: skip
