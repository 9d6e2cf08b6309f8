"""Says what it finds itself to be, as JSON; then ends as its argument asks."""

import json
import multiprocessing
import os
import pickle
import signal
import sys


def pickled() -> str:
    """A function of `__main__`."""
    return pickle.loads(pickle.dumps(pickled)).__module__


def child(queue) -> None:
    queue.put(__name__)


def spawned() -> str:
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    process.join()
    return queue.get()


def main() -> None:
    main_module = sys.modules["__main__"]
    found = {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags), "cwd": os.getcwd(),
        "environ": dict(os.environ), "globals": sorted(globals()), "is_main": main_module.__dict__ is globals(),
        "constants": {name: repr(value) for name, value in globals().items() if name in (
            "__name__", "__doc__", "__file__", "__package__", "__cached__", "__annotations__")},
        "builtins": type(__builtins__).__name__, "loader": type(__loader__).__name__,
        "spec": getattr(__spec__, "name", None), "pickled": pickled(), "warnoptions": sys.warnoptions,
        "handlers": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "umask": os.umask(0),
        "stdin": os.readlink("/proc/self/fd/0"), "stdout": os.readlink("/proc/self/fd/1"),
        "line_buffering": sys.stdout.line_buffering, "write_through": sys.stdout.write_through,
        "encoding": sys.stdout.encoding, "processors": sorted(os.sched_getaffinity(0)),
        "is_leader": os.getsid(0) == os.getpid() == os.getpgid(0), "fds": sorted(map(int, os.listdir("/proc/self/fd"))),
        "loader_path": getattr(__loader__, "path", None),
    }  # fmt: skip
    print(json.dumps(found, sort_keys=True))


if __name__ == "__main__":
    main()
    print("to stderr", file=sys.stderr)
    if sys.argv[1] == "spawns":
        print(spawned())
    if sys.argv[1] == "raises":
        raise ValueError("on purpose") from KeyError("the cause")
    if sys.argv[1] == "hooked":
        sys.excepthook = lambda kind, error, trace: print("hook", kind, error, trace.tb_frame.f_code.co_filename)
        raise ValueError("on purpose")
    if sys.argv[1] == "interrupted":
        raise KeyboardInterrupt
    if sys.argv[1] == "exits":
        sys.exit(3)
    if sys.argv[1] == "says":
        sys.exit("and ends")
