"""The function runs in a thread of its own, for longer than the soft timeout, while the main thread waits for it."""

import threading
import time
from datetime import timedelta
from typing import Any

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from tests.harness.process.workers.record import Record

SHORT = {"soft_timeout": 1.1, "hard_timeout": 2.0, "heartbeat_timeout": 1.5, "barrier_timeout": 3.0}
LASTS = 3.0


def main() -> None:
    record = Record.of_environment()
    settings: dict[str, Any] = {name: timedelta(seconds=seconds) for name, seconds in SHORT.items()}

    @inprocess.Wrapper(**settings, no_progress_limit=3)
    def train(call: CallWrapper) -> int:
        end = time.monotonic() + LASTS
        while time.monotonic() < end:
            time.sleep(0.01)
        return call.iteration

    thread = threading.Thread(target=lambda: record("done", result=train()))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
