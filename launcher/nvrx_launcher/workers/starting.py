"""Start of a worker that is a program."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from nvrx_core.process.children import watch_child
from nvrx_launcher.guardian import start_guarded
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers import worker_program
from nvrx_launcher.workers.binding import Binding
from nvrx_launcher.workers.command import worker_command
from nvrx_launcher.workers.worker import Output, Worker

__all__ = ["PROGRAM", "ProgramStarter", "Starter", "why_no_source"]

PROGRAM: Final = str(Path(worker_program.__file__).resolve())


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


def why_no_source(options: LaunchOptions) -> str:
    """Return why the workers are not Python source that `worker_program` can run; "" if they are."""
    if options.no_python or options.run_path:
        return "the workers are no Python script"
    script = Path(options.script)
    if not options.module and (not script.is_file() or script.suffix == ".pyc" or zipfile.is_zipfile(script)):
        return f"{options.script} is no Python source file"
    return ""


class ProgramStarter:
    """Starts the program that the command line names.

    Args:
        options: the command line of the job.
        python: the interpreter, unless the environment names another one.
        bound: the binding of each local rank.
        exits: an exception ends a worker at once.
    """

    def __init__(
        self, options: LaunchOptions, python: str, bound: Sequence[Binding | None], *, exits: bool = False
    ) -> None:
        self._options, self._python, self._bound, self._exits = options, python, bound, exits
        self._program = "" if why_no_source(options) else PROGRAM

    def start(self, local_rank: int, rank: int, variables: Mapping[str, str], output: Output) -> Worker:
        """Start a worker."""
        python = variables.get("PYTHON_EXEC", self._python)
        program = self._program if python == self._python else ""  # another one may not be Python
        command = worker_command(self._options, local_rank, python, program=program, exits=self._exits)
        binding = self._bound[local_rank]
        process = start_guarded(
            command, bind=None if binding is None else binding.apply,
            env=dict(variables), stdout=output.stdout, stderr=output.stderr,
        )  # fmt: skip
        return Worker(local_rank, rank, process.pid, ended=watch_child(process), wait=process.wait)
