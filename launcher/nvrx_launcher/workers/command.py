"""The command of a worker. Pure."""

from __future__ import annotations

from typing import Final

from nvrx_launcher.options import LaunchOptions

__all__ = ["worker_command", "worker_target"]

RUN_PATH: Final = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
LOCAL_RANK_MACRO: Final = "${local_rank}"


def worker_command(options: LaunchOptions, local_rank: int, python: str) -> list[str]:
    """Return a worker's program and arguments.

    Args:
        options: the command line of the job.
        local_rank: the worker's local rank; replaces the `local_rank` macro in the arguments.
        python: the interpreter.
    """
    target = worker_target(options, local_rank)
    if options.no_python:
        return target
    if options.run_path:
        return [python, "-u", "-c", RUN_PATH, *target]
    return [python, "-u", *(["-m"] if options.module else []), *target]


def worker_target(options: LaunchOptions, local_rank: int) -> list[str]:
    """Return the script, module or program of a worker, and its arguments."""
    arguments = [argument.replace(LOCAL_RANK_MACRO, str(local_rank)) for argument in options.arguments]
    return [options.script, *arguments]
