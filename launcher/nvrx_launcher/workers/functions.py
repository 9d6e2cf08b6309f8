"""Workers that are functions: started by multiprocessing, with the requested start method."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from nvrx_core.process.file_limit import first_file_limit
from nvrx_core.process.lifeline import open_pidfd
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.signals import signal_numbers
from nvrx_launcher.workers.binding import Binding
from nvrx_launcher.workers.command import LOCAL_RANK_MACRO
from nvrx_launcher.workers.function_process import FunctionCall, run_function
from nvrx_launcher.workers.process_environment import exactly
from nvrx_launcher.workers.worker import Output, Worker

__all__ = ["FunctionStarter"]

FORK: Final = "fork"
FORKSERVER: Final = "forkserver"


class FunctionStarter:
    """Starts a function in its own process.

    Args:
        function: the function.
        arguments: its positional arguments; the `local_rank` macro is replaced in strings.
        options: the start method, and the signals that the launcher handles.
        folder: the folder for result files.

    Attributes:
        results: by rank, the return values of the workers of the last cycle that have ended.
        bound: the binding of each local rank.
        exits: an exception ends a worker at once.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Sequence[Any], options: LaunchOptions, folder: Path
    ) -> None:
        self._function, self._arguments, self._folder = function, tuple(arguments), folder
        self._method = options.start_method
        self._signals = tuple(signal_numbers(options.signals))
        self._context: Any = multiprocessing.get_context(self._method)
        self._lifeline = multiprocessing.Pipe(duplex=False)
        self.results = dict[int, Any]()
        self.bound: Sequence[Binding | None] = [None] * options.workers
        self.exits = False

    def start(self, local_rank: int, rank: int, variables: Mapping[str, str], output: Output) -> Worker:
        """Start a worker."""
        self.results.pop(rank, None)
        result = self._folder / f"rank-{rank}.result"
        result.unlink(missing_ok=True)
        stdout, stderr = (Connection(os.dup(fd), readable=False) for fd in output.descriptors())
        arguments = tuple(
            each.replace(LOCAL_RANK_MACRO, str(local_rank)) if isinstance(each, str) else each
            for each in self._arguments
        )
        is_fork = self._method == FORK
        call = FunctionCall(
            self._function, arguments, variables, (stdout, stderr), str(result), self.bound[local_rank],
            launcher=self._lifeline[0] if self._method == FORKSERVER else os.getpid(),
            signals=self._signals if is_fork else (), files=first_file_limit(), exits=self.exits,
        )  # fmt: skip
        process: BaseProcess = self._context.Process(target=run_function, args=(call,), name=f"rank-{rank}")
        with self._inheriting(variables), _blocked(self._signals if is_fork else ()):
            process.start()
        for stream in (stdout, stderr):
            stream.close()
        assert process.pid is not None
        is_child = self._method != FORKSERVER  # the pid of an exited process may be reused before it is opened
        ended = open_pidfd(process.pid) if is_child else os.dup(process.sentinel)
        wait = functools.partial(self._wait, rank, process, result)
        return Worker(local_rank, rank, process.pid, ended=ended, wait=wait)

    def _inheriting(self, variables: Mapping[str, str]) -> AbstractContextManager[None]:
        """Set the environment that a new interpreter reads at its start, including the tag of the launch.

        multiprocessing's resource tracker is not part of the job.
        """
        if self._method == FORK:
            return nullcontext()
        resource_tracker.ensure_running()
        return exactly(variables)

    def _wait(self, rank: int, process: BaseProcess, result: Path) -> int:
        process.join()
        code = process.exitcode or 0
        process.close()
        if code == 0 and result.exists():
            self.results[rank] = pickle.loads(result.read_bytes())
        return code


@contextmanager
def _blocked(signals: Sequence[int]) -> Iterator[None]:
    """Block signals: a forked process would forward them to the launcher until it has reset the handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
