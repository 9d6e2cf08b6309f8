"""A rank whose requests to the control store are counted: each is one line of its record, as torch's client makes it.

The rank with the number 1 fails in each iteration but the last.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from nvrx_core import inprocess
from nvrx_core.inprocess import store
from tests.harness.process.workers.record import Record

__all__ = ["Counting"]

ASKED = ("append", "set", "get", "add", "compare_set", "check", "multi_get", "wait", "delete_key")
WAITS_FIRST = ("get", "multi_get")
"""Those that torch's client carries out as a wait and a request."""


class Counting(store.TCPStore):
    """The default store, which notes what is asked of it."""

    record: Record

    def clone(self) -> Counting:
        """One more connection, counted too."""
        with store.as_client():
            return type(self)()


def _noted(name: str) -> Any:
    def ask(self: Counting, keys: str | list[str], *arguments: object) -> Any:
        first = keys if isinstance(keys, str) else keys[0]
        writes = name != "compare_set" or arguments[0] != arguments[1]
        self.record("asked", how=name, key=first, requests=1 + (name in WAITS_FIRST), writes=writes)
        return getattr(super(Counting, self), name)(keys, *arguments)

    return ask


for each in ASKED:
    setattr(Counting, each, _noted(each))


def main() -> None:
    """Fail so often, then return."""
    Counting.record = Record.of_environment()
    restarts = int(os.environ["NVRX_TEST_RESTARTS"])

    @inprocess.Wrapper(no_progress_limit=None, store_factory=Counting, heartbeat_interval=timedelta(seconds=5))
    def function(call_wrapper: inprocess.CallWrapper | None = None) -> None:
        assert call_wrapper is not None
        dist.init_process_group("gloo")
        dist.barrier()
        if call_wrapper.iteration < restarts and os.environ["RANK"] == "1":
            raise RuntimeError("as planned")
        dist.barrier()

    function()


if __name__ == "__main__":
    main()
