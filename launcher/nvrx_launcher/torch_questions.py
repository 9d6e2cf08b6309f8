"""Queries of torch in another process: how many devices there are, and which processors are near them.

Private names of torch that the launcher uses are here alone: `torch._utils.cpu_count`, and
`torch.numa.binding._get_logical_cpus_to_bind_to`, which is what torchrun's --numa-binding binds to.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from nvrx_core.errors import ConfigurationError

__all__ = ["count_devices", "processors_near_devices"]

COUNT: Final = """\
import sys, torch
kind = sys.argv[1]
accelerator = getattr(torch, {"gpu": "cuda", "xpu": "xpu"}.get(kind, "accelerator"))
found = kind != "cpu" and accelerator.is_available() and accelerator.device_count()
print(found or (torch._utils.cpu_count() if kind in ("auto", "cpu") else 0))
"""
PROCESSORS: Final = """\
import json, sys
from torch.numa import binding
options = binding.NumaOptions(affinity_mode=binding.AffinityMode(sys.argv[1]))
near = [binding._get_logical_cpus_to_bind_to(gpu_index=n, numa_options=options) for n in range(int(sys.argv[2]))]
print(json.dumps([sorted(each) for each in near]))
"""


def count_devices(kind: str) -> int:
    """Count the devices of a kind.

    Raises:
        ConfigurationError: when there are none.
    """
    answer, why = _ask(COUNT, kind)
    if not answer.isdigit() or answer == "0":
        why = f"torch finds no {kind}" if answer == "0" else why
        raise ConfigurationError("command line", "--nproc-per-node", f"{kind}: {why}", "write a number")
    return int(answer)


def processors_near_devices(mode: str, workers: int) -> list[frozenset[int]]:
    """Return the processors for each local rank, whose GPU has the same number.

    Args:
        mode: one of torch's modes of --numa-binding.
        workers: how many there are.

    Raises:
        ConfigurationError: when torch does not know, as without GPUs.
    """
    answer, why = _ask(PROCESSORS, mode, str(workers))
    try:
        near = [frozenset[int](each) for each in json.loads(answer)]
    except ValueError:
        raise ConfigurationError("command line", "--numa-binding", f"{mode}: {why}", "leave it out") from None
    if not all(near):
        problem = f"{mode}: no processor for local rank {near.index(frozenset())}"
        raise ConfigurationError("command line", "--numa-binding", problem, "leave it out")
    return near


def _ask(program: str, *arguments: str) -> tuple[str, str]:
    """Return what the program has printed, and the last line of its errors."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip(), done.stderr.strip().rpartition("\n")[2]
