"""`python -m torch.distributed.run`, with workers that are forked from it and have imported what it has.

This module is to be run in a process that a template has forked. It forks a server at once, as the agent has threads
later, and the workers are forked from that server. Each is a child of the agent, which adopts it.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from collections.abc import Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from nvrx_core.process.children import become_subreaper
from tests.harness.process.job import Forks
from tests.harness.process.launch import FORKED_WORKER, ForkedProcess
from tests.harness.process.template import fork_server

__all__: list[str] = []


class Workers:
    """Forks workers where the agent starts them.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._forks = Forks(connection)

    def start(
        self, args: Sequence[str], *, env: dict[str, str], start_new_session: bool, **streams: Any
    ) -> ForkedProcess:
        """Fork a worker: in place of `Popen`."""
        python, unbuffered, program, *arguments = args
        assert (python, unbuffered, start_new_session) == (sys.executable, "-u", True), args
        given = [str(os.getpid()), program, *arguments]
        return ForkedProcess(self._forks, FORKED_WORKER, given, env, os.getcwd(), text=False, **streams)


def main() -> None:
    """Fork the server, and be torchrun; in a worker, be that."""
    if (server := fork_server()) is not None:
        become_subreaper()
        subprocess_handler.Popen = Workers(server[0]).start  # type: ignore[assignment,misc]
        runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
