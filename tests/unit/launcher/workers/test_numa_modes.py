"""Modes of --numa-binding on a machine that is not there: its tree of /sys, and its GPUs.

Two NUMA nodes with four cores each, of two processors each (n and n + 8), two of which share a cache (a core complex).
"""

from __future__ import annotations

import pytest
from nvrx_launcher import torch_questions

from nvrx_core.errors import ConfigurationError

NODES = {0: (0, 1, 2, 3, 8, 9, 10, 11), 1: (4, 5, 6, 7, 12, 13, 14, 15)}
MACHINE = """\
import builtins, os, torch
from types import SimpleNamespace
from torch.numa import binding
root, nodes, listdir = {root!r}, {nodes!r}, os.listdir
binding.open = lambda path: builtins.open(root + path)
os.listdir = lambda path: listdir(root + path if path.startswith("/sys/") else path)
os.sched_getaffinity = lambda _: set(range(16))
torch.cuda.device_count = lambda: len(nodes)
torch.cuda.get_device_properties = lambda gpu: SimpleNamespace(pci_domain_id=0, pci_bus_id=gpu, pci_device_id=0)
"""


def listed(numbers):
    return ",".join(map(str, numbers))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return what places GPUs on NUMA nodes."""

    def write(path, text):
        target = tmp_path / "sys" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")

    def place(*nodes):
        write("devices/system/node/possible", "0-1")
        for node, processors in NODES.items():
            write(f"devices/system/node/node{node}/cpulist", listed(processors))
        for cpu in range(16):
            core, path = cpu % 8, f"devices/system/cpu/cpu{cpu}"
            write(f"{path}/topology/thread_siblings_list", listed((core, core + 8)))
            complex_ = core // 2 * 2
            caches = (("Data", 1, (core, core + 8)), ("Instruction", 4, (cpu,)),
                      ("Unified", 3, (complex_, complex_ + 1, complex_ + 8, complex_ + 9)))  # fmt: skip
            for index, (kind, level, shared) in enumerate(caches):
                write(f"{path}/cache/index{index}/type", kind)
                write(f"{path}/cache/index{index}/level", level)
                write(f"{path}/cache/index{index}/shared_cpu_list", listed(shared))
        for gpu, node in enumerate(nodes):
            write(f"bus/pci/devices/0000:{gpu:02x}:00.0/numa_node", node)
        fake = MACHINE.format(root=str(tmp_path), nodes=nodes)
        monkeypatch.setattr(torch_questions, "PROCESSORS", fake + torch_questions.PROCESSORS)

    return place


def test_exclusive_shares_out_the_cores_of_a_node(machine):
    """Three GPUs on four cores: the first one has two."""
    machine(0, 0, 0, 1)
    assert torch_questions.processors_near_devices("exclusive", 4) == [{0, 1, 8, 9}, {2, 10}, {3, 11}, set(NODES[1])]


def test_core_complex_gives_each_gpu_the_processors_of_a_cache(machine):
    """The third GPU of a node with two caches has the first one's again."""
    machine(0, 0, 0, 1)
    first, second, third = {0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}
    assert torch_questions.processors_near_devices("core-complex", 4) == [first, second, first, third]


def test_more_gpus_than_cores_cannot_be_exclusive(machine):
    machine(0, 0, 0, 0, 0)
    with pytest.raises(ConfigurationError, match=r"--numa-binding: exclusive: .*only 4 physical cores.*leave it out"):
        torch_questions.processors_near_devices("exclusive", 5)
