"""A rank that runs a script of the stand-in tree, as `-m nvrx_megatron`, by `enable()` or by the compatible names."""

from __future__ import annotations

import logging
import os
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import nvrx_compat
import torch

from examples.megatron import on_cpu
from tests.harness.megatron.plan import Plan
from tests.harness.process.workers.record import Record

__all__: list[str] = []

ALONE = "alone:"
"""In front of a script that is run without a line of nvrx, as by ft_launcher, where its compatible names are found."""
TREE = Path(__file__).with_name("tree")
plan = Plan.of_environment()
record = Record.of_environment()


def moved_tree() -> Path:
    """Copy the tree, with other names for what nvrx looks for in it."""
    folder = Path(tempfile.mkdtemp(dir=record._path.parent))
    shutil.copytree(TREE, folder, dirs_exist_ok=True)
    for path in (folder / "megatron" / "training").glob("*.py"):
        path.write_text(path.read_text().replace("open_file", "open_beside").replace("evaluate(", "evaluate_all("))
    os.environ["NVRX_TEST_SHAPE"] = "0.18"
    return folder


def break_beside() -> None:
    """Inject a fault into this rank while another writes the tracker file."""
    if "1000" in plan.faults:
        record.await_others(1, "tracker")
        time.sleep(0.2)
        record("fault_injected")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "pretrain_gpt.py":  # the others log as Python does by default
        logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    on_cpu.install()
    tree = moved_tree() if plan.shape == "moved" else TREE
    sys.path.insert(0, str(tree))
    script, *words = sys.argv[1:]
    alone = script.startswith(ALONE)
    script = script.removeprefix(ALONE)
    sys.argv[1:] = [str(tree / script), *plan.command_line(), *words]
    if plan.faults.startswith(f"{record._path.stem.removeprefix('rank-')}:") and "1000" in plan.faults:
        threading.Thread(target=break_beside, daemon=True).start()
    if script in ("pretrain_enabled.py", "package/pretrain.py") or alone:
        sys.argv[:] = sys.argv[1:]
        if alone:
            nvrx_compat.activate()
        if "/" in script:
            runpy.run_module("package.pretrain", run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        from nvrx_megatron.__main__ import main

        sys.exit(main(sys.argv[1:]))
