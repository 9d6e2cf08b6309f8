"""Writes everything that a script can find out about its process to the file at NVRX_TEST_DUMP, as JSON."""

import atexit
import gc
import json
import locale
import logging
import os
import resource
import signal
import stat
import sys
import threading
import time
import warnings

LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))


def stream(number, file):
    """What there is to know of a stream; its descriptor is another file of the same kind."""
    kind = stat.S_IFMT(os.fstat(number).st_mode)
    if file is None:
        return kind, None
    buffer = getattr(file, "buffer", None)
    return (
        kind, type(file).__name__, file.name, file.mode, file.encoding, file.errors, file.newlines, file.isatty(),
        file.line_buffering, file.write_through, type(buffer).__name__, type(getattr(buffer, "raw", None)).__name__,
        os.isatty(number), os.get_inheritable(number), os.get_blocking(number),
    )  # fmt: skip


def described(value):
    """A value without its address."""
    return repr(value).partition(" at 0x")[0].partition(" object at")[0]


def attributes_of(thing):
    return {name: described(value) for name, value in sorted(vars(thing).items())} if hasattr(thing, "__dict__") else {}


def found():
    main = sys.modules["__main__"]
    own = {name: described(value) for name, value in vars(main).items() if name.startswith("__")}
    return {
        "main": own, "main_names": list(vars(main)), "is_main": vars(main) is globals(), "main_type": described(main),
        "loader": attributes_of(__loader__), "spec": attributes_of(__spec__),
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
        "executable": sys.executable, "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix],
        "warnoptions": sys.warnoptions, "xoptions": {key: str(value) for key, value in sys._xoptions.items()},
        "filters": [described(each) for each in warnings.filters],
        "environ": dict(os.environ), "cwd": os.getcwd(),
        "streams": [stream(number, file) for number, file in enumerate((sys.stdin, sys.stdout, sys.stderr))],
        "original_streams": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "fds": sorted(map(int, os.listdir("/proc/self/fd"))),
        "handlers": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
        "ignored": [line for line in open("/proc/self/status") if line.startswith(("SigIgn", "SigCgt", "SigBlk"))],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "wakeup": signal.set_wakeup_fd(-1),
        "timer": signal.getitimer(signal.ITIMER_REAL), "umask": os.umask(0o22),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        "scheduler": os.sched_getscheduler(0), "processors": sorted(os.sched_getaffinity(0)),
        "oom": open("/proc/self/oom_score_adj").read(),
        "is_leader": os.getsid(0) == os.getpid() == os.getpgid(0), "ids": [os.getresuid(), os.getresgid()],
        "logging": [str(logging.root.handlers), logging.root.level, logging.root.manager.disable,
                    logging.lastResort.level],
        "threads": [each.name for each in threading.enumerate()], "is_main_thread":
            threading.current_thread() is threading.main_thread(),
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
                  threading.excepthook is threading.__excepthook__, described(sys.unraisablehook)],
        "finders": [list(map(described, sys.meta_path)), list(map(described, sys.path_hooks))],
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug()],
        "interpreter": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile(),
                        sys.dont_write_bytecode, sys.pycache_prefix, sys.exc_info()[0], hasattr(sys, "last_type")],
        "locale": locale.setlocale(locale.LC_ALL), "zone": time.tzname, "encodings":
            [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), locale.getencoding()],
        "callbacks": atexit._ncallbacks(),
    }  # fmt: skip


if "--import" in sys.argv:
    __import__(sys.argv[sys.argv.index("--import") + 1])
FOUND = found()
if "--chdir" in sys.argv:
    os.chdir("/")
    with open(__file__) as file:
        FOUND["own source"] = file.read()
with open(os.environ["NVRX_TEST_DUMP"], "w") as file:
    json.dump(FOUND, file, default=str)
print("to stdout")
print("to stderr", file=sys.stderr)
