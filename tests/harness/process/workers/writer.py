"""A process that is killed while it saves: it resumes from the last checkpoint, and saves after each step.

Run with the folder of the checkpoints, the file of its account, and the line of code, counted in its second save, at
which it kills itself (0: it waits to be killed).
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from tests.harness.process.workers.disk import Counter, checkpoints

SECOND = 2


def main(folder: Path, account: Path, line: int) -> None:
    model, told = Counter(), os.open(account, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    first = model.resume(folder)
    for save, step in enumerate(count(first + 1), start=1):
        if save == SECOND and line:
            kill_at(line)
        os.write(told, f"begin {step}\n".encode())
        model.step()
        model.save(folder, step)
        os.write(told, f"saved {step}\n".encode())


def kill_at(line: int) -> None:
    """Kills this process when so many lines of the checkpoint code have run."""
    left = line

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != checkpoints.__file__:
            return None
        left -= event == "line"
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
