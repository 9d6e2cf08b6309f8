"""Bindings of workers to CPUs and memory: set in the child before exec, and inherited by its program.

Either torch's modes (--numa-binding), which bind to CPUs, or NVRX_GPUS_PER_NUMA, the number of GPUs per NUMA node,
which binds workers to the CPUs and the memory of their node.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.process.libc import libc
from nvrx_launcher.options import LaunchOptions

__all__ = ["Binding", "bindings", "processors_of"]

log = logging.getLogger("nvrx_launcher")
NODES: Final = Path("/sys/devices/system/node")
SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
"""The number of set_mempolicy(2), by machine; the C library has no wrapper for it."""
MPOL_BIND: Final = 2
MPOL_LOCAL: Final = 4
LONG_BITS: Final = 8 * ctypes.sizeof(ctypes.c_ulong)


@dataclass(frozen=True)
class Binding:
    """The CPUs and memory of a worker.

    Attributes:
        processors: the numbers of the CPUs.
        memory: numbers of the NUMA nodes whose memory it may use; None: any.
        is_local: prefer the memory local to the CPU that it runs on.
    """

    processors: frozenset[int]
    memory: frozenset[int] | None = None
    is_local: bool = False

    def apply(self) -> None:
        """Bind the calling process, in the child between fork and exec.

        Raises:
            OSError: when the kernel refuses.
        """
        os.sched_setaffinity(0, self.processors)
        if self.memory is not None:
            _set_memory_policy(MPOL_BIND, self.memory)
        elif self.is_local:
            _set_memory_policy(MPOL_LOCAL, frozenset())


def bindings(
    options: LaunchOptions, is_strict: bool, near_devices: Callable[[str, int], list[frozenset[int]]]
) -> list[Binding | None]:
    """Return the binding of each local rank, None where there is none.

    Args:
        options: what was asked for.
        is_strict: with NVRX_GPUS_PER_NUMA, never use the memory of other NUMA nodes.
        near_devices: asks torch for the CPUs near the devices.

    Raises:
        ConfigurationError: when a NUMA node does not exist, or torch cannot tell the CPUs near a device.
    """
    count = options.workers
    if options.numa_binding:
        return [Binding(near) for near in near_devices(options.numa_binding, count)]
    if options.gpus_per_numa is None:
        return [None] * count
    can_bind_memory = _memory_policies_are_allowed()
    if not can_bind_memory:
        log.warning("the kernel refuses set_mempolicy: workers are bound to processors, and not to memory")
    nodes = [local_rank // options.gpus_per_numa for local_rank in range(count)]
    return [_to_node(node, is_strict and can_bind_memory, can_bind_memory) for node in nodes]


def processors_of(text: str) -> frozenset[int]:
    """Parse a CPU list of the kernel, as in 0-3,8."""
    spans = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(number for first, _, last in spans for number in range(int(first), int(last or first) + 1))


def _to_node(node: int, is_strict: bool, can_bind_memory: bool) -> Binding:
    try:
        processors = processors_of((NODES / f"node{node}" / "cpulist").read_text()) & os.sched_getaffinity(0)
    except OSError:
        processors = frozenset()
    if not processors:
        problem = f"there is no NUMA node {node} with a processor for this process"
        raise ConfigurationError("environment", "NVRX_GPUS_PER_NUMA", problem, "write more GPUs for a node")
    return Binding(processors, frozenset({node}) if is_strict else None, is_local=can_bind_memory and not is_strict)


def _memory_policies_are_allowed() -> bool:
    """Return whether set_mempolicy is permitted; containers often forbid it."""
    try:
        _set_memory_policy(MPOL_LOCAL, frozenset(), dry=True)
    except OSError:
        return False
    return True


def _set_memory_policy(mode: int, nodes: frozenset[int], *, dry: bool = False) -> None:
    """Call set_mempolicy(2); `dry` passes an invalid mode, which a kernel that permits the call rejects."""
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "set_mempolicy")
    length = (max(nodes, default=0) // LONG_BITS + 1) * LONG_BITS
    mask = (ctypes.c_ulong * (length // LONG_BITS))()
    for node in nodes:
        mask[node // LONG_BITS] |= 1 << node % LONG_BITS
    arguments = (-1, None, 0) if dry else (mode, mask if nodes else None, length + 1 if nodes else 0)
    if libc().syscall(number, *map(_argument, arguments)) and not (dry and ctypes.get_errno() == errno.EINVAL):
        raise OSError(ctypes.get_errno(), "set_mempolicy")


def _argument(value: object) -> object:
    return ctypes.c_ulong(value & (1 << LONG_BITS) - 1) if isinstance(value, int) else value
