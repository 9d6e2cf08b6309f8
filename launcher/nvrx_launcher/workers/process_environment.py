"""The environment of this process, for workers that are functions; beside the command line, the launcher's one place.

A new interpreter inherits what its parent has at the moment that it is started; a function's own process sets the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["become", "exactly", "inherited"]


def inherited() -> dict[str, str]:
    """Return the environment of this process."""
    return dict(os.environ)


def become(variables: Mapping[str, str]) -> None:
    """Make it the environment of this process."""
    os.environ.clear()
    os.environ.update(variables)


@contextmanager
def exactly(variables: Mapping[str, str]) -> Iterator[None]:
    """Have it as the environment of this process meanwhile."""
    before = inherited()
    become(variables)
    try:
        yield
    finally:
        become(before)
