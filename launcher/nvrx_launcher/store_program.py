"""The program that hosts or queries the store of in-process restart: `python -m nvrx_launcher.store_program STORE JOB`.

STORE is the descriptor of a listening socket, on which it hosts the store, or the endpoint of one that is hosted
elsewhere. It answers questions, a line each: "<rank> <seconds>" asks whether the job goes on without a rank, in
process; "<rank> 1" says that a round was entered without it, "<rank> 0" that none was in time, or that no call is under
way. "forget" deletes what the calls of an earlier cycle have left. Each second it says "alive"; the host of the store
does so only while the store answers. It ends with its input, and ignores the signals that a scheduler sends to all
processes of a job: the workers need the store until they have ended.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any, Final

from nvrx_core.parsing import parse_endpoint
from nvrx_core.process.helper_thread import HelperThread
from nvrx_core.process.signals import ignore_sent_to_all
from nvrx_core.store.keys import LauncherKeys

__all__ = ["ALIVE", "goes_on_without", "main"]

ALIVE: Final = "alive"
SAYS_SO_EVERY: Final = 1.0

LOOKS_EVERY: Final = 0.05
CALLS: Final = 16
"""Calls of one process that are looked for."""
CONNECT_TIMEOUT: Final = timedelta(seconds=5)


def goes_on_without(store: Any, job: str, rank: int, within: float) -> bool:
    """Wait until a round of one of the job's calls was entered without a rank; not longer than a call is under way.

    A call that is over leaves the round that it has entered last.

    Args:
        store: the control store.
        job: the job's name.
        rank: the rank's RANK when it was started.
        within: seconds.
    """
    deadline, pause = time.monotonic() + within, threading.Event()
    while True:
        goes_on = any(store.check([keys.announce()]) for keys in _calls(job))
        if any(_is_lost(store, keys.entered(), rank) for keys in _calls(job)):
            return True
        if not goes_on or time.monotonic() >= deadline:
            return False
        pause.wait(LOOKS_EVERY)


def _is_lost(store: Any, entered: str, rank: int) -> bool:
    return store.check([entered]) and rank in json.loads(store.get(entered)).get("lost", ())


def _connect(endpoint: tuple[str, int]) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(*endpoint, is_master=False, wait_for_workers=False, timeout=CONNECT_TIMEOUT)


def _calls(job: str) -> list[LauncherKeys]:
    return [LauncherKeys(job, call) for call in range(CALLS)]


def _answer(endpoint: tuple[str, int], job: str, rank: int, within: float) -> None:
    try:
        found = goes_on_without(_connect(endpoint), job, rank, within)
    except (RuntimeError, OSError, ValueError):  # there is no store, or nobody of ours has written in it
        found = False
    _say(f"{rank} {int(found)}")


def _forget(endpoint: tuple[str, int], job: str) -> None:
    with suppress(RuntimeError):  # there is no store: no call is found in it
        store = _connect(endpoint)
        for keys in _calls(job):
            store.delete_key(keys.announce())
            store.delete_key(keys.entered())


def _say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())  # in one piece: there are several threads


def _give_signs_of_life(hosted: tuple[str, int] | None) -> None:
    """Give a sign of life each second; of a store that is hosted here, as long as it answers."""
    store, pause = None if hosted is None else _connect(hosted), threading.Event()
    with suppress(BrokenPipeError):  # the launcher is gone, and so will be this process
        while True:
            if store is not None:
                store.check([ALIVE])
            _say(ALIVE)
            pause.wait(SAYS_SO_EVERY)


def main() -> None:
    """Host the store where that is asked for, and answer until the input ends."""
    where, job = sys.argv[1:]
    ignore_sent_to_all()
    with ExitStack() as cleanup:
        from nvrx_core.store.cpp_log_level import FATAL, quiet_for_good

        quiet_for_good(FATAL)  # whoever logs waits for the reader of the launcher's console
        if where.isdigit():
            from nvrx_core.store.hosting import serve_on

            listener = socket.socket(fileno=int(where))
            host, port = listener.getsockname()[:2]
            cleanup.enter_context(serve_on(listener, host))
        else:
            import torch.distributed  # noqa: F401 - here, and not while a question waits

            host, port = parse_endpoint(where)
        endpoint = host, port
        hosted = endpoint if where.isdigit() else None
        HelperThread(functools.partial(_give_signs_of_life, hosted), name="nvrx-store-alive").start()
        for line in sys.stdin:
            if line == "forget\n":
                _forget(endpoint, job)
                continue
            rank, seconds = line.split()
            answer = functools.partial(_answer, endpoint, job, int(rank), float(seconds))
            HelperThread(answer, name="nvrx-store-query").start()


if __name__ == "__main__":
    main()
