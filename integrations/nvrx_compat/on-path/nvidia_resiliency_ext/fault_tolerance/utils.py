"""nvrx's liveness check of a process, its wait for events, and its exit code for "do not restart"."""

from nvrx_launcher.exit_codes import REFUSED as DEFAULT_NO_RESTART_EXIT_CODE

from nvrx_core.process.lifeline import is_running as is_process_alive
from nvrx_core.process.waiting import wait_for_mp_events

__all__ = ["DEFAULT_NO_RESTART_EXIT_CODE", "is_process_alive", "wait_for_mp_events"]
