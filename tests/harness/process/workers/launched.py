"""A rank whose iterations end when the test says so, by a key in the control store.

Initial rank 1 raises in iterations 0 and 2, initial rank 0 is killed in iteration 1, the others return from the last.
Each leaves keys of its own in every iteration.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta

from nvrx_core import inprocess
from nvrx_core.inprocess import Compose
from nvrx_core.inprocess.initialize import RetryController

LONG = timedelta(seconds=60)
LEAST, LAST = 2, 3


def main() -> None:
    """Be such a rank."""
    me = int(os.environ["RANK"])

    @inprocess.Wrapper(initialize=Compose(RetryController(min_world_size=LEAST), RetryController(max_iterations=5)))
    def function(call: inprocess.CallWrapper) -> None:
        store = call.iteration_store()
        store.set(f"mine/{me}", "x" * 100)
        store.add("ours", 1)
        call.base_store.wait([f"end/{call.iteration}"], LONG)
        if me == 1 and call.iteration in (0, 2):
            raise RuntimeError("as planned")
        if (me, call.iteration) == (0, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if call.iteration < LAST:
            call.base_store.wait(["never"], LONG)

    function()


if __name__ == "__main__":
    main()
