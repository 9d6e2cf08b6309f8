"""The process of a worker that is a function: its setup before the call, and its result after it.

The function's exception is written to the error file, in the format of torch's `record`; its return value to a result
file.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from nvrx_core.process.file_limit import set_file_limit
from nvrx_core.process.lifeline import ParentDeathSignal
from nvrx_core.process.waiting import readable
from nvrx_launcher.workers.binding import Binding
from nvrx_launcher.workers.process_environment import become

__all__ = ["FunctionCall", "run_function"]

F_SETSIG: Final = 10
"""See fcntl(2); Python has no name for it."""


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function in its own process.

    Attributes:
        function, arguments: the function and its arguments.
        variables: the environment.
        streams: standard output and error.
        result: the file for the return value.
        binding: the CPUs and memory to bind to.
        launcher: the launcher's process, if it is the parent of this one; else a connection that closes when it exits.
        signals: signals to unblock and reset to their default handlers.
        files: the soft limit of open files with which the launcher was started; None: its present one.
        exits: an exception ends the process at once.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    variables: Mapping[str, str]
    streams: tuple[Connection, Connection]
    result: str
    binding: Binding | None
    launcher: int | Connection
    signals: tuple[int, ...]
    files: int | None = None
    exits: bool = False


def run_function(call: FunctionCall) -> None:
    """Call the function, and write its result.

    Raises:
        BaseException: what the function raises; a SystemExit without a code counts as a return.
    """
    os.setsid()
    _end_with(call.launcher)
    _take_over(call)
    try:
        value = _returned(call)
        _leave(Path(call.result), value)
    except SystemExit:
        raise
    except BaseException as error:  # boundary: the end of the worker, which the launcher reports
        _record(error, call.variables.get("TORCHELASTIC_ERROR_FILE", ""))
        if call.exits and isinstance(error, Exception):  # no thread, no finalizer and no destructor can hold it up
            traceback.print_exc()
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(1)
        raise


def _end_with(launcher: int | Connection) -> None:
    """Make the kernel kill this process when the launcher exits."""
    if isinstance(launcher, int):
        ParentDeathSignal(launcher).set()
        return
    fd = os.dup(launcher.fileno())  # stays open as long as this process lives
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if readable([fd], 0.0):  # the launcher exited before
        os.kill(os.getpid(), signal.SIGKILL)


def _take_over(call: FunctionCall) -> None:
    """Release the launcher's resources, and set up those of the worker."""
    signal.set_wakeup_fd(-1)
    for number in call.signals:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, call.signals)
    become(call.variables)
    set_file_limit(call.files)
    for number, stream in enumerate(call.streams, start=1):
        os.dup2(stream.fileno(), number)
        stream.close()
    if call.binding is not None:
        call.binding.apply()


def _returned(call: FunctionCall) -> Any:
    try:
        return call.function(*call.arguments)
    except SystemExit as end:
        if end.code in (None, 0):
            return None
        raise


def _leave(path: Path, value: Any) -> None:
    """Write the result atomically."""
    new = path.with_suffix(".new")
    new.write_bytes(pickle.dumps(value))
    new.rename(path)


def _record(error: BaseException, path: str) -> None:
    """Write an exception as torch's `record` does, unless the function has done so."""
    if not path or os.path.exists(path):
        return
    extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    with suppress(OSError):
        Path(path).write_text(json.dumps({"message": message}))
