"""The report of a worker's failure."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from nvrx_core.logs.rank_lines import last_traceback
from nvrx_core.process.signal_names import signal_name
from nvrx_launcher.workers.worker import Failure

__all__ = ["failure_report"]


def failure_report(
    failure: Failure, *, out_of_memory: bool = False, is_shown: bool = False, output: bytes = b""
) -> str:  # fmt: skip
    """Return how a worker ended, and its exception: the one in its error file, if torch's `record` wrote one.

    Args:
        failure: the worker's failure.
        out_of_memory: the OOM killer has killed a process of this cgroup while the worker ran.
        is_shown: what the worker writes to stderr is shown, so that its traceback is not repeated.
        output: its latest output, in which its last traceback is looked for otherwise.
    """
    code = failure.code
    how = f"was ended by {signal_name(-code)}" if code < 0 else f"has failed with exit code {code}"
    if code == -signal.SIGKILL and out_of_memory:
        how += ", and the kernel's OOM killer was active in its cgroup"
    who = f"rank {failure.rank} (local rank {failure.local_rank}, pid {failure.pid})"
    return f"{who} {how}{_exception(failure.error_file, is_shown=is_shown) or _printed(output)}"


def _exception(path: Path, *, is_shown: bool) -> str:
    try:
        message: Any = json.loads(path.read_text())["message"]
        detail = message if isinstance(message, str) else message["message"]
        trace = "" if isinstance(message, str) else message.get("extraInfo", {}).get("py_callstack", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return f": {detail}\n{'' if is_shown else trace}".rstrip()


def _printed(output: bytes) -> str:
    trace = last_traceback(output)
    return f": {trace.splitlines()[-1]}\n{trace}" if trace else ""
