"""Running an unmodified Megatron-LM script, with in-process restart around the whole script.

Megatron-LM wraps only `pretrain`. A restart does not repeat what its script computes before that: from 0.18 on the
arguments, which the teardown has dropped, and with them the ranks. The store that Megatron's rank 0 hosts is lost with
that rank. So each iteration runs the script from its first line, in a process where everything is imported already,
with the RANK and WORLD_SIZE of the rank in that iteration.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from nvrx_core.compatible_names import activate
from nvrx_core.inprocess.wrap import current_call
from nvrx_megatron.arguments import take_own_arguments
from nvrx_megatron.atomic_writes import protect_checkpoint_files
from nvrx_megatron.installed import Piece, announce
from nvrx_megatron.internals import has_ft_client
from nvrx_megatron.once import compute_once
from nvrx_megatron.restart import inprocess_restart
from nvrx_megatron.script_objects import remember
from nvrx_megatron.state import teardown_pieces
from nvrx_megatron.wiring import wire
from nvrx_megatron.writers import observe_saves

__all__ = ["Script", "enable", "hand_out_store", "is_running", "run_script"]

_SAVES_OF_PEER: Final = "nvidia_resiliency_ext.checkpointing.async_ckpt"
_running: list[Script] = []
"""The running script."""


@dataclass(frozen=True)
class Script:
    """A script, and how it is run: by its path, or, as by `python -m`, by its name in a package.

    Attributes:
        file: its path.
        module: its name; None if it is run by its path.
    """

    file: str
    module: str | None = None

    @classmethod
    def of_process(cls) -> Self | None:
        """Return the script that Python was started with; None if it was started with none."""
        main = sys.modules["__main__"]
        file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
        return None if file is None else cls(file, None if spec is None else spec.name)

    def run(self) -> None:
        """Run it as `__main__`."""
        if self.module is None:
            runpy.run_path(self.file, run_name="__main__")
        else:
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)


def is_running() -> bool:
    """Return whether a script runs in this process by `run_script` or `enable`."""
    return bool(_running)


def enable() -> None:
    """Run the calling script as its flags request; to be called at its top, before Megatron is imported.

    With `--inprocess-restart`, the script is run from its first line within a wrapper, and the process ends after that
    run. Without the flag, the script continues after this call. Within the wrapped run, in a process of
    `multiprocessing`, and if the caller is not a script, this does nothing.

    Raises:
        SystemExit: when the script has ended.
        ValueError: for a value that violates its rule; nothing is started.
    """
    script = Script.of_process()
    if _running or script is None or multiprocessing.parent_process() is not None:
        return
    args = prepare(script.file)
    if args.inprocess_restart:
        run_wrapped(script, args)
        raise SystemExit(0)


def run_script(file: str) -> None:
    """Run a Megatron-LM script as `__main__`, as its flags in `sys.argv[1:]` request.

    Raises:
        ValueError: for a value that violates its rule; nothing is started.
        ModuleNotFoundError: when there is no `megatron.training` beside the script or on the path.
    """
    script, args = Script(file), prepare(file)
    if args.inprocess_restart:
        run_wrapped(script, args)
    else:
        run_once(script)


def prepare(script: str) -> Any:
    """Import Megatron-LM, install the hooks, and return its arguments."""
    activate()
    _require_megatron(script)
    from megatron.training.arguments import parse_args

    compute_once()
    own = take_own_arguments(sys.argv)
    args = parse_args(ignore_unknown_args=True)
    args.nvrx_live_state = own.nvrx_live_state
    if own.nvrx_live_state == "on" and not args.inprocess_restart:
        raise ValueError("--nvrx-live-state on keeps nothing without a restart in process: add --inprocess-restart")
    saves = _choose_async_strategy(args)
    pieces = [*wire(), *protect_checkpoint_files(), *_pieces_of_training(), *teardown_pieces(), *observe_saves()]
    if args.inprocess_restart:
        announce([*pieces, *(_live_pieces(args) if own.nvrx_live_state != "off" else ()), *saves])
    return args


def _live_pieces(args: Any) -> list[Piece]:
    """Return what goes on from memory; what that takes is imported for it alone."""
    from nvrx_megatron.live_wiring import wire_live_state

    return wire_live_state(args)


def _pieces_of_training() -> list[Piece]:
    """Return what a restart does in Megatron-LM, and what it does not."""
    wrap = "maybe_wrap_for_inprocess_restart"
    module = importlib.import_module("megatron.training.inprocess_restart")
    missing = "" if hasattr(module, wrap) else f"{module.__name__}.{wrap}"
    client = "" if has_ft_client() else "the client in megatron.training.ft_integration"
    return [
        Piece("a restart repeats the whole script", "Megatron-LM wraps pretrain once more", missing),
        Piece("with a new client of the rank monitor", "a restart fails with --enable-ft-package", client),
    ]


def run_wrapped(script: Script, args: Any) -> None:
    """Run the script within a wrapper."""
    from megatron.training import inprocess_restart as upstream

    upstream.maybe_wrap_for_inprocess_restart = hand_out_store
    inprocess_restart(_named(script), args)()


def run_once(script: Script) -> None:
    """Run the script, and restore the process's hooks: a hook set by the script would keep its references alive."""
    _running.append(script)
    try:
        with warnings.catch_warnings(), _arguments_kept():
            script.run()
    except SystemExit:
        raise
    except BaseException as error:  # boundary: whatever ends the iteration; it goes on
        remember(error, script.file)
        raise
    finally:
        _running.clear()


def _named(script: Script) -> Callable[[], None]:
    def run() -> None:
        run_once(script)

    run.__qualname__ = run.__name__ = Path(script.file).name
    return run


@contextmanager
def _arguments_kept() -> Iterator[None]:
    words = list(sys.argv)
    try:
        yield
    finally:
        sys.argv[:] = words


def hand_out_store(pretrain: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
    """Replace Megatron-LM's own wrapping: the script is wrapped already, and each iteration has a store."""
    call = current_call()
    return pretrain, None if call is None else call.iteration_store()


def _require_megatron(script: str) -> None:
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.training") is None:
        folder = Path(script).resolve().parent
        raise ModuleNotFoundError(
            f"no megatron.training in {folder} or on the path: megatron-core from a package index does not have it; "
            "run a script of a Megatron-LM checkout, or set PYTHONPATH to the checkout"
        )


def _choose_async_strategy(args: Any) -> list[Piece]:
    """Save by megatron-core's own writers if the flags request those of a package that is not installed.

    Returns:
        What to say about it: it is a default of Megatron-LM, which is missed if saves are in the background.
    """
    if getattr(args, "async_strategy", None) != "nvrx" or _is_importable(_SAVES_OF_PEER):
        return []
    sys.argv += ["--async-strategy", "mcore"]
    args.async_strategy = "mcore"
    instead = "background saves use --async-strategy mcore in place of nvrx"
    return [Piece(instead, instead, _SAVES_OF_PEER if getattr(args, "async_save", False) else "")]


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
