"""The processes that write a checkpoint when an iteration is interrupted are ended, with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from contextlib import suppress

import pytest
from nvrx_megatron import writers

from nvrx_core.process.children import running_in_group
from tests.harness.process.host import eventually

CHAINS = 8
WRITER = f"""
import os, signal, time
if any(os.fork() == 0 for _ in range({CHAINS})):
    for number in range(150):
        if number == 5:
            os.write(1, b"x")
        time.sleep(0.002)
        if os.fork():
            break
while True:
    signal.pause()
"""
"""At the begin of its save: it starts children, each of which starts one, and so on."""


def test_a_writer_that_is_starting_children_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    line = [sys.executable, "-S", "-c", WRITER]
    with subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(CHAINS) == CHAINS * b"x"
            writer = types.SimpleNamespace(pid=process.pid, join=process.wait)
            monkeypatch.setattr(writers, "_background_writers", lambda: iter([writer]))
            writers.AbortCheckpointWriters()(types.SimpleNamespace(iteration=1))  # type: ignore[arg-type]
            assert eventually(lambda: running_in_group(process.pid) == [], 30)
            assert process.wait(30) == -signal.SIGKILL
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
