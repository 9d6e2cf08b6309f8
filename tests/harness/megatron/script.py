"""A rank that runs a script of the stand-in tree, as `python -m nvrx_megatron` or by `enable()`."""

from __future__ import annotations

import logging
import runpy
import sys
import threading
import time
from pathlib import Path

import torch

from examples.megatron import on_cpu
from tests.harness.megatron.plan import Plan
from tests.harness.process.workers.record import Record

__all__: list[str] = []

TREE = Path(__file__).with_name("tree")
plan = Plan.of_environment()
record = Record.of_environment()


def break_beside() -> None:
    """Inject a fault into this rank while another writes the tracker file."""
    if "1000" in plan.faults:
        record.await_others(1, "tracker")
        time.sleep(0.2)
        import os
        import signal

        record("fault_injected")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    on_cpu.install()
    sys.path.insert(0, str(TREE))
    script, *words = sys.argv[1:]
    sys.argv[1:] = [str(TREE / script), *plan.command_line(), *words]
    if plan.faults.startswith(f"{record._path.stem.removeprefix('rank-')}:") and "1000" in plan.faults:
        threading.Thread(target=break_beside, daemon=True).start()
    if script == "pretrain_enabled.py":
        sys.argv[:] = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        from nvrx_megatron.__main__ import main

        sys.exit(main(sys.argv[1:]))
