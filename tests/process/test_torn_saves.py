"""kill -9 at every instant of a save: no checkpoint is torn, none that was finished is lost, each step counts once."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.harness.process import host
from tests.harness.process.job import Template
from tests.harness.process.workers.disk import load

WRITER = "tests.harness.process.workers.writer"
LINES = 21
"""Lines of code that a save runs; a kill before each of them is a kill between any two of its operations."""
SAVE_SECONDS = 0.02


@pytest.mark.parametrize("kills", [50, pytest.param(1000, marks=pytest.mark.nightly)])
def test_no_kill_tears_a_checkpoint(template: Template, tmp_path: Path, kills: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng, folder, account = random.Random(seed), tmp_path / "checkpoints", tmp_path / "account"
    folder.mkdir()
    step = 0
    for kill in range(kills):
        line = kill % (2 * LINES) + 1 if kill % (2 * LINES) < LINES else 0
        live_and_die(template, folder, account, line, rng.uniform(0, 2 * SAVE_SECONDS))
        assert not damaged(folder), f"kill {kill} (line {line}) tore {damaged(folder)}"
        saved, begun = told(account, "saved"), told(account, "begin")
        assert max(step, saved) <= load(folder) <= begun, f"kill {kill} (line {line})"
        step = load(folder)
    assert step >= kills // 4, "hardly anything was saved"


def live_and_die(template: Template, folder: Path, account: Path, line: int, after: float) -> None:
    """One writer, from its birth to its end by SIGKILL."""
    account.write_text("")
    pid = template.fork(WRITER, [str(folder), str(account), str(line)], template.environment(), account)
    try:
        if not line:
            assert host.eventually(lambda: told(account, "begin"), 20), "the writer did not begin"
            time.sleep(after)
            os.kill(pid, signal.SIGKILL)
    finally:
        status = os.waitpid(pid, 0)[1]
    error = Path(f"{account}.err").read_text()
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, error
    assert "damaged" not in error


def told(account: Path, what: str) -> int:
    """The last step that the writer has told of in this life."""
    steps = [int(line.split()[1]) for line in account.read_text().splitlines() if line.startswith(what)]
    return steps[-1] if steps else 0


def damaged(folder: Path) -> list[str]:
    contents = {path.name: path.read_bytes() for path in folder.glob("step-*.ckpt")}
    return [name for name, content in contents.items() if hashlib.sha256(content[32:]).digest() != content[:32]]
