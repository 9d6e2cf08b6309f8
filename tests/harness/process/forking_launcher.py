"""`python -m nvrx_launcher`, with workers that are forked from it and have imported what it has.

The imports of a worker with Lightning take four seconds of CPU time. This module is to be run in a process that a
template has forked. It forks a server at once, as the launcher has threads later, and the workers are forked from that
server. Each is a child of the launcher, which adopts it, ends with it, is in a session of its own, and runs
`worker_program` with its environment and streams, as a worker that is started does. Only its command in /proc is
another.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from nvrx_launcher.workers import starting

from nvrx_core.process.children import note_child
from tests.harness.process.job import Forks
from tests.harness.process.launch import FORKED_WORKER, ForkedProcess
from tests.harness.process.template import fork_server

__all__: list[str] = []


class Workers:
    """Forks workers where the launcher starts them.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._forks = Forks(connection)

    def start(
        self, command: Sequence[str], *, bind: Callable[[], None] | None = None, env: dict[str, str], **streams: Any
    ) -> ForkedProcess:
        """Fork a worker: in place of `guardian.start_guarded`."""
        python, unbuffered, program, *arguments = command
        assert (python, unbuffered, program, bind) == (sys.executable, "-u", starting.PROGRAM, None), command
        given = [str(os.getpid()), program, *arguments]
        worker = ForkedProcess(self._forks, FORKED_WORKER, given, env, os.getcwd(), **streams)
        note_child(worker.pid)
        return worker


def main() -> None:
    """Fork the server, and be the launcher; in a worker, be that."""
    if (server := fork_server()) is not None:
        starting.start_guarded = Workers(server[0]).start  # type: ignore[assignment]
        runpy.run_module("nvrx_launcher", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
