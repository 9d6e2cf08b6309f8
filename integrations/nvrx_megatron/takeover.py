"""Megatron-LM's own wrapping, replaced where the names of nvidia-resiliency-ext are nvrx's.

Megatron-LM wraps `pretrain` by these names when it is given `--inprocess-restart`. From 0.18 on that restarts nothing:
what the script has computed before is lost or stale. So its function that wraps runs the whole script within a wrapper
instead, as `python -m nvrx_megatron` does.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from nvrx_megatron.environment import rank

__all__ = ["FLAG", "watch_for_megatron"]

FLAG: Final = "--inprocess-restart"
_MODULE: Final = "megatron.training.inprocess_restart"
_WRAP: Final = "maybe_wrap_for_inprocess_restart"
_REFUSED: Final = (
    "%s: this is %s, so that no restart can run it anew: Megatron-LM wraps pretrain alone, which from 0.18 on restarts "
    "nothing. Next: start a script, with -m nvrx_megatron in front of it"
)

log = logging.getLogger("nvrx_megatron")


def watch_for_megatron() -> None:
    """Replace Megatron-LM's wrapping when its module has been imported, if the command line has the flag."""
    if FLAG in sys.argv and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


@functools.cache
def _warn_once() -> None:
    """Say on rank 0 that Megatron-LM wraps `pretrain` itself."""
    if rank() == 0:
        where = "a process of multiprocessing" if multiprocessing.parent_process() is not None else "not a script"
        log.warning(_REFUSED, FLAG, where)


class _Finder(MetaPathFinder):
    """Finds the module as the other finders do, and replaces its function after its import.

    Up to 0.16 the module may be the first to import the names, before it has defined its function: then the next import
    of any module replaces it.
    """

    def __init__(self) -> None:
        self._done = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._done:
            return None
        module = sys.modules.get(_MODULE)
        if module is not None and hasattr(module, _WRAP):
            self._take_over(module)
        if module is not None or fullname != _MODULE:
            return None
        self._done = True
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                self._take_over(module)

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec

    def _take_over(self, module: ModuleType) -> None:
        self._done = True
        _replace(module)


def _replace(module: ModuleType) -> None:
    wrap: Callable[..., Any] | None = getattr(module, _WRAP, None)
    if wrap is None:
        return

    def maybe_wrap(pretrain: Callable[..., Any]) -> Any:
        """Run the script within a wrapper, and end the process; within that run, hand out its store."""
        from nvrx_megatron.script import enable, hand_out_store, is_running

        if not is_running():
            enable()
        if is_running():
            return hand_out_store(pretrain)
        _warn_once()
        return wrap(pretrain)

    setattr(module, _WRAP, maybe_wrap)
