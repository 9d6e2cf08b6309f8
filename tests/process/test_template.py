"""A process that is forked from the template ends as an interpreter of its own does."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.harness.process.launch import RUN_SCRIPT, ForkedProcess

from .conftest import Launch

PRELUDE = "import atexit, os, signal, sys, threading, time\natexit.register(print, 'at exit')\nprint('begins')\n"
ENDS = {
    "returns": ("", 0),
    "a code": ("sys.exit(3)", 3),
    "a text": ("sys.exit('it is over')", 1),
    "nothing": ("raise SystemExit", 0),
    "an exception": ("raise ValueError('injected')", 1),
    "ctrl-c": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT),
    "a thread that is waited for": ("threading.Timer(0.1, print, ('in a thread',)).start()", 0),
    "a thread that is not": ("threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", 0),
    "threads of a process group": (
        "import torch.distributed as dist; dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)",
        0,
    ),
    "an error at exit": ("atexit.register(lambda: 1 / 0)", 0),
}


@pytest.mark.parametrize("case", ENDS)
def test_code_and_output_are_those_of_an_interpreter(prepare: Launch, case: str) -> None:
    body, code = ENDS[case]
    job = prepare(world=1, store=False)
    script = job.directory / "script.py"
    script.write_text(PRELUDE + body)
    environment = job.environment(0)
    alone = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    for whole_end in ("", "1"):
        with ForkedProcess(
            job.template, RUN_SCRIPT, [str(script)], {**environment, "NVRX_TEST_WHOLE_END": whole_end}
        ) as process:
            out, errors = process.communicate(timeout=30)
        assert (process.returncode, out) == (code, alone.stdout) == (alone.returncode, out), errors
        assert errors.splitlines()[-1:] == alone.stderr.splitlines()[-1:]
