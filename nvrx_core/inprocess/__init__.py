"""In-process restart: `Wrapper`, its plug-ins and its state. Names are imported on first access."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvrx_core.inprocess import (
        abort as abort,
        attribution as attribution,
        completion as completion,
        compose as compose,
        exception as exception,
        finalize as finalize,
        health_check as health_check,
        initialize as initialize,
        live_state as live_state,
        monitor_thread as monitor_thread,
        nested_restarter as nested_restarter,
        progress_watchdog as progress_watchdog,
        rank_assignment as rank_assignment,
        rank_filter as rank_filter,
        restart_record as restart_record,
        state as state,
        store as store,
        terminate as terminate,
        wait_daemon as wait_daemon,
        wrap as wrap,
    )
    from nvrx_core.inprocess.compose import Compose
    from nvrx_core.inprocess.live_state import LiveState
    from nvrx_core.inprocess.restart_record import RestartRecord, last_restart
    from nvrx_core.inprocess.state import FrozenState, Mode, State
    from nvrx_core.inprocess.wrap import CallWrapper, Wrapper, current_call

__all__ = [
    "CallWrapper", "Compose", "FrozenState", "LiveState", "Mode", "RestartRecord", "State", "Wrapper", "current_call",
    "last_restart",
]  # fmt: skip

_HOME = {
    "CallWrapper": "wrap",
    "Wrapper": "wrap",
    "Compose": "compose",
    "FrozenState": "state",
    "LiveState": "live_state",
    "Mode": "state",
    "State": "state",
    "RestartRecord": "restart_record",
    "current_call": "wrap",
    "last_restart": "restart_record",
}
_MODULES = (
    "abort",
    "attribution",
    "completion",
    "compose",
    "exception",
    "finalize",
    "health_check",
    "initialize",
    "live_state",
    "monitor_thread",
    "nested_restarter",
    "progress_watchdog",
    "rank_assignment",
    "rank_filter",
    "restart_record",
    "state",
    "store",
    "terminate",
    "wait_daemon",
    "wrap",
)


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        from nvrx_core.settings.spelling import no_such_name

        raise no_such_name(__name__, name, (*__all__, *_MODULES))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
