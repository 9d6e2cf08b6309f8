"""The program of a worker: it runs a script, and leaves its exception for the launcher.

    python -u worker_program.py FD returns|exits script|module IMPORTS TARGET ARGUMENTS...

FD is `-`, or the socket of a standby worker, which imports a script's dependencies in advance and runs the script on
request: it sends a byte when the imports are done, and the launcher sends a byte with three descriptors: the
environment as JSON, and the streams of the worker. The output of the imports goes to the worker's streams.

For the script this process is indistinguishable from one that was started as `python -u TARGET ARGUMENTS...`, or with
`-m`: same sys.argv, sys.path, `__main__`, environment, streams, tracebacks and exit code. An exception that ends it is
written to TORCHELASTIC_ERROR_FILE, as torch's `record` does, unless that has. With `exits` the process then ends at
once, by `os._exit(1)`: no thread, no finalizer and no destructor can hold it up.

This file is run by path and imports only the standard library; without a socket, only what the interpreter has imported
at its start, as a script may have a module of its own that is called like one of the library.
"""

_INITIAL = dict(globals())  # the names in a new __main__

import builtins  # noqa: E402
import io  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

TYPE_CHECKING = False  # as of typing, which the interpreter does not import
if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["main"]

NO_SOCKET = "-"
DESCRIPTORS = 3
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
LONGEST = 1 << 16
"""Characters of an exception, and of its traceback, in that file."""


def main() -> None:
    """Import, wait for activation, and run the script."""
    control, end, kind, imports, *argv = sys.argv[1:]
    libraries = sys.path[not sys.flags.safe_path :]
    own = _set_by_the_interpreter()
    if control != NO_SOCKET:  # `_activated` needs these, and the script's folder may have others of the same names
        import json  # noqa: F401
        import socket  # noqa: F401
    _become(kind, argv)
    if control != NO_SOCKET:
        for name in imports.split(","):
            __import__(name)
        if not _activated(int(control), own):
            os._exit(0)
    pid, error_file = os.getpid(), os.environ.get(ERROR_FILE, "")
    error_file = error_file and os.path.abspath(error_file)
    try:
        _run_module(argv[0]) if kind == "module" else _run_script(argv[0])
    except BaseException as error:  # boundary: the worker's last exception, shown without the frames of this file
        cause = _cause(error)
        if cause is not None and os.getpid() == pid:  # a process that the script has forked may end here as well
            _record(cause, error_file, libraries)
        if isinstance(error, SystemExit):
            raise
        _show(error)
        if cause is not None and end == "exits":
            _flush()
            os._exit(1)
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


def _activated(control_fd: int, own: "dict[str, str]") -> bool:
    """Report that this process is ready, and receive the launcher's request; return False if the launcher closed."""
    import json
    import socket

    control = socket.socket(fileno=control_fd)
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


def _new_main() -> "dict[str, object]":
    """Install a new `__main__`, and return its namespace."""
    module = type(sys)("__main__")
    names: dict[str, object] = module.__dict__
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


def _cause(error: BaseException) -> "BaseException | None":
    """Return the exception that has ended the script; None if there is none.

    Many a script, and hydra, logs what it catches and calls `sys.exit(1)`: what was caught has ended it.
    """
    if type(error) is not SystemExit:
        return error if isinstance(error, Exception) else None
    caught = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if error.code in (None, 0):
        return None
    if isinstance(caught, Exception):
        return caught
    return error if isinstance(error.code, str) else None


def _frames(error: BaseException) -> "TracebackType | None":
    """Return the traceback of an exception without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _record(error: BaseException, path: str, libraries: "list[str]") -> None:
    """Write an exception as torch's `record` does, unless the script has done so.

    Args:
        error: the exception.
        path: the file; "" for none.
        libraries: where modules are found that this file needs now, and not the script's.
    """
    if not path or os.path.exists(path):
        return
    before, sys.path[:] = sys.path[:], libraries
    try:
        import json
        import traceback

        stack = "".join(traceback.format_exception(type(error), error, _frames(error)))
        extra = {"py_callstack": stack[-LONGEST:], "timestamp": str(int(time.time()))}
        message = {"message": f"{type(error).__name__}: {error}"[:LONGEST], "extraInfo": extra}
        new = f"{path}.new"
        with open(new, "w", encoding="utf-8") as file:
            json.dump({"message": message}, file)
        os.replace(new, path)
    except Exception:  # boundary: the worker ends as it would without the file, whatever its exception prints
        return
    finally:
        sys.path[:] = before


def _show(error: BaseException) -> None:
    """Print an exception as the interpreter does, without the frames of this file, and only once."""
    trace = _frames(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    sys.excepthook = lambda *_: None


def _flush() -> None:
    """Write what the script has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # boundary: the process ends here; its streams may be closed, broken or the script's own
            continue


if __name__ == "__main__":
    main()
