"""`examples/lightning/demo.py` in a process that a template has forked: what it starts is forked as well.

The demo starts a launcher with three ranks for each of its runs, and the command that verifies it: each would import
Lightning. They are children of the demo here, too, which adopts them; only in /proc are their environments those of
the template.
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
from tests.harness.process.launch import FORKING_LAUNCHER, ForkedProcess
from tests.harness.process.template import become, serve

__all__: list[str] = []

EXAMPLES = Path(__file__).parents[3] / "examples"
CHILD = "tests.harness.lightning.demo_child"


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
        given = [parent, FORKING_LAUNCHER if module == "nvrx_launcher" else module, *arguments]
        return ForkedProcess(self._forks, CHILD, given, env, os.getcwd(), **streams)


def main() -> None:
    """Fork the server, and be the demo; in a child, be that."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        become_subreaper()
        sys.stdout = write_through(1)  # the template's takes the pipe for what the template had there
        sys.path.insert(0, str(EXAMPLES))
        from demo_parts import processes

        names = {**vars(subprocess), "Popen": Children(ours).start}
        processes.subprocess = type(subprocess)("subprocess")  # type: ignore[attr-defined]
        vars(processes.subprocess).update(names)  # type: ignore[attr-defined]
        runpy.run_path(str(EXAMPLES / "lightning" / "demo.py"), run_name="__main__")
        return
    ours.close()
    if (child := serve(theirs)) is None:
        os._exit(0)
    become(child)


if __name__ == "__main__":
    main()
