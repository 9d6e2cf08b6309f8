"""A rank that is set up wrongly: it records how the wrapper refuses, and what is left of the attempt."""

from __future__ import annotations

import os
import time
from typing import Any

from torch import distributed as dist
from torch.distributed import HashStore

from tests.harness.process.workers.record import HELD, Record, settle, usage, usage_after


def main() -> None:
    record = Record.of_environment()
    mistake = os.environ["NVRX_TEST_MISTAKE"]
    if mistake == "group":
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    settle()
    before, started = usage(), time.monotonic()
    try:
        attempt(mistake, record)
    except BaseException as error:  # boundary: what the wrapper refuses with is what is recorded
        record(
            "refused",
            kinds=[kind.__name__ for kind in type(error).mro()],
            text=str(error),
            seconds=time.monotonic() - started,
        )
        after = usage_after(before)
        record("held", **{name: after[name] - before[name] for name in HELD})


def attempt(mistake: str, record: Record) -> None:
    from nvrx_core import inprocess

    class Plain(HashStore):
        pass

    settings: dict[str, Any] = {"store_factory": Plain} if mistake == "factory" else {}

    @inprocess.Wrapper(**settings)
    def train() -> None:
        record("enter")

    train()


if __name__ == "__main__":
    main()
