"""The output of a command, which its reader may stop reading."""

from __future__ import annotations

import os
import sys

__all__ = ["show"]


def show(text: str) -> None:
    """Print a text; a reader that has closed the pipe, such as `head` or a pager, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        with open(os.devnull, "wb") as null:  # what is still buffered goes there when the interpreter ends
            os.dup2(null.fileno(), sys.stdout.fileno())
