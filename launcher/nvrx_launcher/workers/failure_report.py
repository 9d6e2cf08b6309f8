"""What is said about a worker that has failed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from nvrx_launcher.workers.worker import Worker

__all__ = ["failure_report"]


def failure_report(worker: Worker, code: int, error_file: Path) -> str:
    """Return how a worker ended, and the exception that it has left in its error file.

    Args:
        worker: which one.
        code: how it ended, negative for a signal.
        error_file: what torch's `record` has written; it need not be there.
    """
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has failed with exit code {code}"
    return f"rank {worker.rank} (local rank {worker.local_rank}, pid {worker.pid}) {how}{_exception(error_file)}"


def _exception(path: Path) -> str:
    try:
        message: Any = json.loads(path.read_text())["message"]
        detail = message if isinstance(message, str) else message["message"]
        trace = "" if isinstance(message, str) else message.get("extraInfo", {}).get("py_callstack", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return f": {detail}\n{trace}".rstrip()
