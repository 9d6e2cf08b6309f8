"""In rank 1, a part of the wrapper fails between the entry of the call and its first iteration."""

import os
from datetime import timedelta

from nvrx_core import inprocess
from nvrx_core.inprocess.call import call
from tests.harness.process.workers.record import Record

PATIENCE = timedelta(seconds=50)


def fail(*arguments: object, **named: object) -> None:
    raise RuntimeError("injected in the wrapper")


def main() -> None:
    record = Record.of_environment()

    @inprocess.Wrapper(heartbeat_timeout=PATIENCE)
    def train() -> None:
        record("entered", world_size=int(os.environ["WORLD_SIZE"]))

    if os.environ["RANK"] == "1":
        call.PlugIns = fail  # type: ignore[assignment, misc]
    train()


if __name__ == "__main__":
    main()
