"""Access to `os.environ` for workers that are functions; except for the command line, the launcher's only one.

A new interpreter inherits its parent's environment at the time it is started; a function's process sets the rest.
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
    """Replace the environment of this process."""
    os.environ.clear()
    os.environ.update(variables)


@contextmanager
def exactly(variables: Mapping[str, str]) -> Iterator[None]:
    """Return a context in which this process has exactly this environment."""
    before = inherited()
    become(variables)
    try:
        yield
    finally:
        become(before)
