"""A launcher on a host that NVRX_TEST_HOST names, whose kernel log is the file NVRX_TEST_KMSG."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from nvrx_launcher.cli import run

from nvrx_core.process.kernel_log import NewRecords

if __name__ == "__main__":
    host, log = os.environ["NVRX_TEST_HOST"], Path(os.environ["NVRX_TEST_KMSG"])
    socket.gethostname = lambda: host
    NewRecords.__init__.__defaults__ = (log,)
    run()
