"""A demo of `examples` in a process that a template has forked: `forking_demo SCRIPT ARGUMENTS...`.

What it starts by `demo_parts.processes`, which would import torch, an optimizer's compiler and perhaps Lightning each
time, is forked as well. It is a child of the demo here, too, which adopts it.
"""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from nvrx_core.process.children import become_subreaper
from tests.harness.process.forked_worker import write_through
from tests.harness.process.job import Forks
from tests.harness.process.launch import FORKING_LAUNCHER, FORKING_TORCHRUN, ForkedProcess
from tests.harness.process.template import fork_server

__all__: list[str] = []

EXAMPLES = Path(__file__).parents[3] / "examples"
FORKING = {"nvrx_launcher": FORKING_LAUNCHER, "torch.distributed.run": FORKING_TORCHRUN}
CHILD = "tests.harness.process.demo_child"


class Children:
    """Forks where `demo_parts.processes` starts an interpreter.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._forks = Forks(connection)

    def start(
        self, command: list[str], *, env: dict[str, str], start_new_session: bool, **streams: Any
    ) -> ForkedProcess:
        """Fork `python -P -m demo_parts.child PARENT MODULE ARGUMENTS...`."""
        assert (*command[1:4], start_new_session) == ("-P", "-m", "demo_parts.child", True), command
        parent, module, *arguments = command[4:]
        given = [parent, FORKING.get(module, module), *arguments]
        return ForkedProcess(self._forks, CHILD, given, env, os.getcwd(), text=False, **streams)


def main() -> None:
    """Fork the server, and be the demo; in a child, be that."""
    script = sys.argv.pop(1)
    if (forked := fork_server()) is None:
        return
    connection, server = forked
    become_subreaper()
    sys.stdout = write_through(1)  # the template's takes the pipe for what the template had there
    sys.path.insert(0, str(EXAMPLES))
    from demo_parts import processes

    names = {**vars(subprocess), "Popen": Children(connection).start}
    processes.subprocess = type(subprocess)("subprocess")  # type: ignore[attr-defined]
    vars(processes.subprocess).update(names)  # type: ignore[attr-defined]
    sys.argv[0] = script
    sys.path.insert(0, os.path.dirname(script))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        connection.shutdown(socket.SHUT_RDWR)  # the server ends, and is not left behind
        os.waitpid(server, 0)


if __name__ == "__main__":
    main()
