"""The limit of open files of a process that holds a connection of each rank or node.

Its soft limit is raised for them. The processes that it starts have the one that it was started with: a program that
closes all descriptors up to its limit, or uses select(2), counts on a small one.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

__all__ = ["allow_more_files", "first_file_limit", "set_file_limit"]

MORE: Final = 1 << 18
"""Descriptors for connections: three each of 80,000 ranks."""


class _FileLimit:
    """The limit of this process.

    Attributes:
        first: the soft limit before it was raised; None: it was not.
    """

    first: int | None = None


def allow_more_files() -> None:
    """Raise the soft limit of open files, as far as the hard one allows; a second call changes nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = soft if _FileLimit.first is None else _FileLimit.first
    if first == resource.RLIM_INFINITY:
        return
    wanted = first + MORE if hard == resource.RLIM_INFINITY else min(hard, first + MORE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with suppress(OSError, ValueError):  # the kernel's own limit was lowered meanwhile: the present one has to do
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _FileLimit.first = first


def first_file_limit() -> int | None:
    """Return the soft limit before it was raised; None: it was not."""
    return _FileLimit.first


def set_file_limit(soft: int | None) -> None:
    """Give a child of this process, in it, what `first_file_limit` has returned; a few system calls."""
    if soft is not None:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
