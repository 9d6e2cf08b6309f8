"""The command of a worker. Pure."""

from __future__ import annotations

from typing import Final

from nvrx_launcher.options import LaunchOptions

__all__ = ["worker_command"]

RUN_PATH: Final = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
LOCAL_RANK_MACRO: Final = "${local_rank}"


def worker_command(options: LaunchOptions, local_rank: int, python: str) -> list[str]:
    """Return a worker's program and arguments.

    Args:
        options: what is to be run.
        local_rank: the worker's; replaces the macro for it in the arguments.
        python: the interpreter.
    """
    arguments = [argument.replace(LOCAL_RANK_MACRO, str(local_rank)) for argument in options.arguments]
    if options.no_python:
        return [options.script, *arguments]
    if options.run_path:
        return [python, "-u", "-c", RUN_PATH, options.script, *arguments]
    return [python, "-u", *(["-m"] if options.module else []), options.script, *arguments]
