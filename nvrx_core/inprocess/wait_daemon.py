"""`nvrx-wait PIDFILE`, or `python -m nvrx_core.inprocess.wait_daemon`: waits until the processes of a file have exited.

A job scheduler kills the remaining processes of a step when its last task has exited, including monitor processes. A
task that waits for its monitor process gives it the time to report the death of the rank.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main", "wait"]


def main(argv: Sequence[str] | None = None) -> int:
    """Wait; return the exit code: 0, 1 for a file that cannot be read. Wrong arguments exit with 2."""
    parser = argparse.ArgumentParser("nvrx-wait", description="Wait until the processes of a pid file have exited.")
    parser.add_argument("pidfile", metavar="PIDFILE", type=Path, help="the file that the monitor process writes")
    pidfile = parser.parse_args(argv).pidfile
    try:
        wait(pidfile)
    except (OSError, ValueError) as error:
        print(f"{pidfile}: {error}", file=sys.stderr)
        return 1
    return 0


def wait(pidfile: Path) -> None:
    """Wait until all processes in the file have exited, including those that are added meanwhile.

    Raises:
        OSError: when the file cannot be read.
        ValueError: when it contains anything but process ids.
    """
    seen = set[int]()
    while new := {int(word) for word in pidfile.read_text(encoding="ascii").split()} - seen:
        seen |= new
        for pid in new:
            _await_exit(pid)


def _await_exit(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
