"""The `--inprocess-*` flags of Megatron-LM, for parsers that do not have them, and their rules."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from nvrx_core.errors import ParameterError
from nvrx_megatron.environment import world_size

__all__ = [
    "GRANULARITIES", "LIVE_STATES", "LIVE_STATE_FLAG", "InprocessArguments", "add_arguments", "inprocess_arguments",
    "take_own_arguments",
]  # fmt: skip

GRANULARITIES: Final = ("node", "rank")
LIVE_STATES: Final = ("auto", "on", "off")
LIVE_STATE_FLAG: Final = "--nvrx-live-state"
"""nvrx's own flag, which Megatron-LM's parser does not know."""
_LAST_CALL_WAIT: Final = "--inprocess-last-call-wait"
_TIMES: Final = {
    "monitor_thread_interval": "Upper bound of the reaction time of a rank's monitor thread",
    "monitor_process_interval": "Upper bound of the reaction time of a rank's monitor process",
    "progress_watchdog_interval": "Time between two automatic heartbeats",
    "heartbeat_interval": "Time between two renewals of a rank's lease",
    "soft_timeout": "Without progress for so long, all ranks restart",
    "hard_timeout": "Without progress for so long, the rank's process is ended",
    "heartbeat_timeout": "A rank whose lease is not renewed for so long is lost",
    "barrier_timeout": "Bound of the barriers between iterations",
    "completion_timeout": "Bound of the time from one rank's completion to that of all",
    "termination_grace_time": "Time from SIGTERM to SIGKILL",
}
"""The flags that are times, and what they are for."""


@dataclass(frozen=True)
class InprocessArguments:
    """The settings of in-process restart from Megatron's flags; times in seconds.

    Attributes:
        restart: whether a fault restarts the training in its processes.
        max_iterations: the maximum number of iterations; None for no limit.
        monitor_thread_interval, monitor_process_interval: upper bounds of the reaction times of a rank's monitors.
        progress_watchdog_interval: between two automatic heartbeats.
        heartbeat_interval: between two renewals of a rank's lease.
        soft_timeout: without progress for so long, all ranks restart.
        hard_timeout: without progress for so long, the rank's process is ended.
        heartbeat_timeout: a rank whose lease is not renewed for so long is lost.
        barrier_timeout, completion_timeout: bounds of the barriers between iterations and at the end.
        last_call_wait: how long to wait for late faults of other ranks. They are merged without the wait, too, so
            Megatron-LM's default of 1 s applies only when it is on the command line.
        termination_grace_time: from SIGTERM to SIGKILL.
        granularity: what is replaced when a rank is lost: the rank alone or all ranks of its node.
        active_world_size: how many ranks train; the others are spare.
        empty_cuda_cache: release cached GPU memory between two iterations.
        live_state: "auto" to go on from the memory of the ranks after a fault where that has been shown to be exact,
            else from a checkpoint; "on" for the same, with a warning where it is a checkpoint; "off" for checkpoints
            only; `--nvrx-live-state`.
    """

    restart: bool = False
    max_iterations: int | None = None
    monitor_thread_interval: float = 1.0
    monitor_process_interval: float = 1.0
    progress_watchdog_interval: float = 1.0
    heartbeat_interval: float = 30
    soft_timeout: float = 60
    hard_timeout: float = 90
    heartbeat_timeout: float = 60
    barrier_timeout: float = 120
    completion_timeout: float = 120
    last_call_wait: float = 0
    termination_grace_time: float = 1
    granularity: str = "node"
    active_world_size: int = 1
    empty_cuda_cache: bool = False
    live_state: str = "auto"

    def __post_init__(self) -> None:
        if self.live_state not in LIVE_STATES:
            raise ParameterError(LIVE_STATE_FLAG, self.live_state, "auto, on or off")
        if self.granularity not in GRANULARITIES:
            raise ParameterError("--inprocess-granularity", self.granularity, "node or rank")
        world = world_size()
        if not 1 <= self.active_world_size <= world:
            rule = f"from 1 to WORLD_SIZE={world}; start more ranks, or leave the flag out"
            raise ParameterError("--inprocess-active-world-size", self.active_world_size, rule)


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add Megatron-LM's flags of in-process restart to a parser that lacks them.

    Returns:
        The parser.

    Raises:
        argparse.ArgumentError: when the parser has one of the flags already.
    """
    group = parser.add_argument_group("in-process restart")
    for name, options in _flags().items():
        group.add_argument(f"--inprocess-{name}", **options)
    _add_own(group)
    return parser


def take_own_arguments(words: list[str]) -> argparse.Namespace:
    """Remove nvrx's own flags from a command line, and return their values.

    Megatron-LM's parser would refuse them.

    Raises:
        SystemExit: for a value that is none.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_own(parser)
    own, words[1:] = parser.parse_known_args(words[1:])
    return own


def _add_own(parser: Any) -> None:
    parser.add_argument(
        LIVE_STATE_FLAG, choices=LIVE_STATES, default=InprocessArguments.live_state, dest="nvrx_live_state",
        help="Go on from the memory of the ranks after a fault, without a checkpoint: where that is exact (auto).",
    )  # fmt: skip


def inprocess_arguments(args: object, command_line: Sequence[str] | None = None) -> InprocessArguments:
    """Return the settings of in-process restart from a parser's arguments.

    Args:
        args: the parsed arguments, of Megatron-LM or of a parser with `add_arguments`; missing ones take their
            defaults.
        command_line: the words they were parsed from; default `sys.argv[1:]`.

    Raises:
        ValueError: for a value that violates its rule.
    """
    words = sys.argv[1:] if command_line is None else command_line
    given: dict[str, Any] = {
        field.name: getattr(args, f"inprocess_{field.name}", field.default) for field in fields(InprocessArguments)
    }
    if not any(word.startswith(_LAST_CALL_WAIT) for word in words) and given["last_call_wait"] == 1:
        given["last_call_wait"] = 0
    if not hasattr(args, "inprocess_active_world_size"):
        given["active_world_size"] = world_size()
    given["live_state"] = getattr(args, "nvrx_live_state", InprocessArguments.live_state)
    return InprocessArguments(**given)


def _flags() -> dict[str, dict[str, Any]]:
    """Return the flags' names, with the options of `add_argument`; the defaults are those of Megatron-LM."""
    flags: dict[str, dict[str, Any]] = {
        "restart": {"action": "store_true", "help": "Restart in the process after a fault."},
        "max-iterations": {"type": int, "default": None, "help": "Maximum number of iterations."},
    }
    flags |= {name.replace("_", "-"): _seconds(name, what) for name, what in _TIMES.items()}
    return flags | {
        "last-call-wait": {"type": float, "default": 0, "help": "Seconds to wait for late faults of other ranks."},
        "granularity": {
            "type": str,
            "choices": GRANULARITIES,
            "default": "node",
            "help": "What is replaced when a rank is lost: the rank alone, or all ranks of its node.",
        },
        "active-world-size": {
            "type": int,
            "default": world_size(),
            "help": "Number of ranks that train; the others are spare. All by default.",
        },
        "empty-cuda-cache": {"action": "store_true", "help": "Give cached GPU memory back before a restart."},
    }


def _seconds(name: str, what: str) -> dict[str, Any]:
    return {"type": float, "default": getattr(InprocessArguments, name), "help": f"{what}, in seconds (%(default)g)."}
