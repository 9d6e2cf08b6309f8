"""Mistakes of the first hour, as real scripts: each ends at once, with a line that says what to write instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import asyncio
from datetime import timedelta
import torch.distributed as dist
from nvrx_core.inprocess import Wrapper
from nvrx_core.inprocess.abort import AbortTorchDistributed

{body}
"""
PLAIN = "@Wrapper({parameters})\ndef train():\n    print('entered')\ntrain()"
MISTAKES = {
    "no parentheses": ("@Wrapper\ndef train(): pass", "write @Wrapper() above it"),
    "async function": (
        "@Wrapper()\nasync def train(): pass",
        "whose body is: asyncio.run(train(...))",
    ),
    "generator": ("@Wrapper()\ndef train(): yield", "train is a generator function"),
    "argument missing": (
        "@Wrapper()\ndef train(model): pass\ntrain()",
        "train(): missing a required argument",
    ),
    "seconds": (PLAIN.format(parameters="soft_timeout=30"), "write soft_timeout=timedelta(seconds=30)"),
    "timeout too long": (
        PLAIN.format(parameters="soft_timeout=timedelta(seconds=100)"),
        "soft_timeout=100 s: must be shorter than hard_timeout=90 s",
    ),
    "class": (PLAIN.format(parameters="abort=AbortTorchDistributed"), "write abort=AbortTorchDistributed()"),
    "text": (PLAIN.format(parameters="no_progress_limit='3'"), "write no_progress_limit=3"),
    "torch's store": (
        PLAIN.format(parameters="store_factory=dist.TCPStore"),
        "write store_factory=nvrx_core.inprocess.store.TCPStore",
    ),
    "nested": (
        "@Wrapper()\ndef inner(): pass\n@Wrapper()\ndef outer(): inner()\nouter()",
        "wrap the outer function only; its restarts cover what it calls",
    ),
}


def run(tmp_path: Path, body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=body))
    ours = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(
        [sys.executable, str(script)], env=ours, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_at_once_and_says_what_to_write(tmp_path: Path, mistake: str) -> None:
    body, told = MISTAKES[mistake]
    done = run(tmp_path, body)
    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]
    assert "restart 1" not in done.stderr


def test_an_endpoint_with_a_scheme_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, PLAIN.format(parameters=""), NVRX_STORE_ENDPOINT="http://127.0.0.1:29501")
    assert done.returncode == 1
    assert "write NVRX_STORE_ENDPOINT=node7:29501, without a scheme or a path" in done.stderr.splitlines()[-1]


def test_a_script_without_any_environment_is_a_world_of_one(tmp_path: Path) -> None:
    body = "@Wrapper()\ndef train():\n    dist.init_process_group('gloo')\n    print(dist.get_world_size())\ntrain()"
    done = run(tmp_path, body)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "restart" not in done.stderr
