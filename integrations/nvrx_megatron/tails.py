"""The ends of a save that a fault must not tear: files that one rank writes by itself, after the collectives.

Megatron-LM truncates its tracker file and its file of timeouts, and then writes them. A rank that ends in between
leaves an empty file, on which every rank's next load gives up. Here each is replaced as a whole, within
`CallWrapper.atomic()`; torch's metadata, which torch renames itself, is written within it, too. A collective is never
within a section.
"""

from __future__ import annotations

import builtins
import functools
import os
from collections.abc import Callable
from typing import Any

from nvrx_megatron.atomic_file import replacing, section
from nvrx_megatron.internals import TRACKER

__all__ = ["protect_metadata", "protect_tails"]


def protect_tails() -> None:
    """Protect the tracker file, the file of timeouts and torch's metadata; a second call does nothing."""
    from megatron.training import checkpointing, ft_integration

    _replace_opener(*_tracker_opener(checkpointing), TRACKER)
    if "open" not in vars(ft_integration):
        vars(ft_integration)["open"] = _opening(builtins.open, "ft_state.json")
    protect_metadata()


def _tracker_opener(checkpointing: Any) -> tuple[Any, str]:
    """Where the module finds what opens a file: from 0.19 on in an object of its own."""
    return (checkpointing.maybe_msc, "open") if hasattr(checkpointing, "maybe_msc") else (checkpointing, "open_file")


def _replace_opener(home: Any, name: str, file: str) -> None:
    opener = getattr(home, name)
    if not hasattr(opener, "__nvrx__"):
        setattr(home, name, _opening(opener, file))


def _opening(opener: Callable[..., Any], file: str) -> Callable[..., Any]:
    """Open files as `opener` does, but replace the one of this name as a whole."""

    def opened(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        local = isinstance(path, str | os.PathLike) and "://" not in str(path)
        if mode == "w" and local and os.path.basename(path) == file:
            return replacing(path)
        return opener(path, mode, *args, **kwargs)

    opened.__nvrx__ = True  # type: ignore[attr-defined]
    return opened


def protect_metadata() -> None:
    """Hold off restarts while torch writes and renames the metadata of a checkpoint, which one rank does by itself."""
    from torch.distributed.checkpoint import FileSystemWriter

    for kind in FileSystemWriter.__mro__:
        finish = vars(kind).get("finish")
        if finish is not None:
            if not hasattr(finish, "__nvrx__"):
                kind.finish = _protected(finish)  # type: ignore[attr-defined]
            return


def _protected(finish: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(finish)
    def finished(writer: Any, *args: Any, **kwargs: Any) -> Any:
        with section(f"the metadata of {writer.path}"):
            return finish(writer, *args, **kwargs)

    finished.__nvrx__ = True  # type: ignore[attr-defined]
    return finished
