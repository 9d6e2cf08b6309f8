"""A launcher with faults at its failpoints: NVRX_FAILPOINTS, with RANK for which launcher it is.

With NVRX_TEST_FAILS, as in `/tmp/pipe:nvrx-node`, a thread fails at what it executes next once a named pipe is opened.
"""

from __future__ import annotations

import ctypes
import os
import threading

from nvrx_launcher.cli import run

from nvrx_core.testing import failpoints


def fail(pipe: str, name: str) -> None:
    """Raise an exception in the threads of a name, once somebody opens the pipe for writing."""
    with open(pipe):
        pass
    for thread in threading.enumerate():
        if thread.name == name:
            number = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(ArithmeticError))


if __name__ == "__main__":
    failpoints.install_from_env(os.environ)
    pipe, _, thread = os.environ.pop("NVRX_TEST_FAILS", "").partition(":")
    for name in (failpoints.SCHEDULE, "RANK"):  # for this process only
        os.environ.pop(name, None)
    if pipe:
        threading.Thread(target=fail, args=(pipe, thread), daemon=True).start()
    run()
