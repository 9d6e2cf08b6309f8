"""The control store of in-process restart, hosted beside the launcher: rank 0 may die like any other.

The launcher only listens. The program that hosts the store is started when the first rank connects, and takes the
listening socket over: a job that does not use it pays nothing.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys

from nvrx_core.process.lifeline import ParentDeathSignal

__all__ = ["StoreHost"]

log = logging.getLogger("nvrx_launcher")


class StoreHost:
    """Listens, and starts the store.

    Args:
        host: the address that the ranks connect to.
    """

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0), backlog=4096)
        self.endpoint = f"{host}:{self._listener.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def fileno(self) -> int:
        """Becomes readable when a rank connects."""
        return self._listener.fileno()

    def start(self, launcher: int) -> None:
        """Start the store on the listening socket; it ends with the launcher."""
        fd = self._listener.fileno()
        command = [sys.executable, "-m", "nvrx_launcher.store_host", str(fd)]
        log.info("host the store of in-process restart at %s", self.endpoint)
        self._process = subprocess.Popen(
            command, pass_fds=(fd,), stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=ParentDeathSignal(launcher).set,  # noqa: PLW1509 - two system calls, no lock
        )  # fmt: skip

    def close(self) -> None:
        """End it."""
        self._listener.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Host the store on a listening socket, whose descriptor is the argument, until this process is killed."""
    from nvrx_core.store.hosting import serve_on

    listener = socket.socket(fileno=int(sys.argv[1]))
    with serve_on(listener, listener.getsockname()[0]):
        signal.pause()


if __name__ == "__main__":
    main()
