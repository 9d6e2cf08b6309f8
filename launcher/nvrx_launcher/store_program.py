"""The program that hosts or queries the store of in-process restart: `python -m nvrx_launcher.store_program STORE JOB`.

STORE is the descriptor of a listening socket, on which it hosts the store, or the endpoint of one that is hosted
elsewhere. It answers questions, a line each: "<rank> <seconds>" asks whether the job goes on without a rank, in
process; "<rank> 1" says that a round was entered without it, "<rank> 0" that none was in time, or that no call is under
way. One thread asks the store for all of them, which has the round to serve meanwhile. "forget" deletes what the calls
of an earlier cycle have left. Each second it says "alive"; the host of the store does so only while the store answers.
It ends with its input, and ignores the signals that a scheduler sends to all processes of a job: the workers need the
store until they have ended.
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
from queue import Empty, SimpleQueue
from typing import Any, Final

from nvrx_core.parsing import parse_endpoint
from nvrx_core.process.helper_thread import HelperThread
from nvrx_core.process.signals import ignore_sent_to_all
from nvrx_core.store.keys import LauncherKeys

__all__ = ["ALIVE", "Questions", "main"]

ALIVE: Final = "alive"
SAYS_SO_EVERY: Final = 1.0

LOOKS_EVERY: Final = 0.05
CALLS: Final = 16
"""Calls of one process that are looked for."""
CONNECT_TIMEOUT: Final = timedelta(seconds=5)


class Questions:
    """The open questions whether a round of one of the job's calls was entered without a rank.

    A call that is over leaves the round that it has entered last. As long as a call is under way, only this one and the
    next are looked at.

    Args:
        job: the job's name.
    """

    def __init__(self, job: str) -> None:
        self._calls, self._open = _calls(job), dict[int, float]()
        self._watched = range(CALLS)

    @property
    def are_open(self) -> bool:
        """Whether one waits for its answer."""
        return bool(self._open)

    def ask(self, rank: int, within: float, *, now: float) -> None:
        """Ask about a rank.

        Args:
            rank: its RANK when it was started.
            within: seconds after which the answer is no.
            now: monotonic seconds.
        """
        self._open[rank], self._watched = now + within, range(CALLS)

    def look(self, store: Any, *, now: float) -> list[tuple[int, bool]]:
        """Return the ranks that have an answer now, with it: no if time is over, or no call is under way."""
        running, lost = self._read(store)
        if not running and len(self._watched) < CALLS:  # what was under way is over
            self._watched = range(CALLS)
            running, lost = self._read(store)
        if running:
            self._watched = range(running[0], min(running[-1] + 2, CALLS))
        answers = [(rank, rank in lost) for rank, until in self._open.items() if rank in lost or now >= until]
        return self._answered(answers if running else [(rank, rank in lost) for rank in self._open])

    def give_up(self) -> list[tuple[int, bool]]:
        """Answer all with no."""
        return self._answered([(rank, False) for rank in self._open])

    def _answered(self, answers: list[tuple[int, bool]]) -> list[tuple[int, bool]]:
        for rank, _ in answers:
            del self._open[rank]
        return answers

    def _read(self, store: Any) -> tuple[list[int], set[int]]:
        """Return which of the watched calls are under way, and which ranks their last rounds have lost."""
        watched = [self._calls[call] for call in self._watched]
        running = [call for call in self._watched if store.check([self._calls[call].announce()])]
        entered = [keys.entered() for keys in watched if store.check([keys.entered()])]
        return running, {rank for key in entered for rank in json.loads(store.get(key)).get("lost", ())}


def _connect(endpoint: tuple[str, int]) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(*endpoint, is_master=False, wait_for_workers=False, timeout=CONNECT_TIMEOUT)


def _calls(job: str) -> list[LauncherKeys]:
    return [LauncherKeys(job, call) for call in range(CALLS)]


def _answer(endpoint: tuple[str, int], job: str, asked: SimpleQueue[tuple[int, float]]) -> None:
    """Answer what is asked, over a connection that lasts as long as there are questions."""
    questions, store = Questions(job), None
    while True:
        with suppress(Empty):
            rank, within = asked.get(timeout=LOOKS_EVERY if questions.are_open else None)
            while True:
                questions.ask(rank, within, now=time.monotonic())
                rank, within = asked.get_nowait()
        try:
            store = _connect(endpoint) if store is None else store
            answers = questions.look(store, now=time.monotonic())
        except (RuntimeError, OSError, ValueError):  # there is no store, or nobody of ours has written in it
            answers, store = questions.give_up(), None
        store = store if questions.are_open else None
        for rank, found in answers:
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
        asked = SimpleQueue[tuple[int, float]]()
        HelperThread(functools.partial(_answer, endpoint, job, asked), name="nvrx-store-query").start()
        for line in sys.stdin:
            if line == "forget\n":
                _forget(endpoint, job)
                continue
            rank, seconds = line.split()
            asked.put((int(rank), float(seconds)))


if __name__ == "__main__":
    main()
