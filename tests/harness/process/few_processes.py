"""A limit on processes and threads, which the kernel counts for each user."""

from __future__ import annotations

import ctypes
import os
import resource

__all__ = ["FIRST_USER", "few_processes"]

FIRST_USER = 1_000_000  # a user id, unique by the pid, that has no other processes
PR_SET_KEEPCAPS = 8
CAPABILITY_VERSION_3 = 0x20080522
PR_CAP_AMBIENT, RAISE = 47, 2
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
READ_ALL = 1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH


def few_processes(limit: int) -> None:
    """The kernel counts those of a user, and root's not at all; this user may still read what root may, and
    so may the programs that it starts."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setuid(FIRST_USER + os.getpid())
    libc.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)(READ_ALL, READ_ALL, READ_ALL))
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAP_AMBIENT, RAISE, capability, 0, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
