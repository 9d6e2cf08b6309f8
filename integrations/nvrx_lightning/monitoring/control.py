"""What a failing rank reports to its launcher."""

from __future__ import annotations

import logging
from collections.abc import Callable

from nvrx_core.errors import RestartAbort
from nvrx_core.fault_tolerance import RankMonitorClient, RankMonitorClientError, WorkloadAction, WorkloadControlRequest
from nvrx_core.settings import environment
from nvrx_lightning import callback_base

__all__ = ["Policy", "ask", "consult", "report"]

Policy = Callable[[BaseException], WorkloadControlRequest]


def report(exception: BaseException) -> None:
    """Write the exception being handled to the error file; the launcher logs it with its traceback."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    if isinstance(exception, Exception):
        get_error_handler().record_exception(exception)


def consult(policy: Policy | None, exception: BaseException, log: logging.Logger) -> WorkloadControlRequest | None:
    """Return what the policy requests of the launcher; None for nothing.

    The user sees the exception that ends the training, even if the policy raises. A signal or Ctrl-C is not a fault:
    the policy is not called for it.
    """
    if policy is None or environment.launcher_socket() is None or not _is_fault(exception):
        return None
    try:
        request = policy(exception)
        action, why = WorkloadAction(request.action), request.description
    except Exception:  # boundary: the user's policy
        log.exception("exc_handling_policy has failed for %r", exception)
        return None
    return None if action is WorkloadAction.Continue else WorkloadControlRequest(action, why)


def ask(request: WorkloadControlRequest, log: logging.Logger) -> None:
    """Send the request to the launcher, which may end this process at once."""
    try:
        RankMonitorClient().send_workload_control_request(request)
    except (RankMonitorClientError, RuntimeError) as error:
        log.error("the launcher was not asked for %s: %s", request.action.name, error)


def _is_fault(exception: BaseException) -> bool:
    """Whether it is a fault of this rank; the exit of another rank that ends this one, too, is not."""
    if isinstance(exception, RestartAbort) or callback_base.is_preemption(exception):
        return False
    return isinstance(exception, Exception | SystemExit)
