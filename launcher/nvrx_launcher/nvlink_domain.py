"""The NVLink domain of this node, by `nvidia-smi`, which is asked once, with a deadline: a driver may not answer."""

from __future__ import annotations

import logging
import re
import subprocess
from contextlib import suppress
from typing import Final

from nvrx_core.process.children import note_child

__all__ = ["find_nvlink_domain", "parse_nvlink_domain"]

log = logging.getLogger("nvrx_launcher")
COMMAND: Final = ("nvidia-smi", "-q")
ANSWER_TIMEOUT: Final = 60.0
"""Seconds; without persistence mode the driver initialises each GPU for the command."""
KILL_TIMEOUT: Final = 1.0
FIELD: Final = re.compile(r"^\s*ClusterUUID\s*:\s*(\S+)\s*$", re.MULTILINE)
NO_DOMAIN: Final = re.compile(r"n/a|[0-]*")
"""A GPU outside a domain of several nodes has a UUID of zeros."""


def find_nvlink_domain(timeout: float = ANSWER_TIMEOUT) -> str:
    """Return the ClusterUUID of this node's GPUs; "" where there is none, which is logged with the reason.

    Args:
        timeout: seconds that `nvidia-smi` has to answer.
    """
    try:
        program = subprocess.Popen(
            COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        domain, problem = "", f"nvidia-smi cannot be started: {error.strerror}"
    else:
        note_child(program.pid)
        domain, problem = _answer(program, timeout)
    if problem:
        log.warning("this node has no NVLink domain, and is a segment of its own: %s", problem)
    return domain


def _answer(program: subprocess.Popen[str], timeout: float) -> tuple[str, str]:
    """Return the domain, and what is wrong."""
    with suppress(subprocess.TimeoutExpired):
        text, _ = program.communicate(timeout=timeout)
        if program.returncode:
            return "", f"nvidia-smi exits with code {program.returncode}: {text.strip()[:200]}"
        return parse_nvlink_domain(text)
    program.kill()
    with suppress(subprocess.TimeoutExpired):  # in a driver call that does not return, it cannot be killed
        program.wait(KILL_TIMEOUT)
    if program.stdout is not None:
        program.stdout.close()
    return "", f"nvidia-smi has not answered within {timeout:g} s"


def parse_nvlink_domain(text: str) -> tuple[str, str]:
    """Return the ClusterUUID in the output of `nvidia-smi -q`, and why there is none; one of both is empty.

    The GPUs of a node are in one domain; where they differ, the node is in none.
    """
    named = [each.lower() for each in FIELD.findall(text)]
    found = {each for each in named if not NO_DOMAIN.fullmatch(each)}
    if not found:
        return "", "its GPUs have no ClusterUUID" if named else "nvidia-smi -q names no ClusterUUID"
    if len(found) > 1 or len(found) < len(set(named)):
        return "", f"its GPUs have different ClusterUUIDs: {', '.join(sorted(set(named)))}"
    return found.pop(), ""
