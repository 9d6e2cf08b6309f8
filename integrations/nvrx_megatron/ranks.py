"""Active and spare ranks from Megatron's flags: a tree with the job as its root and, optionally, its nodes."""

from __future__ import annotations

import socket
from typing import Any

from nvrx_core.errors import ParameterError
from nvrx_core.rank_assignment.tree import Layer, LayerFlag, Tree
from nvrx_megatron.arguments import InprocessArguments, inprocess_arguments
from nvrx_megatron.environment import local_world_size

__all__ = ["megatron_rank_assignment", "ranks_of_a_node"]


def megatron_rank_assignment(args: Any) -> Tree:
    """Return the rank assignment of a Megatron job.

    `--inprocess-active-world-size` ranks train, the others are spares; with fewer ranks the job ends, because
    Megatron's parallel sizes are fixed. With `--inprocess-granularity node`, a node that has lost a rank is excluded as
    a whole.

    Args:
        args: the parsed arguments, or `InprocessArguments`.

    Raises:
        ValueError: when the active world size is not a multiple of a node's ranks, with granularity node.
    """
    given = args if isinstance(args, InprocessArguments) else inprocess_arguments(args)
    active = given.active_world_size
    layers = [Layer(min_ranks=active, max_ranks=active, flag=LayerFlag.RESERVE)]
    if given.granularity == "node":
        layers.append(_node_layer(active))
    return Tree(layers)


def ranks_of_a_node() -> int:
    """Return the number of ranks of a node: its GPUs, as Megatron-LM counts, else LOCAL_WORLD_SIZE."""
    import torch

    return int(torch.cuda.device_count()) or local_world_size()


def _node_layer(active: int) -> Layer:
    size = ranks_of_a_node()
    if active % size:
        rule = f"a multiple of the {size} ranks of a node; or write --inprocess-granularity rank"
        raise ParameterError("--inprocess-active-world-size", active, rule)
    return Layer(min_ranks=size, max_ranks=size, key_or_fn=_hostname, flag=LayerFlag.RESERVE)


def _hostname(_: object) -> str:
    return socket.gethostname()
