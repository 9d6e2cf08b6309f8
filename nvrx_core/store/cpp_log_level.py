"""The level of torch's C++ log, raised for a while; the only file that uses this private name of torch's libc10.

A client of torch's store logs each broken connection with a C++ stack of twenty lines: as a warning, or as an error
where it does not connect. The wrapper logs a lost store itself, in one line. The variable TORCH_CPP_LOG_LEVEL is read
when torch is imported, too early to be set here.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import torch

from nvrx_core.settings.environment import cpp_log_level

__all__ = ["ERROR", "FATAL", "level", "quiet", "quiet_for_good"]

ERROR: Final = 2
FATAL: Final = 3
"""As c10 numbers its levels, from INFO = 0."""
_wanted: Final[list[int]] = []
"""The level at first, then those of all that are inside `quiet`."""
_changing: Final = threading.Lock()
_for_good: Final = ExitStack()


@contextmanager
def quiet(least: int = ERROR) -> Iterator[None]:
    """Let torch's C++ code log nothing below a level, unless the user has set TORCH_CPP_LOG_LEVEL.

    Threads may be inside at the same time; the highest level counts.
    """
    word = level()
    if word is None or cpp_log_level() is not None:
        yield
        return
    with _changing:
        _wanted[:] = [*(_wanted or [word.value]), least]
        word.value = max(_wanted)
    try:
        yield
    finally:
        with _changing:
            _wanted.remove(least)
            word.value = max(_wanted)
            if len(_wanted) == 1:
                _wanted.clear()


def quiet_for_good(least: int = ERROR) -> None:
    """Enter `quiet`, until the process ends."""
    _for_good.enter_context(quiet(least))


@functools.cache
def level() -> ctypes.c_int | None:
    """The level in use; None where torch is built otherwise."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None
