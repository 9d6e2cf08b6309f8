"""Files that describe each cycle of a job, for programs beside it: `--ft-cycle-info-dir`.

The launcher whose workers have rank 0 writes them: at the begin and at the end of a cycle, each time as a whole. When
it is lost, the one of the next cycle ends the file in its place. The directory is on a shared file system that may not
answer, so a thread writes. The names of files and fields are those of nvidia-resiliency-ext (its `NVRxCycleInfo`).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from nvrx_core.errors import first_line
from nvrx_core.logs.chunks import cycle_file
from nvrx_core.parsing import count_in, parse_object
from nvrx_core.process.helper_thread import HelperThread
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind

__all__ = ["CycleInfo", "CycleRecord"]

log = logging.getLogger("nvrx_launcher")
CURRENT: Final = "NVRX_CURRENT_CYCLE_INFO"
END_TIMEOUT: Final = 5.0
"""Seconds that the file system has to answer when the launcher ends."""


@dataclass(frozen=True)
class CycleRecord:
    """What a file says of a cycle.

    Attributes:
        job_id: Slurm's number of the job, of its array, or of both as in 17_3, else the job's name.
        attempt_index: how often Slurm has started the job again.
        cycle_number: the cycle.
        cycle_start_time, cycle_end_time: in UTC, as in 2026-11-24T12:00:00Z; "" while it runs.
        cycle_log_file: its per-cycle log; "" for none.
        active_nodes, standby_nodes: hosts, in Slurm's notation.
        generation: how often the file was written, as a string: as JSON has a number of 64 bits in protobuf.
        active_ranks: the ranks with which it has begun, as in 0-15.
    """

    job_id: str
    attempt_index: int
    cycle_number: int
    cycle_start_time: str
    cycle_end_time: str = ""
    cycle_log_file: str = ""
    active_nodes: str = ""
    standby_nodes: str = ""
    generation: str = "1"
    active_ranks: str = ""

    def ended(self, time: str) -> CycleRecord:
        """Return what the file says when the cycle is over."""
        return replace(self, cycle_end_time=time, generation=str(int(self.generation) + 1))


class CycleInfo:
    """Writes the files of a job.

    Args:
        directory: where they are; None: there are none.
        run_id: the job's name, where it is not Slurm's.
        log_prefix: that of per-cycle logs; "" for none.
        environ: the launcher's environment.
        max_nodes: how many nodes the job may have.
    """

    def __init__(
        self,
        directory: str | None,
        run_id: str,
        log_prefix: str,
        environ: Mapping[str, str],
        *,
        max_nodes: int,
    ) -> None:
        self._folder, self._log_prefix = None if directory is None else Path(directory), log_prefix
        self._job = _job_id(environ, max_nodes) or run_id.replace("/", "_")
        self._attempt = max(0, count_in(environ.get("SLURM_RESTART_COUNT", "")))
        self._record: CycleRecord | None = None
        self._records, self._problem = SimpleQueue[CycleRecord | None](), ""
        self._thread = HelperThread(
            self._write_all, name="nvrx-cycle-info", failed=lambda error: log.error("%s", error)
        )

    def environment(self) -> dict[str, str]:
        """Return the variable that tells workers where the file of their cycle is."""
        return {} if self._folder is None else {CURRENT: str(self._path("current"))}

    def decided(self, decision: Decision, node: int) -> None:
        """Handle a decision for all nodes, by the launcher of a node."""
        if self._folder is None:
            return
        if decision.kind is DecisionKind.RUN:
            self._record = None
            if decision.members[0].node == node:
                self._begin(decision)
        elif decision.kind in (DecisionKind.STOP, DecisionKind.END):
            self.ended()

    def ended(self) -> None:
        """Handle the end of the cycle, or of this launcher."""
        if self._record is not None:
            self._records.put(self._record.ended(_now()))
            self._record = None

    def close(self) -> None:
        """Write what is left; a file system that does not answer is left alone."""
        if self._thread.ident is not None:
            self._records.put(None)
            self._thread.join(END_TIMEOUT)

    def _begin(self, decision: Decision) -> None:
        last = decision.world_size - 1
        self._record = CycleRecord(
            self._job, self._attempt, decision.cycle, _now(),
            cycle_log_file=cycle_file(self._log_prefix, decision.cycle) if self._log_prefix else "",
            active_nodes=decision.active_hosts, standby_nodes=decision.spare_hosts,
            active_ranks=f"0-{last}" if last else "0",
        )  # fmt: skip
        self._records.put(self._record)
        if self._thread.ident is None:
            self._thread.start()

    # In the thread

    def _write_all(self) -> None:
        while (record := self._records.get()) is not None:
            try:
                self._write(record)
                self._problem = ""
            except OSError as error:
                if self._problem != (problem := first_line(error)):
                    log.warning("the file of cycle %d cannot be written: %s", record.cycle_number, problem)
                self._problem = problem

    def _write(self, record: CycleRecord) -> None:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        if not record.cycle_end_time:
            self._end_former(record)
        self._replace(record)
        if record.cycle_end_time:  # the link may be to the next cycle, which another launcher has begun
            return
        current = self._path("current")
        new = current.with_name(f"{current.name}.tmp")
        new.unlink(missing_ok=True)
        new.symlink_to(self._path(record.cycle_number).name)
        os.replace(new, current)

    def _end_former(self, record: CycleRecord) -> None:
        """End the file of the cycle before, unless its launcher has: it may be lost."""
        with suppress(FileNotFoundError, ValueError, TypeError):
            found: dict[str, Any] = parse_object(self._path(record.cycle_number - 1).read_text())
            former = CycleRecord(**found)
            if not former.cycle_end_time:
                self._replace(former.ended(record.cycle_start_time))

    def _replace(self, record: CycleRecord) -> None:
        path = self._path(record.cycle_number)
        new = path.with_name(f"{path.name}.tmp")
        new.write_text(json.dumps(asdict(record), indent=2) + "\n")
        os.replace(new, path)

    def _path(self, cycle: int | str) -> Path:
        """Return the file of a cycle, or the link to the present one."""
        assert self._folder is not None
        which = cycle if cycle == "current" else f"{self._attempt}.{cycle}"
        return self._folder / f"cycle_info.{self._job}.{which}"


def _job_id(environ: Mapping[str, str], max_nodes: int) -> str:
    """Return Slurm's number of a job; "" without Slurm.

    The tasks of an array are one job if it has more nodes than a task, as spares in tasks of their own. Else each task
    is a job, and its number is that of the array and its own, as Slurm writes it.
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    nodes_of_task = count_in(environ.get("SLURM_NNODES") or environ.get("SLURM_JOB_NUM_NODES", ""))
    if array and task and max_nodes <= nodes_of_task:
        return f"{array}_{task}"
    return array or environ.get("SLURM_JOB_ID", "")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
