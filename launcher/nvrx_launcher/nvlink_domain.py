"""The NVLink domain of this node, by `nvidia-smi`, which is asked once, with a deadline: a driver may not answer.

Two GPUs reach each other over NVLink if they have the same ClusterUUID, that of the switches, and the same CliqueId,
that of the partition (`nvmlGpuFabricInfo_t` in NVML's reference). A rack that its administrator has divided has several
partitions. The domain is both, `<ClusterUUID>.<CliqueId>`, as in the label nvidia.com/gpu.clique of Kubernetes.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from nvrx_core.process.children import end_child, start_child

__all__ = ["find_nvlink_domain", "parse_nvlink_domain"]

log = logging.getLogger("nvrx_launcher")
COMMAND: Final = ("nvidia-smi", "-q")
ANSWER_TIMEOUT: Final = 60.0
"""Seconds; without persistence mode the driver initialises each GPU for the command."""
KILL_TIMEOUT: Final = 1.0
FIELD: Final = re.compile(r"^(?:(GPU) \S+|\s*(ClusterUUID|CliqueId)\s*:\s*(\S+))\s*$", re.MULTILINE)
"""The first line of a GPU's part, or a field of its fabric."""
NO_DOMAIN: Final = re.compile(r"n/a|[0-]*")
"""A GPU outside a domain of several nodes has a UUID of zeros."""
NO_CLIQUE: Final = "n/a"


def find_nvlink_domain(timeout: float = ANSWER_TIMEOUT) -> str:
    """Return the NVLink domain of this node's GPUs; "" where there is none, which is logged with the reason.

    Args:
        timeout: seconds that `nvidia-smi` has to answer.
    """
    try:
        program = start_child(COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        domain, problem = "", f"nvidia-smi cannot be started: {error.strerror}"
    else:
        domain, problem = _answer(program, timeout)
    if problem:
        log.warning("this node has no NVLink domain, and is a segment of its own: %s", problem)
    return domain


def _answer(program: subprocess.Popen[bytes], timeout: float) -> tuple[str, str]:
    """Return the domain, and what is wrong."""
    with suppress(subprocess.TimeoutExpired):
        output, _ = program.communicate(timeout=timeout)
        text = output.decode(errors="replace")
        if program.returncode:
            return "", f"nvidia-smi exits with code {program.returncode}: {text.strip()[:200]}"
        return parse_nvlink_domain(text)
    end_child(program, KILL_TIMEOUT)
    return "", f"nvidia-smi has not answered within {timeout:g} s"


def parse_nvlink_domain(text: str) -> tuple[str, str]:
    """Return the domain in the output of `nvidia-smi -q`, and why there is none; one of both is empty.

    The GPUs of a node are in one domain; where they differ, the node is in none. A driver that names no CliqueId knows
    no partitions: the domain is the ClusterUUID then.
    """
    gpus = list(_fabrics(text))
    named = sorted({_domain(each) for each in gpus if "ClusterUUID" in each})
    found = [each for each in named if not NO_DOMAIN.fullmatch(each.partition(".")[0])]
    if not found:
        return "", "its GPUs have no ClusterUUID" if named else "nvidia-smi -q names no ClusterUUID"
    if len(named) > 1:
        return "", f"its GPUs are in different domains (ClusterUUID and CliqueId): {', '.join(named)}"
    return found[0], ""


def _fabrics(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each GPU's fabric."""
    gpu = dict[str, str]()
    for line in FIELD.finditer(text):
        if line[1] or line[2] in gpu:
            yield gpu
            gpu = {}
        if line[2]:
            gpu[line[2]] = line[3].lower()
    yield gpu


def _domain(gpu: dict[str, str]) -> str:
    clique = gpu.get("CliqueId", NO_CLIQUE)
    return gpu["ClusterUUID"] if clique == NO_CLIQUE else f"{gpu['ClusterUUID']}.{clique}"
