"""A worker that `forking_launcher` or `forking_torchrun` has forked: `forked_worker LAUNCHER PROGRAM ARGUMENTS...`.

The process becomes one that `guardian.start_guarded` has started, and does what `python -u PROGRAM ARGUMENTS...` does,
or `python -u -m MODULE ARGUMENTS...`.
"""

from __future__ import annotations

import importlib.machinery
import io
import os
import runpy
import sys
from contextlib import suppress

from nvrx_core.process.lifeline import ParentDeathSignal
from nvrx_core.process.waiting import readable

__all__ = ["await_adoption", "follow_path", "write_through"]


def await_adoption(launcher: int) -> None:
    """Wait until the launcher is the parent: the process that was in between, if it still is, ends now.

    If the launcher has ended, so does this process: nobody knows of it.
    """
    try:
        lost = os.pidfd_open(launcher)
    except ProcessLookupError:
        os._exit(1)
    while (between := os.getppid()) != launcher:
        with suppress(ProcessLookupError):
            ended = os.pidfd_open(between)
            readable([lost, ended])
            os.close(ended)
        if readable([lost], 0):
            os._exit(1)
    os.close(lost)


def write_through(descriptor: int) -> io.TextIOWrapper:
    """A standard stream as with `python -u`."""
    text = sys.stdout if descriptor == 1 else sys.stderr
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding=text.encoding, errors=text.errors, write_through=True)  # type: ignore[arg-type]


def follow_path(first: str) -> None:
    """Search modules in a folder first, then in PYTHONPATH, as an interpreter that begins with this environment."""
    named = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[:] = [first, *named, *(each for each in sys.path if each not in named)]


def main(launcher: str, program: str, *arguments: str) -> None:
    """Prepare the process, and run the program."""
    await_adoption(int(launcher))
    ParentDeathSignal(int(launcher)).set()
    os.setsid()
    sys.stdout = sys.__stdout__ = write_through(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = write_through(2)  # type: ignore[misc]
    if program == "-m":
        follow_path("")
        sys.argv[:] = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = [program, *arguments]
    follow_path(os.path.dirname(program))
    loader = importlib.machinery.SourceFileLoader("__main__", program)
    code = loader.get_code("__main__")
    names = {"__name__": "__main__", "__file__": program, "__loader__": loader, "__builtins__": __builtins__}
    exec(code, names)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
