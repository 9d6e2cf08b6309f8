"""The function runs in another thread than the main one, and ends at about the time at which it is interrupted."""

import faulthandler
import os
import random
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from tests.harness.process.workers.record import Record

RESTARTS = "NVRX_TEST_RESTARTS"
FAILS_AFTER, WITHIN = 0.002, 0.01


class Work:
    """One rank's function; in each iteration another rank fails, while the others come to an end as well."""

    def __init__(self, restarts: int) -> None:
        self.restarts, self.rank = restarts, int(os.environ["RANK"])
        self.random = random.Random(self.rank)
        self.torn = 0

    def __call__(self, call: CallWrapper) -> int:
        if call.iteration >= self.restarts:
            return call.iteration
        if self.rank == call.iteration % int(os.environ["WORLD_SIZE"]):
            spin(FAILS_AFTER)
            raise RuntimeError("the fault of this iteration")
        end = time.monotonic() + FAILS_AFTER + self.random.uniform(0, WITHIN)
        while time.monotonic() < end:
            with suppress(BaseException):  # it is interrupted again and again, up to its end
                self.work()
        return call.iteration

    def work(self) -> None:
        try:
            spin(0.0001)
        finally:
            self.clean_up()

    def clean_up(self) -> None:
        done = False
        try:
            spin(0.0001)
            done = True
        finally:
            self.torn += not done


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    record, work = Record.of_environment(), Work(int(os.environ[RESTARTS]))

    @inprocess.Wrapper(soft_timeout=timedelta(seconds=10), hard_timeout=timedelta(seconds=15), no_progress_limit=None)
    def train(call: CallWrapper) -> int:
        return work(call)

    thread = threading.Thread(target=lambda: record("done", result=train(), torn=work.torn))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
