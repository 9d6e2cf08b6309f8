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
        CliqueId                          : 32766
        ClusterUUID                       : {}
"""


@pytest.mark.parametrize(
    ("uuids", "domain", "problem"),
    [
        ([UUID, UUID], UUID.lower(), ""),
        ([ZEROS, ZEROS], "", "its GPUs have no ClusterUUID"),
        (["N/A"], "", "its GPUs have no ClusterUUID"),
        ([], "", "nvidia-smi -q names no ClusterUUID"),
        ([UUID, ZEROS], "", f"its GPUs have different ClusterUUIDs: {ZEROS}, {UUID.lower()}"),
        ([UUID, UUID[::-1]], "", "its GPUs have different ClusterUUIDs: "),
    ],
)
def test_the_domain_is_the_one_cluster_of_all_gpus(uuids, domain, problem):
    found = parse_nvlink_domain("".join(GPU.format(uuid) for uuid in uuids))
    assert found[0] == domain
    assert found[1].startswith(problem)
    assert bool(found[0]) != bool(found[1])
