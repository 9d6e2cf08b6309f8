"""Saves of megatron-core and of torch by `AtomicCheckpoint`, killed at any instant, and on a disk that fails."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.harness.process import host
from tests.harness.process.job import Template
from tests.harness.process.workers.disk import DAMAGES

SAVER = "tests.harness.megatron.saver"
SAVE_SECONDS = 0.15


@pytest.mark.parametrize("kills", [50, pytest.param(1000, marks=pytest.mark.nightly)])
def test_no_kill_leaves_a_checkpoint_that_the_next_load_refuses(megatron: Template, tmp_path: Path, kills: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    folders = {"torch": tmp_path / "torch", "sync": tmp_path / "sync"}
    for number in range(kills):
        kind = "sync" if number % 5 == 0 else "torch"  # the former forks writers, which takes longer
        until = rng.choice(["found", "saved"])  # killed in its first save, or in a later one
        live_and_die(megatron, kind, folders[kind], until, rng.uniform(0, 2 * SAVE_SECONDS))
    assert all(any(folder.glob("step-*")) for folder in folders.values())


def live_and_die(template: Template, kind: str, folder: Path, until: str, after: float) -> None:
    """One saver, from its birth to its end by SIGKILL; it has found what the ones before it saved last, or later."""
    account = folder.with_suffix(".account")
    before, lines_before = told(account, "saved"), len(lines(account, until))
    pid = template.fork(SAVER, [kind, str(folder), str(account), "killed"], environment(template, folder), account)
    try:
        assert host.eventually(lambda: len(lines(account, until)) > lines_before, 60), errors(account)
        time.sleep(after)
    finally:
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        template.sweep()
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, errors(account)
    assert lines(account, "found")[-1] >= before, "a checkpoint that was complete is lost"


def environment(template: Template, folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {**template.environment(), "TMPDIR": str(folder.parent)}


def lines(account: Path, what: str) -> list[int]:
    text = account.read_text() if account.exists() else ""
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith(what)]


def told(account: Path, what: str) -> int:
    """What the savers have told of last."""
    return max(lines(account, what), default=0)


def errors(account: Path) -> str:
    return Path(f"{account}.err").read_text()


WORDS = {
    ("full", "torch"): "No space left on device",
    ("full", "sync"): " was written, whose disk has 0 bytes left",
    ("fsync", "torch"): "Input/output error",
    ("fsync", "sync"): "Input/output error",
}
"""What an error says; megatron-core writes a part in C++, which has no other words than that it failed."""


@pytest.mark.parametrize(("trouble", "kind"), WORDS)
def test_a_disk_that_fails_is_named_and_the_checkpoint_before_is_used(
    megatron: Template, tmp_path: Path, trouble: str, kind: str
) -> None:
    account = live(megatron, kind, tmp_path / "saves", trouble)
    assert lines(account, "found") == [0, 2, 4]
    assert WORDS[trouble, kind] in errors(account)


@pytest.mark.parametrize("kind", ["torch", "sync"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    megatron: Template, tmp_path: Path, kind: str
) -> None:
    account = live(megatron, kind, tmp_path / "saves", "damage")
    assert lines(account, "found") == [0, *[3] * (len(DAMAGES) + 1), 4]
    assert errors(account).count("step-00000004-0 is not used: ") == len(DAMAGES) + 1


def live(template: Template, kind: str, folder: Path, trouble: str) -> Path:
    """One saver, from its birth to its end; returns its account."""
    account = folder.with_suffix(".account")
    pid = template.fork(SAVER, [kind, str(folder), str(account), trouble], environment(template, folder), account)
    status = os.waitpid(pid, 0)[1]
    template.sweep()
    assert os.waitstatus_to_exitcode(status) == 0, errors(account)
    return account
