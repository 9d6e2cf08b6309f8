"""The processes of fits, forked from this one: it has imported Lightning and the user's module, and has no threads."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from nvrx_core.process.lifeline import ParentDeathSignal
from nvrx_core.process.waiting import readable
from nvrx_lightning import environment
from nvrx_lightning.verification.adaptation import RANKS
from nvrx_lightning.verification.errors import VerificationError
from nvrx_lightning.verification.rank import FitOrder, run_rank
from nvrx_lightning.verification.source import Source

__all__ = ["FINISHED", "prepare_to_fork", "run_fits"]

FINISHED = "finished"


@dataclass
class _Running:
    """A fit that runs: its ranks' pidfds and pids."""

    order: FitOrder
    ranks: dict[int, int]
    deadline: float


def prepare_to_fork() -> None:
    """Keep what is imported out of the collections of the ranks.

    Raises:
        VerificationError: if an import has started threads, which a fork would not copy.
    """
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise VerificationError(
            f"importing the module has started {threads - 1} threads, which its ranks would lack: start them in make()"
        )
    gc.collect()
    gc.freeze()


def run_fits(
    source: Source, orders: Iterable[FitOrder], *, at_once: int, limit: float
) -> Iterator[tuple[FitOrder, str]]:
    """Run fits, some at once, each in processes of its own; yield each that has ended.

    Args:
        source: the function under test.
        orders: the fits.
        at_once: the number of fits that run at once.
        limit: seconds for a fit.

    Yields:
        The fit, and how it has ended: `FINISHED`, or what went wrong.
    """
    waiting, running = list(reversed(list(orders))), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(source, waiting.pop(), limit))
            next_deadline = min(each.deadline for each in running)
            ended = set(readable([fd for each in running for fd in each.ranks], next_deadline - time.monotonic()))
            for each in list(running):
                how = _reap(each, ended & each.ranks.keys(), limit)
                if how:
                    running.remove(each)
                    yield each.order, how
    finally:
        for each in running:
            _end(each)


def _start(source: Source, order: FitOrder, limit: float) -> _Running:
    order.folder.mkdir(parents=True)
    port, running = environment.free_ports(), _Running(order, {}, time.monotonic() + limit)
    sys.stdout.flush()
    for rank in range(RANKS):
        death = ParentDeathSignal(os.getpid())
        if (pid := os.fork()) == 0:
            death.set()
            faulthandler.dump_traceback_later(max(1.0, limit - 2))
            _become_rank(source, order, rank, port)
        running.ranks[os.pidfd_open(pid)] = pid
    return running


def _become_rank(source: Source, order: FitOrder, rank: int, port: int) -> NoReturn:
    """Run the rank, and exit with its code."""
    code = 70
    try:
        output = os.open(order.output(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, target)
        environment.become_rank(rank, RANKS, port)
        run_rank(source, order, rank)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # boundary: the process ends here
        traceback.print_exc()
    finally:
        for child in multiprocessing.active_children():
            child.terminate()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(running: _Running, ended: set[int], limit: float) -> str:
    """Take leave of ranks that have ended; return how the fit has ended, "" while it runs."""
    for pidfd in ended:
        status = os.waitpid(running.ranks.pop(pidfd), 0)[1]
        os.close(pidfd)
        if status:
            _end(running)
            return f"a rank has ended with code {os.waitstatus_to_exitcode(status)}"
    if not running.ranks:
        return FINISHED
    if time.monotonic() < running.deadline:
        return ""
    _end(running)
    return f"it has not ended within {limit:.0f} s"


def _end(running: _Running) -> None:
    for pidfd, pid in running.ranks.items():
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pidfd)
    running.ranks.clear()
