"""The objects of a script that has ended, which its global variables keep alive.

The configuration of a model refers to its optimizer, which refers to process groups. The functions of the script make
the variables part of a reference cycle, and the frames of an exception keep them alive after the iteration.
"""

from __future__ import annotations

import traceback
from typing import Any, Final

__all__ = ["drop_objects", "remember"]

_OWNERS: Final = ("megatron.", "transformer_engine.", "apex.", "torch.nn.", "torch.optim.")
"""Where the types of objects are defined that hold models, optimizers and groups."""
_ended: list[dict[str, Any]] = []


def remember(error: BaseException, script: str) -> None:
    """Note the global variables of the script that `error` has ended, for `drop_objects`."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    _ended.extend(
        frame.f_globals for frame in frames if frame.f_code.co_name == "<module>" and frame.f_code.co_filename == script
    )


def drop_objects() -> None:
    """Drop models, optimizers, configurations and other objects of Megatron from the variables of ended scripts.

    All else stays: what the script has registered in a library, which is imported once, may use it in later iterations.
    """
    while _ended:
        space = _ended.pop()
        for name in [name for name, value in space.items() if _ends_with_the_run(value)]:
            space.pop(name, None)


def _ends_with_the_run(value: Any) -> bool:
    return any(kind.__module__.startswith(_OWNERS) for kind in type(value).__mro__)
