"""Lists of hosts in Slurm's notation, as in `node[01-03,7],gpu5`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

__all__ = ["compress_hosts", "compress_numbers", "expand_hosts", "expected_hosts"]

HOST_LISTS: Final = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
"""The hosts of the step, which may be some of the job's."""
MAX_HOSTS: Final = 1 << 16
PART: Final = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
LIST: Final = re.compile(rf"{PART.pattern}(?:,{PART.pattern})*")
RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")
NUMBERED: Final = re.compile(r"([^.,\[\]]*?)(\d{1,18})([^\d.,\[\]]*(?:\.[^,\[\]]*)?)", re.ASCII)
"""A host whose name, without its domain, has a number: what is before it, the number, and what is after it."""


def expected_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that Slurm has given to a job; () for another one."""
    return next((expand_hosts(environ[name]) for name in HOST_LISTS if environ.get(name)), ())


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the names of a list of hosts in Slurm's notation, as in `node[01-03,7],gpu5`.

    Returns:
        () when it is malformed or has more than 65,536 of them.
    """
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


def compress_hosts(hosts: Iterable[str]) -> str:
    """Return the list of some hosts, each once; `expand_hosts` returns the same hosts."""
    single, numbered = set[str](), dict[tuple[str, str], set[str]]()
    for host in hosts:
        if found := NUMBERED.fullmatch(host):
            numbered.setdefault((found[1], found[3]), set()).add(found[2])
        else:
            single.add(host)
    parts = list(single)
    for (before, after), numbers in numbered.items():
        ranges = compress_numbers(numbers)
        parts.append(f"{before}[{ranges}]{after}" if len(numbers) > 1 else f"{before}{ranges}{after}")
    return ",".join(sorted(parts))


def compress_numbers(numbers: Iterable[str]) -> str:
    """Return numbers as ranges, as in `01-03,7`; those of a range have the width of its first one, at least."""
    ranges = list[tuple[str, str]]()
    for number in sorted(numbers, key=lambda each: (len(each), int(each))):
        first, last = ranges[-1] if ranges else ("", "")
        if first and number == f"{int(last) + 1:0{len(first)}d}":
            ranges[-1] = (first, number)
        else:
            ranges.append((number, number))
    return ",".join(first if first == last else f"{first}-{last}" for first, last in ranges)
