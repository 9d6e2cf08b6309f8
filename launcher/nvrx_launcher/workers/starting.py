"""Start of a worker that is a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from nvrx_core.process.lifeline import open_pidfd
from nvrx_launcher.guardian import start_guarded
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.binding import Binding
from nvrx_launcher.workers.command import worker_command
from nvrx_launcher.workers.worker import Output, Worker

__all__ = ["ProgramStarter", "Starter"]


class Starter(Protocol):
    """Starts one worker."""

    def start(self, local_rank: int, rank: int, variables: Mapping[str, str], output: Output) -> Worker:
        """Start a worker, in the thread with whose exit the kernel kills it.

        Args:
            local_rank: its number on this node.
            rank: its number in the job.
            variables: its complete environment.
            output: its streams.

        Raises:
            OSError: when it cannot be started.
        """


class ProgramStarter:
    """Starts the program that the command line names.

    Args:
        options: the command line of the job.
        python: the interpreter, unless the environment names another one.
        bound: the binding of each local rank.
    """

    def __init__(self, options: LaunchOptions, python: str, bound: Sequence[Binding | None]) -> None:
        self._options, self._python, self._bound = options, python, bound

    def start(self, local_rank: int, rank: int, variables: Mapping[str, str], output: Output) -> Worker:
        """Start a worker."""
        command = worker_command(self._options, local_rank, variables.get("PYTHON_EXEC", self._python))
        binding = self._bound[local_rank]
        process = start_guarded(
            command, bind=None if binding is None else binding.apply,
            env=dict(variables), stdout=output.stdout, stderr=output.stderr,
        )  # fmt: skip
        return Worker(local_rank, rank, process.pid, ended=open_pidfd(process.pid), wait=process.wait)
