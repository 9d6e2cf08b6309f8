"""Slurm's notation for lists of hosts, as in `node[01-03,7],gpu5`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

__all__ = ["expand_hosts", "expected_hosts"]

VARIABLES: Final = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
"""The hosts of the step, which may be some of the job's."""
MAX_HOSTS: Final = 1 << 16
PART: Final = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
LIST: Final = re.compile(rf"{PART.pattern}(?:,{PART.pattern})*")
RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")


def expected_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that Slurm has given to a job; () for another one."""
    return next((expand_hosts(environ[name]) for name in VARIABLES if environ.get(name)), ())


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the names of a list of hosts, () when it is malformed or has more than 65,536 of them."""
    if not LIST.fullmatch(text):
        return ()
    try:
        found = tuple(islice((host for part in PART.findall(text) for host in _expand(part)), MAX_HOSTS + 1))
    except ValueError:
        return ()
    return found if len(found) <= MAX_HOSTS else ()


def _expand(text: str) -> Iterator[str]:
    """Yield the names of one part of a list; each pair of brackets is a list of numbers and ranges.

    Raises:
        ValueError: when it is malformed.
    """
    before, bracket, rest = text.partition("[")
    if not bracket:
        yield text
        return
    numbers, _, after = rest.partition("]")
    for each in numbers.split(","):
        if (found := RANGE.fullmatch(each)) is None:
            raise ValueError(f"no number: {each!r}")
        width = len(found[1])
        for number in range(int(found[1]), int(found[2] or found[1]) + 1):
            for end in _expand(after):
                yield f"{before}{number:0{width}d}{end}"
