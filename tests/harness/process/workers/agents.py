"""A rank under torchrun: it is killed once in its first life, as `NVRX_TEST_KILL` says when; then it restarts in place.

`entry`: on the way in, before the ranks have met; `function`: in the function.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from nvrx_core import failpoint, inprocess
from tests.harness.process.workers.record import Record

me = int(os.environ["RANK"])
killed = Path(os.environ["NVRX_TEST_RECORDS"]).parent / "killed"


def kill(*_: object) -> None:
    """Be killed, unless that has happened to a former incarnation."""
    if me == 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    record, when = Record.of_environment(), os.environ["NVRX_TEST_KILL"]
    record("life", rank=me, restarts=os.environ["TORCHELASTIC_RESTART_COUNT"])
    if when == "entry":
        failpoint.install(lambda name, iteration: kill() if name == "store-connect" else None)

    @inprocess.Wrapper()
    def train(call: inprocess.CallWrapper) -> int:
        record("enter", iteration=call.iteration)
        shared = call.iteration_store()
        shared.set(f"here/{os.environ['RANK']}", "")
        shared.wait([f"here/{other}" for other in range(int(os.environ["WORLD_SIZE"]))])
        kill()
        if os.environ["WORLD_SIZE"] == "1" or (me == 0 and call.iteration == 0):
            time.sleep(60)  # until the agent ends this rank, or the exception of its peer does
        if call.iteration == 0:
            raise ValueError("injected")
        return call.iteration

    record("done", result=train())


if __name__ == "__main__":
    main()
