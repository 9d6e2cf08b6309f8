"""The stacks of a process, taken from outside while it runs and while it hangs; it is alive afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

TAKES = {"bytecode": 500, "short calls": 200, "sleep": 200, "regular expression": 2}


@pytest.mark.parametrize("where", TAKES)
def test_taking_the_stacks_of_a_process_does_not_end_it(where: str) -> None:
    """Where its threads run, no signal is sent: its handler walks the frames of threads that change them."""
    command = [sys.executable, "-m", "tests.harness.process.workers.stacks", where, str(TAKES[where])]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended
    found = json.loads(ended.stdout)
    assert found["told"] == TAKES[where]
    assert found["longest"] < 5.0, "a rank that is to be ended must not wait long for it"
