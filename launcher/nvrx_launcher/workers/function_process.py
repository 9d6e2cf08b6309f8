"""The process of a worker that is a function: what it does before, and after.

The function's exception goes to the error file, in the format of torch's `record`; what it returns goes to a file.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from nvrx_core.process.lifeline import ParentDeathSignal
from nvrx_core.process.waiting import readable
from nvrx_launcher.workers.binding import Binding
from nvrx_launcher.workers.process_environment import become

__all__ = ["FunctionCall", "run_function"]

F_SETSIG: Final = 10
"""See fcntl(2); Python has no name for it."""


@dataclass(frozen=True)
class FunctionCall:
    """A function's call in a process of its own.

    Attributes:
        function, arguments: what is called.
        variables: its environment.
        streams: standard output and error.
        result: the file for what it returns.
        binding: where it runs.
        launcher: the launcher's process, where that is the parent of this one; else a connection that ends with it.
        signals: to have their default meaning again, and not blocked.
        to_close: descriptors of the launcher that a forked process must not keep.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    variables: Mapping[str, str]
    streams: tuple[Connection, Connection]
    result: str
    binding: Binding | None
    launcher: int | Connection
    signals: tuple[int, ...]
    to_close: tuple[int, ...]


def run_function(call: FunctionCall) -> None:
    """Call the function, and leave its result.

    Raises:
        BaseException: what the function raises; but its SystemExit without a code is a return.
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
        raise


def _end_with(launcher: int | Connection) -> None:
    """Have the kernel kill this process when the launcher is gone."""
    if isinstance(launcher, int):
        ParentDeathSignal(launcher).set()
        return
    fd = os.dup(launcher.fileno())  # open as long as this process
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if readable([fd], 0.0):  # it was gone before
        os.kill(os.getpid(), signal.SIGKILL)


def _take_over(call: FunctionCall) -> None:
    """Give up what belongs to the launcher, and take what belongs to the worker."""
    signal.set_wakeup_fd(-1)
    for number in call.signals:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, call.signals)
    for fd in call.to_close:
        os.close(fd)
    become(call.variables)
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
    """Write the result, so that there is a whole one or none."""
    new = path.with_suffix(".new")
    new.write_bytes(pickle.dumps(value))
    new.rename(path)


def _record(error: BaseException, path: str) -> None:
    """Write an exception as torch's `record` does, unless the function has."""
    if not path or os.path.exists(path):
        return
    extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    with suppress(OSError):
        Path(path).write_text(json.dumps({"message": message}))
