"""Failpoints: named points at which a test injects a kill, a delay or an exception.

While no hook is installed, a failpoint costs one read of a module variable; the two of an atomic section cost nothing.
A forked child inherits the hook of its parent. The points that begin with `monitor-` are hit in a rank's monitor
process, all others in the rank: `abort-before`, `abort-during` and `decision-after` in its monitor thread, the rest in
the thread that made the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["LAUNCHER_NAMES", "NAMES", "THREAD_NAMES", "Hook", "clear", "hit", "install", "installed"]

NAMES: Final = (
    "store-connect",  # before the first connection to the control store
    "barrier-before",  # before the rank arrives at the barrier before the first iteration, or that after an iteration
    "decision-after",  # the rank has received the decision of the barrier
    "entry-before",  # before the function is called
    "init-pg-before",  # before a process group is created
    "init-pg-after",  # after a process group was created
    "atomic-enter",  # after an atomic section was opened
    "atomic-exit",  # before an atomic section is closed
    "checkpoint-write",  # a save has begun, in a folder of its own
    "checkpoint-rename",  # a checkpoint is written and has not got its name
    "checkpoint-marker",  # a checkpoint has got its name
    "abort-before",  # before the user's abort
    "abort-during",  # in `AbortTorchDistributed`, before any connection is cut
    "monitor-ready",  # a monitor process has started and has not reported that it is ready
    "monitor-reattach",  # the replacement of a monitor process has connected to the store and has not used it
)
"""The failpoints, in the order in which a rank hits them."""

LAUNCHER_NAMES: Final = (
    "guardian-spawn",  # the launcher has its folder, and no process
    "coordinator-lead",  # the launcher is to run the coordinator, and does not run it
    "decision-write",  # its coordinator has decided, and nobody else knows it
    "monitor-spawn",  # before a rank monitor is started
    "rendezvous-join",  # the node has a number, and has not said that it is ready
    "cycle-begin",  # the launcher has heard that a cycle begins, and has started no worker
    "worker-spawn",  # before a worker is started
    "worker-reap",  # the end of a worker was noticed, and nothing was done about it
    "signal-received",  # the launcher has received a signal, and has not passed it on
    "term-kill-gap",  # the workers were sent a signal, and may be killed later
    "rendezvous-close",  # the launcher has heard that the job is over
    "exit-code-before",  # the workers are gone, and the launcher has not ended
)
"""The failpoints of a launcher, in the order in which it hits them; the iteration is the cycle."""

THREAD_NAMES: Final = (
    "nvrx-node",  # a launcher's requests to the rendezvous store, the renewal of its lease among them
    "nvrx-decisions",  # the coordinator's decisions, as a launcher reads them
    "nvrx-store-in-use",  # whether a rank uses the store of in-process restart
    "nvrx-coordinator",  # the coordinator's requests to the rendezvous store
    "nvrx-inbox",  # the messages of nodes, as the coordinator reads them
    "nvrx-handler",  # a rendezvous handler that is not nvrx's
    "nvrx-rendezvous-loop",  # the rendezvous under an agent of torch elastic
    "nvrx-store-answer",  # whether a store answers a connection
    "nvrx-cycle-info",  # the files that describe each cycle
    "nvrx-output",  # what a launcher shows, or writes to log files
    "nvrx-verdict",  # the verdict of a cycle, from what a launcher knows and the ends of logs
    "nvrx-attribution",  # what a launcher asks the attribution service
    "nvrx-store-query",  # the launcher's question to the store of in-process restart
    "nvrx-store-alive",  # the signs of life of that store's program
    "nvrx-local-monitor",  # the rank monitor of a rank that has started its own
    "nvrx-watchdog",  # the progress watchdog without a wrapper
    "nvrx-hang-report",  # the report of a rank on a hang, and the verdict on it
    "nvrx-evidence",  # where a rank with a rank monitor is, on request
    "nvrx-stacks",  # the stacks of a rank, on request
    "nvrx-log-writer",  # what a log server appends to files
    "nvrx-owner-lock",  # the end of the thread that a monitor process belongs to
)
"""The helper threads of launchers, stores and monitors; each hits the failpoint of its name when it starts."""

_KNOWN: Final = (*NAMES, *LAUNCHER_NAMES, *THREAD_NAMES)
Hook = Callable[[str, int], None]
"""A function of the name of the failpoint and the iteration; the iteration is -1 before the first one."""

_hook: Hook | None = None


def hit(name: str, iteration: int) -> None:
    """Call the hook, if one is installed; its exceptions propagate to the caller.

    Raises:
        ValueError: when a hook is installed and there is no such failpoint.
    """
    hook = _hook
    if hook is not None:
        if name not in _KNOWN:
            raise ValueError(f"no failpoint {name!r}; the failpoints are {', '.join(_KNOWN)}")
        hook(name, iteration)


def install(hook: Hook) -> None:
    """Install `hook` for every failpoint; it replaces the previous one."""
    global _hook  # noqa: PLW0603 (a hit must cost no more than one look-up)
    _hook = hook


def installed() -> bool:
    """Return whether a hook is installed."""
    return _hook is not None


def clear() -> None:
    """Remove the hook."""
    global _hook  # noqa: PLW0603
    _hook = None
