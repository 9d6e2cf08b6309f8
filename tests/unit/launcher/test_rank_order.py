"""What orders the ranks of nodes: the infrastructure's variables, by the precedence that is asked for."""

from __future__ import annotations

import pytest
from nvrx_launcher.arguments import parse_arguments
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.rank_order import DEFAULT_ORDER, infrastructure_rank, rank_sources

from nvrx_core.errors import ConfigurationError

BLOCK = {"SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_TOPOLOGY_ADDR": "block3.gpu017"}
ARRAY = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_PROCID": "5", "SLURM_NNODES": "16"}


@pytest.mark.parametrize(
    ("source", "environ", "rank"),
    [
        ("slurm-procid", {"SLURM_PROCID": "7"}, 7),
        ("slurm-procid", {"SLURM_PROCID": "seven"}, -1),
        ("slurm-procid", {"SLURM_PROCID": "²"}, -1),
        ("slurm-procid", {"SLURM_PROCID": "9" * 5000}, -1),
        ("group-rank", {"GROUP_RANK": "0"}, 0),
        ("cross-slurm-procid", {"CROSS_SLURM_PROCID": "12"}, 12),
        ("array", ARRAY, 37),
        ("array", {**ARRAY, "SLURM_NNODES": "", "SLURM_JOB_NUM_NODES": "8"}, 21),
        ("array", {"SLURM_PROCID": "5", "SLURM_NNODES": "16"}, -1),
        ("topology", BLOCK, 3 * 10**10 + 17),
        ("topology", {**BLOCK, "SLURM_TOPOLOGY_NODES_PER_BLOCK": "18"}, 3 * 18 + 17),
        ("topology", {**BLOCK, "SLURM_TOPOLOGY_NODES_PER_BLOCK": "17"}, -1),
        ("topology", {**BLOCK, "SLURM_TOPOLOGY_NODES_PER_BLOCK": "many"}, -1),
        ("topology", {**BLOCK, "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"}, -1),
        ("topology", {**BLOCK, "SLURM_TOPOLOGY_ADDR": "block3"}, -1),
        ("topology", {**BLOCK, "SLURM_TOPOLOGY_ADDR": "main.gpu017"}, -1),
        ("topology", {**BLOCK, "SLURM_TOPOLOGY_ADDR": "block3.login"}, -1),
        ("topology", {**BLOCK, "SLURM_TOPOLOGY_ADDR": "block922337203.gpu017"}, 9223372030000000017),
        ("topology", {**BLOCK, "SLURM_TOPOLOGY_ADDR": "block2026112501.gpu017"}, -1),
        ("nodename", {"SLURMD_NODENAME": "rack17-gpu012"}, 17012),
        ("nodename", {"SLURMD_NODENAME": "login"}, -1),
        ("nodename", {}, -1),
    ],
)
def test_a_source_says_the_rank_of_a_node(source, environ, rank):
    assert infrastructure_rank((source,), environ) == rank


def test_the_first_source_that_a_node_has_counts():
    environ = {"SLURM_PROCID": "1", "GROUP_RANK": "2", "SLURMD_NODENAME": "gpu3"}
    assert infrastructure_rank(rank_sources(DEFAULT_ORDER), environ) == 1
    assert infrastructure_rank(rank_sources("topology, nodename,slurm-procid"), environ) == 3
    assert infrastructure_rank(rank_sources("array,topology"), environ) == -1


def ordered(*argv, environ):
    return LaunchOptions.of(parse_arguments([*argv, "train.py"], environ)[0], lambda _: 1, environ).order


def test_the_option_and_its_variable_say_which():
    environ = {"SLURM_PROCID": "1", "SLURMD_NODENAME": "gpu3"}
    assert ordered(environ=environ) == 1
    assert ordered("--ft-rank-order", "nodename", environ=environ) == 3
    assert ordered(environ={**environ, "PET_FT_RANK_ORDER": "nodename"}) == 3
    assert ordered("--node-rank", "5", "--ft-rank-order", "nodename", environ=environ) == 5


@pytest.mark.parametrize("text", ["", "slurm-procid,", "hostname"])
def test_an_unknown_source_is_refused_with_those_that_there_are(text):
    with pytest.raises(ConfigurationError, match=r"--ft-rank-order: '.*' is no source of ranks; write some of slurm-"):
        ordered("--ft-rank-order", text, environ={})
