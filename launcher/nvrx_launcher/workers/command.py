"""The command of a worker. Pure."""

from __future__ import annotations

from typing import Final

from nvrx_launcher.options import LaunchOptions

__all__ = ["program_arguments", "worker_command", "worker_target"]

RUN_PATH: Final = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
LOCAL_RANK_MACRO: Final = "${local_rank}"


def worker_command(
    options: LaunchOptions, local_rank: int, python: str, *, program: str = "", exits: bool = False
) -> list[str]:
    """Return a worker's program and arguments.

    Args:
        options: the command line of the job.
        local_rank: the worker's local rank; replaces the `local_rank` macro in the arguments.
        python: the interpreter.
        program: the path of `worker_program`, which runs a script and leaves its exception; "" to do without.
        exits: an exception ends the worker at once.
    """
    target = worker_target(options, local_rank)
    if program:
        return [python, "-u", program, "-", *program_arguments(options, exits=exits), "", *target]
    if options.no_python:
        return target
    if options.run_path:
        return [python, "-u", "-c", RUN_PATH, *target]
    return [python, "-u", *(["-m"] if options.module else []), *target]


def program_arguments(options: LaunchOptions, *, exits: bool) -> list[str]:
    """Return the arguments by which `worker_program` runs a script."""
    return ["exits" if exits else "returns", "module" if options.module else "script"]


def worker_target(options: LaunchOptions, local_rank: int) -> list[str]:
    """Return the script, module or program of a worker, and its arguments."""
    arguments = [argument.replace(LOCAL_RANK_MACRO, str(local_rank)) for argument in options.arguments]
    return [options.script, *arguments]
