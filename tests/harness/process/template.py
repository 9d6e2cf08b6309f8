"""A process that has imported torch and the wrapper and done nothing else; it forks the ranks of the tests.

A fresh interpreter spends two seconds on `import torch`, most of a test. The template stays single-threaded, and a
forked rank unwinds to the top of the program before it runs its module, so it ends as a fresh interpreter would:
through `SystemExit`, a traceback, `atexit`, or a signal, except for `end_before_teardown`. Ranks are forked twice: the
test process, a subreaper, is their parent.

Run as a program with the descriptor of a socket; each request is one JSON line, each answer the pid of a rank.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "ROOM", "TAG", "WHOLE_END", "become", "begin", "fork_server", "freeze_imports", "preload", "resolve_by_files_only",
    "serve",
]  # fmt: skip

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MADV_COLLAPSE, HUGE = 25, 2 << 20
ROOM = "NVRX_TEST_ROOM"
"""A variable of the template, long enough for the environment of any rank."""
TAG = "NVRX_TEST_TAG"
"""A variable of all processes of a test session."""
WHOLE_END = "NVRX_TEST_WHOLE_END"
"""A variable; where it is set, the interpreter of a rank is torn down at its end."""

_exit_code: int | None = None


def begin() -> None:
    """Prepares the template, before it imports anything large."""
    atexit.register(end_before_teardown)  # the first one is called last
    resolve_by_files_only()


def resolve_by_files_only() -> None:
    """Lets this process and its children resolve names without DNS, in a mount namespace of their own.

    torch's store looks up each client's name in its only thread; with a resolver that is slow, or gone, a rendezvous
    takes seconds, and short soft timeouts fire. Without the right to do so nothing changes.
    """
    libc = ctypes.CDLL(None)
    with tempfile.NamedTemporaryFile("w", prefix="nsswitch-") as hosts:
        hosts.write("hosts: files\n")
        hosts.flush()
        if libc.unshare(CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0:
            libc.mount(hosts.name.encode(), b"/etc/nsswitch.conf", None, MS_BIND, None)


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Answers requests. Returns None when the test process has gone; in a rank, returns that rank's request."""
    with connection, connection.makefile("r") as requests:
        connection.sendall(b"ready\n")
        for line in requests:
            request: dict[str, Any] = json.loads(line)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT  # opened before the answer: who asked may close a pipe then
            request["streams"] = [os.open(request[name], flags, 0o600) for name in ("stdout", "stderr")]
            reader, writer = os.pipe()
            if (middle := os.fork()) == 0 and _orphan(writer):
                os.close(reader)
                return request
            for descriptor in (writer, *request["streams"]):
                os.close(descriptor)
            os.waitpid(middle, 0)
            with open(reader) as pid:
                connection.sendall(f"{pid.read()}\n".encode())
    return None


def fork_server() -> tuple[socket.socket, int] | None:
    """Forks a server from a forked process, which forks from what is imported now; returns its connection and its pid.

    Returns None in what the server has forked, once that has run its module.
    """
    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        return ours, pid
    ours.close()
    if (child := serve(theirs)) is None:
        os._exit(0)
    become(child)
    return None


def _orphan(writer: int) -> bool:
    """In the middle process: forks the rank and ends. In the rank: true."""
    if (pid := os.fork()) == 0:
        os.close(writer)
        return True
    os.write(writer, str(pid).encode())
    os._exit(0)


def become(request: Mapping[str, Any]) -> None:
    """Makes this process the rank that the request describes, and runs its module.

    A shell starts background processes with SIGINT ignored; a rank must receive it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    show_environment()
    os.chdir(request["folder"] or ".")
    for descriptor, stream in enumerate(request["streams"], 1):
        os.dup2(stream, descriptor)
        os.close(stream)
    sys.argv = [request["module"], *request["arguments"]]
    delay_rank()
    global _exit_code  # noqa: PLW0603 - read by a callback of atexit
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        _exit_code = 0
    except SystemExit as end:
        _exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except Exception:
        _exit_code = 1
        raise


def show_environment() -> None:
    """Writes the environment to where /proc/self/environ reads it, with the tag by which all processes are found.

    That is where the kernel has put the environment of the template, which begins with room for others (`ROOM`).
    """
    tag = [each for each in Path("/proc/self/environ").read_bytes().split(b"\0") if each.startswith(TAG.encode())]
    begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])  # env_start, env_end
    text = b"\0".join((*tag, *(os.fsencode(f"{name}={value}") for name, value in os.environ.items()), b""))
    if len(text) > end - begin:
        raise ValueError(f"an environment of {len(text)} bytes has no room in {end - begin}")
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def end_before_teardown() -> None:
    """Ends a rank once its other `atexit` callbacks are done, before its modules and static objects are destroyed.

    That writes to every page that the rank shares with the template, and copying these takes 0.1 s of CPU time, half of
    a small rank's, and 0.4 s where there is a process group. A thread of Python's that still runs then may fail on it,
    as it would in a user's process: with one, the end is a whole one; so it is after Ctrl-C, and for all ranks where
    `WHOLE_END` is set, as in `make test-all` and by the fixture `whole_ends`.
    """
    if _exit_code is not None and len(sys._current_frames()) == 1 and not os.environ.get(WHOLE_END):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)


def preload() -> None:
    """Import what `Wrapper` imports, once for all ranks, and nothing that a rank would import later."""
    from nvrx_core import inprocess

    _ = inprocess.Wrapper


def freeze_imports() -> None:
    """Excludes all that is imported from garbage collections; refuses to continue with threads, which no fork copies.

    Else a rank's last collection, as it ends, copies every page of torch's objects; and so would the finalizers
    of torch's libraries of operators, which `weakref.finalize` calls at the end.
    """
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise SystemExit(f"the imports started {threads - 1} threads: ranks cannot be forked from here")
    for finalizer in list(vars(weakref.finalize)["_registry"]):
        finalizer.atexit = False
    gc.collect()
    gc.freeze()
    collapse_pages()


def collapse_pages() -> None:
    """Moves what is imported to huge pages, where the kernel has them (Linux 6.1 and later).

    A fork copies the table of pages: 70,000 entries of small pages, which takes as long as a small rank runs. A rank
    that writes to a huge page copies 4 KiB of it.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        extent, rights, *_, name = line.split(" ", 5)
        if rights == "rw-p" and name.strip() in ("", "[heap]"):
            first, end = (int(each, 16) for each in extent.split("-"))
            for address in range(-(-first // HUGE) * HUGE, end - HUGE + 1, HUGE):
                madvise(address, HUGE, MADV_COLLAPSE)


def delay_rank() -> None:
    """Delays the rank that the environment names, if it names one."""
    if os.environ.get("NVRX_TEST_DELAY_RANK"):
        from tests.harness.process import delay

        delay.delay_rank()


if __name__ == "__main__":
    begin()
    import torch.distributed  # noqa: F401

    sys.path[0] = str(Path(__file__).resolve().parents[3])  # not this folder, whose names are others
    preload()
    freeze_imports()
    if (chosen := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        become(chosen)
