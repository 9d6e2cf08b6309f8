"""The rank of a node by the infrastructure, from the environment of its launcher. Pure.

The sources are those of nvidia-resiliency-ext; the first one that says a rank counts. Where a node has none, the names
of the hosts order the ranks (`rendezvous/placement.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.parsing import MAX_INTEGER, count_in

__all__ = ["DEFAULT_ORDER", "infrastructure_rank", "rank_sources"]

DEFAULT_ORDER: Final = "slurm-procid,group-rank"
ONE_BLOCK: Final = 10**10
"""Ranks of a block whose number of nodes Slurm does not tell."""


def _digits(name: str) -> int:
    """Return the number that the digits of a name form, as 17012 of rack17-gpu012; -1 for none."""
    return count_in("".join(re.findall(r"[0-9]", name)))


def _of_array(environ: Mapping[str, str]) -> int:
    nodes = environ.get("SLURM_NNODES") or environ.get("SLURM_JOB_NUM_NODES", "")
    parts = [
        count_in(each) for each in (environ.get("SLURM_ARRAY_TASK_ID", ""), nodes, environ.get("SLURM_PROCID", ""))
    ]
    task, count, process = parts
    return -1 if min(parts) < 0 else task * count + process


def _of_topology(environ: Mapping[str, str]) -> int:
    """Return the rank by the block of a node and its name, as Slurm's topology/block plug-in gives them."""
    block, dot, node = environ.get("SLURM_TOPOLOGY_ADDR", "").partition(".")
    if environ.get("SLURM_TOPOLOGY_ADDR_PATTERN") != "block.node" or not dot:
        return -1
    given = environ.get("SLURM_TOPOLOGY_NODES_PER_BLOCK", "")
    most, first, second = count_in(given) if given else ONE_BLOCK, _digits(block), _digits(node)
    return first * most + second if first >= 0 and 0 <= second < most else -1


SOURCES: Final[Mapping[str, Callable[[Mapping[str, str]], int]]] = {
    "slurm-procid": lambda environ: count_in(environ.get("SLURM_PROCID", "")),
    "group-rank": lambda environ: count_in(environ.get("GROUP_RANK", "")),
    "cross-slurm-procid": lambda environ: count_in(environ.get("CROSS_SLURM_PROCID", "")),
    "array": _of_array,
    "topology": _of_topology,
    "nodename": lambda environ: _digits(environ.get("SLURMD_NODENAME", "")),
}


def rank_sources(text: str) -> tuple[str, ...]:
    """Read sources with commas between them.

    Raises:
        ConfigurationError: when there is none, or one is unknown.
    """
    sources = tuple(each.strip() for each in text.split(","))
    if unknown := [each for each in sources if each not in SOURCES]:
        problem = f"{unknown[0]!r} is no source of ranks"
        raise ConfigurationError("command line", "--ft-rank-order", problem, f"write some of {','.join(SOURCES)}")
    return sources


def infrastructure_rank(sources: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Return the rank that the first of the sources says; -1 if none of them does, or none that a message can have."""
    return next((rank for source in sources if 0 <= (rank := SOURCES[source](environ)) <= MAX_INTEGER), -1)
