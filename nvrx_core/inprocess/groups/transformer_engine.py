"""What Transformer Engine keeps of an iteration, and how it is ended; the only file with its names.

Where these live depends on its version; each is found by its name in modules that are imported already:

- user buffers: `module.base.destroy_ub`; from 2.18 on it also resets torch.compile, which only the main thread may;
- FP8 state: `quantization.FP8GlobalStateManager`, up to 2.8 in `fp8`;
- expert parallelism, from 2.17 on: `ep`; its communicator is borrowed from torch's group;
- a pool of symmetric memory, from 2.19 on: it is registered with a communicator of torch's;
- flags that an interruption may leave set.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from nvrx_core.fault.exceptions import text_of
from nvrx_core.process.bounded import call_bounded

__all__ = ["NAMES", "after_torch", "before_torch", "on_main_thread", "run"]

log = logging.getLogger("nvrx_core.inprocess")

Step = tuple[str, Callable[[], object]]

NAMES: Final = {
    "module.base": ("destroy_ub", "is_ub_initialized"),
    "quantization": ("FP8GlobalStateManager",),
    "fp8": ("FP8GlobalStateManager",),
    "ep": ("ep_finalize",),
    "distributed": (
        "release_symm_mem_pool", "_FP8_ACTIVATION_RECOMPUTE_ENABLED", "_FP8_ACTIVATION_RECOMPUTE_PHASE",
        "_IN_ACTIVATION_RECOMPUTE_REGION",
    ),
    "graph": ("_IS_GRAPH_CAPTURING",),
}  # fmt: skip
"""The names that are used, by module of `transformer_engine.pytorch`; no version has all of them."""

_BOUND: Final = timedelta(seconds=2)
_FLAGS: Final = tuple(
    (module, name) for module, names in NAMES.items() for name in names if name.startswith("_") and name.isupper()
)


def before_torch() -> list[Step]:
    """Return the steps for what is registered with torch's communicators; each may wait for a rank that hangs."""
    steps = (("expert parallelism", "ep", "ep_finalize"), ("symmetric memory", "distributed", "release_symm_mem_pool"))
    found = ((what, _named(module, name)) for what, module, name in steps)
    return [(what, functools.partial(call_bounded, end, _BOUND, what)) for what, end in found if end is not None]


def after_torch() -> list[Step]:
    """Return the steps that any thread may take."""
    return [] if _named("module.base", "is_ub_initialized") else _user_buffers()


def on_main_thread() -> list[Step]:
    """Return the steps for the main thread, out of the function."""
    used = _named("module.base", "is_ub_initialized")
    return [*(_user_buffers() if used is not None and used() else []), *_fp8(), *_flags()]


def run(phase: str, steps: Iterable[Step]) -> None:
    """Take each step, whatever the others do, and log its outcome."""
    for what, step in steps:
        try:
            step()
        except Exception as error:  # boundary: another library, interrupted in an iteration
            log.warning("Transformer Engine, %s: %s: not ended: %s", phase, what, text_of(error))
        else:
            log.info("Transformer Engine, %s: %s: ended", phase, what)


def _named(module: str, name: str) -> Any:
    """Return what a module that is imported has under a name of its own, else None.

    A module's `__getattr__` is not asked: that of a deprecated module warns.
    """
    return getattr(sys.modules.get(f"transformer_engine.pytorch.{module}"), "__dict__", {}).get(name)


def _user_buffers() -> list[Step]:
    destroy = _named("module.base", "destroy_ub")
    return [] if destroy is None else [("user buffers", destroy)]


def _fp8() -> list[Step]:
    for module in ("quantization", "fp8"):
        reset = getattr(_named(module, "FP8GlobalStateManager"), "reset", None)
        if reset is not None:
            return [("FP8 state", reset)]
    return []


def _flags() -> list[Step]:
    found = ((sys.modules[f"transformer_engine.pytorch.{module}"], module, name) for module, name in _FLAGS
             if _named(module, name))  # fmt: skip
    return [(f"the flag {module}.{name}", functools.partial(setattr, of, name, False)) for of, module, name in found]
