"""The NVLink domain of a node, as `nvidia-smi -q` names it."""

from __future__ import annotations

import pytest
from nvrx_launcher.nvlink_domain import parse_nvlink_domain

UUID = "50DEA9A8-1bb3-4fbd-b76f-7d4c0f0a3e6f"
ZEROS = "00000000-0000-0000-0000-000000000000"
GPU = """\
GPU 00000008:01:00.0
    Product Name                          : NVIDIA GB200
    GPU UUID                              : GPU-0d3f5a51-9a9d-1c1e-8f3a-000000000000
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : {1}
        ClusterUUID                       : {0}
"""


@pytest.mark.parametrize(
    ("uuids", "domain", "problem"),
    [
        ([UUID, UUID], f"{UUID.lower()}.32766", ""),
        ([ZEROS, ZEROS], "", "its GPUs have no ClusterUUID"),
        (["N/A"], "", "its GPUs have no ClusterUUID"),
        ([], "", "nvidia-smi -q names no ClusterUUID"),
        (
            [UUID, ZEROS],
            "",
            f"its GPUs are in different domains (ClusterUUID and CliqueId): {ZEROS}.32766, {UUID.lower()}.3",
        ),
        ([UUID, UUID[::-1]], "", "its GPUs are in different domains (ClusterUUID and CliqueId): "),
    ],
)
def test_the_domain_is_the_one_cluster_of_all_gpus(uuids, domain, problem):
    found = parse_nvlink_domain("".join(GPU.format(uuid, 32766) for uuid in uuids))
    assert found[0] == domain
    assert found[1].startswith(problem)
    assert bool(found[0]) != bool(found[1])


def domain_of(*cliques):
    return parse_nvlink_domain("".join(GPU.format(UUID, clique) for clique in cliques))


def test_partitions_of_one_rack_are_domains_of_their_own():
    assert domain_of(1, 1) == (f"{UUID.lower()}.1", "")
    assert domain_of(2, 2) == (f"{UUID.lower()}.2", "")


def test_a_node_that_is_in_two_partitions_is_in_no_domain():
    found = f"{UUID.lower()}.1, {UUID.lower()}.2"
    assert domain_of(1, 2, 1) == ("", f"its GPUs are in different domains (ClusterUUID and CliqueId): {found}")


@pytest.mark.parametrize("without", ["N/A", None])
def test_a_driver_without_partitions_names_the_cluster_alone(without):
    text = (
        GPU.format(UUID, without) if without else GPU.replace("        CliqueId                          : {1}\n", "")
    )
    assert parse_nvlink_domain(text.format(UUID)) == (UUID.lower(), "")
