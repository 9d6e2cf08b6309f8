"""The node health service of the examples, with a check that is a line of shell."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.process.host import eventually

__all__ = ["DAEMON", "PARTS", "daemon", "needs_fuse", "write_check"]

PARTS = Path(__file__).parent
DAEMON = PARTS.parents[2] / "examples" / "health" / "nvhcd.py"
needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="mounts need root and /dev/fuse"
)


def write_check(folder: Path, check: str) -> Path:
    """Write the check of the daemon, a shell script."""
    script = folder / "check.sh"
    script.write_text(f"#!/bin/sh\n{check}\n")
    script.chmod(0o755)
    return script


@contextlib.contextmanager
def daemon(folder: Path, check: str, **config: object) -> Iterator[str]:
    """Run the daemon of the examples with this check, a shell script; yields its socket."""
    file = folder / "nvhcd.yaml"
    script = write_check(folder, check)
    path = f"{folder}/s"
    file.write_text(json.dumps({"socket_path": path, "healthcheck_path": str(script)} | config))
    with subprocess.Popen([sys.executable, str(DAEMON), "-config", str(file)], stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: os.path.exists(path) and os.stat(path).st_mode & 0o666 == 0o666, 30)
            yield path
        finally:
            process.terminate()
    assert process.returncode == 0
    assert not os.path.exists(path)
