"""Ranks that leave a job which cannot go on without them; `NVRX_TEST_CASE` has the case as JSON.

how: how a rank leaves. leaving: the ranks that do. needs: what gives up when they are gone, "initialize" or
"assignment". where: where the second of them is while the first one leaves.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from nvrx_core import failpoint, inprocess
from nvrx_core.inprocess.initialize import Initialize, RetryController
from nvrx_core.inprocess.rank_assignment import ActivateAllRanks, FilterCountGroupedByKey, ShiftRanks
from tests.harness.process.workers.record import Record

ME, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CASE = json.loads(os.environ["NVRX_TEST_CASE"])
LEAVING: list[int] = CASE["leaving"]
SECOND = ME in LEAVING[1:]
WHERE: str = CASE.get("where", "")
record = Record.of_environment()


class OwnEnd(BaseException):
    """How a library ends its process."""


def exit_3() -> None:
    sys.exit(3)


def exit_with_a_text() -> None:
    sys.exit("it is over")


def exit_without_python() -> None:
    os._exit(5)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def term() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def handled_term() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    term()


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


def own_end() -> None:
    raise OwnEnd("injected")


WAYS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (exit_3, exit_with_a_text, exit_without_python, kill, term, handled_term, ctrl_c, own_end)
}


def at_failpoint(name: str, iteration: int) -> None:
    if name == "barrier-before" and iteration == 0:
        record("announced")
    if SECOND and name == WHERE and iteration == 0:
        record.await_others(1, "announced")


class Waits(Initialize):
    """Lets the second of those who leave begin late."""

    def __call__(self, state: Any) -> Any:
        if SECOND and WHERE == "initialize" and state.iteration == 0:
            record.await_others(1, "announced")
        return state


def wrapper() -> inprocess.Wrapper:
    if CASE["needs"] == "initialize":
        return inprocess.Wrapper(initialize=inprocess.Compose(RetryController(min_world_size=WORLD), Waits()))
    whole = FilterCountGroupedByKey(lambda state: "one", lambda count: count == WORLD)
    return inprocess.Wrapper(
        initialize=Waits(), rank_assignment=inprocess.Compose(ActivateAllRanks(), ShiftRanks(), whole)
    )


def work(call: inprocess.CallWrapper) -> None:
    record("enter", iteration=call.iteration)
    if ME not in LEAVING:
        time.sleep(60)
    if not SECOND:
        if WHERE in ("", "function", "finally"):
            record.await_others(WORLD - 1, "enter")
        if WHERE == "finally":
            record.await_others(1, "leaves")
        WAYS[CASE["how"]]()
    if WHERE == "function":
        time.sleep(60)  # the other rank is faster
    try:
        WAYS[CASE["how"]]()
    finally:
        if WHERE == "finally":
            record("leaves")
            time.sleep(60)


if __name__ == "__main__":
    failpoint.install(at_failpoint)
    wrapper()(work)()
