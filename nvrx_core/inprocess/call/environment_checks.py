"""What is logged of the environment: how the ranks were started, and each requirement of an NCCL job that is not met.

The rules of NCCL are those of the in-process usage guide of nvidia-resiliency-ext, "Requirements" and "Known issues":
https://nvidia.github.io/nvidia-resiliency-ext/inprocess/usage_guide.html
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

import torch

from nvrx_core.settings import environment
from nvrx_core.settings.environment import nccl_variables

__all__ = [
    "log_start",
    "nccl_checks",
    "unmet_rules",
    "warn_about_environment",
    "warn_about_watchdog",
    "watchdog_is_off",
]


log = logging.getLogger("nvrx_core.inprocess")
NCCL_DEFAULT: Final = timedelta(minutes=10)
"""torch's default timeout of an NCCL group."""


def nccl_checks(hard_timeout: timedelta) -> Callable[[timedelta], None]:
    """Return what is to be called with the timeout of each NCCL group that is created.

    The environment is checked with the first one: whether there are devices would initialize CUDA, 170 ms.
    """
    check_environment = functools.cache(functools.partial(warn_about_environment, hard_timeout))

    def check(timeout: timedelta) -> None:
        check_environment()
        warn_about_watchdog(timeout, hard_timeout)

    return check


def warn_about_environment(hard_timeout: timedelta) -> None:
    """Warn about every unmet rule, where torch has NCCL."""
    if torch.distributed.is_nccl_available():
        for rule in unmet_rules(nccl_variables(), torch.cuda.nccl.version(), hard_timeout):
            log.warning("%s", rule)


def warn_about_watchdog(timeout: timedelta, hard_timeout: timedelta) -> None:
    """Warn when the watchdog of an NCCL group with this timeout would end a process before the wrapper helps it."""
    if timeout <= hard_timeout and not watchdog_is_off(nccl_variables()):
        log.warning(
            "an NCCL group has timeout=%s and the wrapper hard_timeout=%s: the group's watchdog kills first; make its "
            "timeout the longer one",
            timeout,
            hard_timeout,
        )


def watchdog_is_off(variables: Mapping[str, str]) -> bool:
    """Whether torch's NCCL watchdog only watches, and ends no process."""
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    return next((variables[name] for name in names if name in variables), "") == "0"


def unmet_rules(variables: Mapping[str, str], nccl: tuple[int, ...], hard_timeout: timedelta) -> list[str]:
    """The rules that variables and NCCL version do not meet.

    Args:
        variables: the environment's.
        nccl: NCCL's version, as torch tells it.
        hard_timeout: the wrapper's.
    """
    rules = []
    if nccl < (2, 26, 2) or (2, 28, 3) <= nccl < (2, 28, 9):
        rules.append(f"NCCL {'.'.join(map(str, nccl))}: restarts need 2.26.2 or later, but not 2.28.3 to 2.28.8")
    if variables.get("NCCL_NVLS_ENABLE") != "0":
        rules.append(
            "NCCL_NVLS_ENABLE is not 0: communicators with NVLink SHARP cannot be aborted; set NCCL_NVLS_ENABLE=0"
        )
    if variables.get("TORCH_NCCL_RETHROW_CUDA_ERRORS") != "0":
        rules.append(
            "TORCH_NCCL_RETHROW_CUDA_ERRORS is not 0: torch's NCCL watchdog ends the process on an error; set it to 0"
        )
    if variables.get("TORCH_CPP_LOG_LEVEL", "").lower() not in ("error", "fatal"):
        rules.append("TORCH_CPP_LOG_LEVEL is not error or fatal: aborted collectives fill the log with warnings")
    if hard_timeout >= NCCL_DEFAULT and not watchdog_is_off(variables):
        rules.append(f"hard_timeout={hard_timeout}: give init_process_group a longer timeout, its NCCL watchdog kills")
    return rules


_ONE_RANK = "RANK and WORLD_SIZE are not set: this process is a job of one rank; start it with ft_launcher for more"
_SPAWNED = (
    "RANK and WORLD_SIZE are not set: this process, a child of multiprocessing, is a job of one rank, whatever its "
    "parent has started; for one job of all, set %s in the target of mp.spawn before the call"
)
_TORCHRUN = (
    "started by torchrun, which ends all ranks when the process of one ends: only faults in which no process ends are "
    "survived; start with ft_launcher, which has the same options, to survive the others"
)


def log_start(rank: int, world_size: int) -> None:
    """Log the line; it is for the first wrapped call of a process.

    Args:
        rank: the rank of the process on entry to the call.
        world_size: the number of ranks.
    """
    if not environment.has_ranks():
        if multiprocessing.parent_process() is not None:
            log.warning(_SPAWNED, ", ".join(environment.missing_variables()))
        else:
            log.info(_ONE_RANK)
    elif rank == 0 and world_size > 1 and environment.started_by_torchrun():
        log.warning(_TORCHRUN)
