"""A standby worker: it imports a script's dependencies in advance, and runs the script on request.

    python -u standby_program.py FD script|module IMPORTS TARGET ARGUMENTS...

FD is a socket to the launcher. This process sends a byte when the imports are done. The launcher sends a byte with
three descriptors: the environment as JSON, and the streams of the worker. From then on this process is
indistinguishable from one that was started as `python -u TARGET ARGUMENTS...`, or with `-m`: same sys.argv, sys.path,
`__main__`, environment, streams, tracebacks and exit code. The output of the imports goes to the worker's streams.

This file is run by path and imports only the standard library.
"""

_INITIAL = dict(globals())  # the names in a new __main__

import builtins  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
import types  # noqa: E402
from typing import Any  # noqa: E402

__all__ = ["main"]

DESCRIPTORS = 3


def main() -> None:
    """Import, wait for activation, and run the script."""
    control, kind, imports, *argv = sys.argv[1:]
    own = _set_by_the_interpreter()
    _become(kind, argv)
    for name in imports.split(","):
        __import__(name)
    if not _activated(socket.socket(fileno=int(control)), own):
        os._exit(0)
    try:
        _run_module(argv[0]) if kind == "module" else _run_script(argv[0])
    except SystemExit:
        raise
    except BaseException as error:  # boundary: the worker's last exception, shown without the frames of this file
        _show(error)
        raise


def _set_by_the_interpreter() -> dict[str, str]:
    """Return the variables that were not given to this process, such as the LC_CTYPE of PEP 538."""
    with open("/proc/self/environ", "rb") as file:
        given = {entry.partition(b"=")[0] for entry in file.read().split(b"\0")}
    return {name: value for name, value in os.environ.items() if os.fsencode(name) not in given}


def _become(kind: str, argv: list[str]) -> None:
    """Set `sys` as the interpreter does before any import: a script's folder shadows installed modules."""
    sys.argv[:] = argv
    sys.orig_argv[1:] = ["-u", *(["-m"] if kind == "module" else []), *argv]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if kind == "module" else os.path.dirname(os.path.realpath(argv[0]))


def _activated(control: socket.socket, own: dict[str, str]) -> bool:
    """Report that this process is ready, and receive the launcher's request; return False if the launcher closed."""
    control.sendall(b"r")
    data, descriptors, _, _ = socket.recv_fds(control, 1, DESCRIPTORS)
    control.close()
    if not data:
        return False
    with open(descriptors[0], encoding="utf-8") as file:
        environment = own | json.load(file)
    os.environ.clear()
    os.environ.update(environment)
    for number, fd in enumerate(descriptors[1:], start=1):
        printed = os.pread(number, os.fstat(number).st_size, 0)
        os.dup2(fd, number)
        os.close(fd)
        with io.FileIO(number, "w", closefd=False) as stream:
            stream.write(printed)
    return True


def _new_main() -> dict[str, Any]:
    """Install a new `__main__`, and return its namespace."""
    module = types.ModuleType("__main__")
    names: dict[str, Any] = module.__dict__
    names.clear()
    names.update(_INITIAL, __doc__=None, __builtins__=builtins)
    if "__annotations__" in names:
        names["__annotations__"] = {}
    sys.modules["__main__"] = module
    return names


def _run_script(given: str) -> None:
    """Run a file as the interpreter does: by its absolute path, since Python 3.9; `sys.argv` has it as it is given."""
    path = os.path.join(os.getcwd(), given)  # as the interpreter makes it absolute: without normalization
    names = _new_main()
    names["__file__"] = path
    names["__loader__"] = type(_INITIAL["__loader__"])("__main__", path)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        why = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {path!r}: {why}", file=sys.stderr)
        sys.exit(2)
    exec(compile(source, path, "exec", dont_inherit=True), names)


def _run_module(name: str) -> None:
    """Run a module as the interpreter does for -m, by the same function."""
    import runpy

    names = _new_main()
    names.pop("__file__", None)
    names.pop("__cached__", None)
    sys.argv[0] = "-m"
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _show(error: BaseException) -> None:
    """Print an exception as the interpreter does, without the frames of this file, and only once."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    sys.excepthook = lambda *_: None


if __name__ == "__main__":
    main()
