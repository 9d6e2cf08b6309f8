"""A misbehaving worker, with another case in each cycle: `launcher_hostile.py CASE,CASE,...`.

After the last one it is done. Rank 1 fails at the end of each case, unless it is said otherwise.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable

from tests.harness.process.workers.launcher_worker import CYCLE, RANK, say

CASE_LIST = sys.argv[1].split(",")
PROCESSES = 40
MEBI = 1 << 20
FOREVER = 60
ARGUMENTS = sys.argv[2:]


def linger() -> None:
    """Keep running and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(FOREVER)
    os._exit(0)


def daemonizes() -> None:
    """Starts a daemon, with a session of its own and no open file."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            say("child", child=os.getpid())
            os.closerange(0, 1024)
            linger()
        os._exit(0)
    os.wait()


def forks() -> None:
    """Starts many processes that stay in its group and ignore SIGTERM."""
    for _ in range(PROCESSES):
        if os.fork() == 0:
            linger()


def closes_all_files() -> None:
    """Has no open file any more, and so nothing to print to."""
    os.closerange(0, 1024)
    os._exit(3 if RANK else 0)


def prints_without_end() -> None:
    """Prints megabytes, and no end of a line."""
    os.write(1, b"x" * (3 * MEBI))


def real_time_signal() -> None:
    """Is ended by a signal that Python has no name for."""
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGRTMIN + 8)
    time.sleep(FOREVER)


def deletes_logs() -> None:
    """Deletes the folder of its log files, leaves its own one, and prints on."""
    shutil.rmtree(os.environ["NVRX_TEST_LOGS"], ignore_errors=True)
    os.chdir("/")
    print("to a file that is gone", flush=True)


def stops_itself() -> None:
    """Rank 0 stops itself while rank 1 fails."""
    if RANK == 0:
        os.kill(os.getpid(), signal.SIGSTOP)


def leaves_early() -> None:
    """Rank 0 is done at once, and rank 1 fails after a while."""
    if RANK == 0:
        sys.exit(0)
    time.sleep(0.3)


def takes_all_memory() -> None:
    """Rank 1 takes more than there is; nobody fails by itself."""
    kept = []
    while RANK == 1:
        kept.append(b"x" * (8 * MEBI))
    time.sleep(FOREVER)


def tells() -> None:
    """Says what it was given, and reads all of its standard input; nobody fails."""
    say(
        "told",
        arguments=[each.encode(errors="surrogateescape").hex() for each in ARGUMENTS],
        big=len(os.environ["BIG"]),
    )
    sys.stdin.read()


def prints_and_is_done() -> None:
    """Prints lines, each in one write (`print` of an unbuffered interpreter makes two); nobody fails."""
    for number in range(2_000):
        sys.stdout.write(f"line {number}\n")
        sys.stdout.flush()


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        daemonizes, forks, closes_all_files, prints_without_end, real_time_signal, deletes_logs, stops_itself,
        leaves_early, takes_all_memory, tells, prints_and_is_done,
    )
}  # fmt: skip
HARMLESS = ("tells", "prints_and_is_done")

if __name__ == "__main__":
    say("start")
    if len(CASE_LIST) > CYCLE:
        CASES[CASE_LIST[CYCLE]]()
        if CASE_LIST[CYCLE] not in HARMLESS:
            if RANK == 1:
                sys.exit(3)
            time.sleep(FOREVER)
    say("done")
