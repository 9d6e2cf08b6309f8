"""A rank that is slower than the others, to find tests that assume equally fast ranks.

`NVRX_TEST_DELAY_RANK=RANK:SECONDS` in the environment of pytest delays one initial rank of every job: its start, and
its first entries into the function. `RANK:SECONDS@POINT` delays it at another failpoint instead of the entry. No test
may fail because of it.
"""

from __future__ import annotations

import os
import time

from nvrx_core import failpoint

__all__ = ["DELAY", "delay_rank"]

DELAY = "NVRX_TEST_DELAY_RANK"
ITERATIONS = 4
"""Maximum number of delayed iterations, so that a job of a hundred restarts is not delayed a hundred times."""


def delay_rank() -> None:
    """Delay this process if it is the rank named by the environment."""
    text, _, point = os.environ.get(DELAY, "").partition("@")
    rank, _, seconds = text.partition(":")
    if rank and rank == os.environ.get("RANK"):
        time.sleep(float(seconds))
        delay_at(point or "entry-before", float(seconds))


def delay_at(point: str, seconds: float) -> None:
    """Sleep at a failpoint, before the fault that a test injects there."""
    install = failpoint.install

    def hook(name: str, iteration: int, then: failpoint.Hook | None = None) -> None:
        if name == point and iteration < ITERATIONS:
            time.sleep(seconds)
        if then is not None:
            then(name, iteration)

    def install_behind(then: failpoint.Hook) -> None:
        install(lambda name, iteration: hook(name, iteration, then))

    failpoint.install = install_behind
    install(hook)
