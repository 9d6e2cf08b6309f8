"""One rank: `training.py LAYER SETTINGS SCHEDULE`. LAYER is one of `plan.LAYERS`.

Under ft_launcher it uses a rank monitor, with sections and heartbeats; with the wrapper it restarts in its process
where it can, and leaves the rest to the launcher: it takes four ranks to go on.
"""

# ruff: noqa: E402
from __future__ import annotations

import json
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[1:3]]

from demo_parts.journal import Journal
from demo_parts.settings import Settings

SETTINGS, SCHEDULE = Settings.from_json(sys.argv[2]), json.loads(sys.argv[3])
JOURNAL = Journal(SETTINGS.records, initial_rank=int(os.environ["RANK"]))
JOURNAL.write("started", pid=os.getpid(), was_standby="torch" in sys.modules)  # before the import, which takes seconds

import torch
from demo_parts.text import Batches, load_text
from demo_parts.train import FromCheckpoints, train
from demo_parts.under_nvrx import warm_up

from launcher_parts.faults import Faults
from launcher_parts.plan import LAYERS, RANKS
from nvrx_core import inprocess
from nvrx_core.fault_tolerance import RankMonitorClient
from nvrx_core.inprocess.rank_assignment import ActiveWorldSizeDivisibleBy, ShiftRanks

__all__ = ["main"]

ITERATIONS = 1000
WARM_UP_STEPS = 2


class Call:
    """Tells rank monitor and wrapper of the steps, where there are any.

    Args:
        wrapper: the wrapped call, if there is one.
        client: of the rank monitor, if there is one.

    Attributes:
        iteration: how often this rank was restarted, by the launcher or in its process.
    """

    def __init__(self, wrapper: inprocess.CallWrapper | None, client: RankMonitorClient | None) -> None:
        self._wrapper, self._client = wrapper, client
        cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        self.iteration = ITERATIONS * cycle + (0 if wrapper is None else wrapper.iteration)

    def begin_step(self) -> None:
        """A step begins."""
        if self._client is not None:
            self._client.start_section("step")

    def rest(self) -> None:
        """Wait for a moment, outside of a step."""
        time.sleep(0.2)
        if self._client is not None:
            self._client.send_heartbeat()

    def progress(self, step: int) -> None:
        """A step is done."""
        if self._client is not None:
            self._client.end_section("step")
            self._client.send_heartbeat()
        if self._wrapper is not None:
            self._wrapper.progress(step)

    def atomic(self) -> AbstractContextManager[object]:
        """A context that no restart in the process interrupts."""
        return nullcontext() if self._wrapper is None else self._wrapper.atomic()


def main() -> None:
    """One rank, from its start to the end of the training."""
    torch.set_num_threads(1)
    schedule = {int(step): kind for step, kind in SCHEDULE.items()}
    warm_up()
    batches, faults = Batches(load_text(), seed=SETTINGS.seed), Faults(schedule, SETTINGS.records, JOURNAL)
    uses_monitor, is_wrapped = sys.argv[1] != LAYERS[2], sys.argv[1] == LAYERS[1]
    client = None
    if uses_monitor:
        client = RankMonitorClient()
        client.init_workload_monitoring(num_warmup_iters=WARM_UP_STEPS)

    def run(call_wrapper: inprocess.CallWrapper | None = None) -> None:
        call = Call(call_wrapper, client)
        train(
            call,
            settings=SETTINGS,
            batches=batches,
            journal=JOURNAL,
            injection=faults,  # type: ignore[arg-type]
            live=FromCheckpoints(report=call.progress),
        )

    if is_wrapped:
        four_or_none = inprocess.Compose(ActiveWorldSizeDivisibleBy(RANKS), ShiftRanks())
        wrapper = inprocess.Wrapper(rank_assignment=four_or_none, events_dir=SETTINGS.records)

        def wrapped(call_wrapper: inprocess.CallWrapper) -> None:
            run(call_wrapper)

        wrapper(wrapped)()
    else:
        run()
    JOURNAL.write("finished")
    if client is not None:
        client.shutdown_workload_monitoring()


if __name__ == "__main__":
    main()
