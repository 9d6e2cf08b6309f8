"""A process whose stacks a child of its takes; the child kills it in the end.

Run with where its main thread is, and how often its stacks are taken.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from nvrx_core.process import stacks as module
from nvrx_core.process.stacks import Stacks
from nvrx_core.process.waiting import readable

FREE = {"bytecode", "short calls", "sleep"}
"""Where the interpreter's lock is given up in time."""
PATIENCE = 20.0


def main(where: str, takes: int) -> None:
    stacks = Stacks()
    if where in FREE:  # the signal, should it be sent, ends the process; a busy machine is no reason to send it
        assert stacks.signum is not None
        signal.signal(stacks.signum, signal.SIG_DFL)
        vars(module)["THREAD_ANSWER_TIMEOUT"] = PATIENCE
    pid, begun = os.getpid(), os.eventfd(0)
    if os.fork() == 0:
        os.eventfd_read(begun)
        ask(stacks, os.pidfd_open(pid), takes)
    stacks.start()
    PLACES[where](begun)


def ask(stacks: Stacks, pidfd: int, takes: int) -> None:
    told, longest = 0, 0.0
    time.sleep(0.1)
    for _ in range(takes):
        if readable([pidfd], 0.0):
            break
        start = time.monotonic()
        text = stacks.take(pidfd)
        longest = max(longest, time.monotonic() - start)
        told += "in <module>" in text and "in stand" in text
    print(json.dumps({"told": told, "longest": longest}), flush=True)
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os._exit(0)


def stand_in_bytecode(begun: int) -> None:
    os.eventfd_write(begun, 1)
    while True:
        with suppress(LookupError):
            raise_from(5)
        namespace: dict[str, Callable[[], int]] = {}
        exec("def made():\n    return sum(x for x in range(3))", namespace)
        namespace["made"]()


def raise_from(depth: int) -> None:
    if not depth:
        raise LookupError
    try:
        raise_from(depth - 1)
    except LookupError as error:
        raise LookupError(depth) from error


def stand_in_short_calls(begun: int) -> None:
    os.eventfd_write(begun, 1)
    while True:
        os.stat(".")


def stand_asleep(begun: int) -> None:
    os.eventfd_write(begun, 1)
    while True:
        time.sleep(60)


def stand_in_an_expression(begun: int) -> None:
    os.eventfd_write(begun, 1)
    re.match(r"(a*)*b", "a" * 80)


PLACES = {
    "bytecode": stand_in_bytecode,
    "short calls": stand_in_short_calls,
    "sleep": stand_asleep,
    "regular expression": stand_in_an_expression,
}

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
