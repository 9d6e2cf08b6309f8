"""The traceback of an exception that nobody catches: short, in one write, once for ranks and attempts that fail alike.

The interpreter writes a traceback in pieces, which mix with those of the other ranks on the same terminal. An exception
hook of the user's, or of a library, is left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Final

from nvrx_core.fault.user_frames import origin, shortened
from nvrx_core.settings.environment import error_file, full_tracebacks, launcher_socket

__all__ = ["print_shortened"]

_VARYING: Final = re.compile(r"initial rank \d+|0x[0-9a-f]+")
"""Parts of a text in which tracebacks that are alike may differ: the rank to blame, the address of an object."""


def print_shortened(error: BaseException, prefix: str = "") -> None:
    """Let the interpreter print `error`, if it remains uncaught, in one piece and without the frames of libraries.

    Where another process of the same launch has printed the same text to the same stream, a line follows instead.

    Args:
        error: the exception with which this process is about to end.
        prefix: precedes each line.
    """
    if sys.excepthook is not sys.__excepthook__ or full_tracebacks():
        return
    ended_by = id(error)  # a reference would keep alive what the function held

    def print_uncaught(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = sys.__excepthook__
        if id(value) != ended_by or sys.stderr is None:
            sys.__excepthook__(kind, value, trace)
            return
        try:
            captured = traceback.TracebackException(kind, value, trace, compact=True)
            last = "".join(captured.format_exception_only()).rstrip()
            text = shortened(captured)
            _tell_launcher(last, text)
            if not _is_first(text):
                text = f"{last}\n(at {origin(trace)}, with the same traceback as above)\n"
        except Exception:  # boundary: a property of the user's exception
            sys.__excepthook__(kind, value, trace)
        else:
            text = "".join(f"{prefix}{line}" for line in text.splitlines(keepends=True))
            print(text, end="", file=sys.stderr, flush=True)

    sys.excepthook = print_uncaught


def _tell_launcher(last: str, text: str) -> None:
    """Write the exception to the error file, unless there is one: the launcher names it as the cause."""
    if launcher_socket() is None or (file := error_file()) is None:
        return
    cause = last.partition("\n")[0].partition(". Next: ")[0]
    told = {"message": cause, "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}
    with suppress(OSError), file.open("x") as opened:
        json.dump({"message": told}, opened)


def _is_first(text: str) -> bool:
    """Record that the text goes to the stream; return whether no process of this launch has printed it there."""
    if (file := error_file()) is None or sys.stderr is None:
        return True
    try:
        stream = os.fstat(sys.stderr.fileno())
        alike = f"{stream.st_dev} {stream.st_ino} {_VARYING.sub('', text)}"
        name = hashlib.sha256(alike.encode(errors="replace")).hexdigest()
        os.close(os.open(file.parents[2] / f"printed-{name[:32]}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except (OSError, ValueError, AttributeError):  # no such folder here, or a stream that is no file
        return True
    return True
