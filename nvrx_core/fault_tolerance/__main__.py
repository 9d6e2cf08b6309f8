"""The program of a rank monitor; `RankMonitorServer` starts it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from nvrx_core.fault_tolerance.plan import RankMonitorPlan
from nvrx_core.fault_tolerance.process import RankMonitor
from nvrx_core.fault_tolerance.wire import Listener
from nvrx_core.process.fork_server_process import serve
from nvrx_core.progress.page import Page

__all__ = ["main"]

STDERR = 2


def main(arguments: Sequence[str]) -> NoReturn:
    """Be the fork server of a rank monitor.

    Args:
        arguments: the plan, and the two that `ForkServer.spawn` adds.
    """
    plan = RankMonitorPlan.from_json(arguments[0])
    page = Page.attach(plan.page)
    listener = Listener.adopt(plan.listener, plan.path)

    def work(ready: Callable[[], None]) -> None:
        RankMonitor(plan, page, listener).run(ready)

    serve(work, arguments[1:], keep=(page.fileno(), listener.fileno(), *plan.stacks, *plan.questions, STDERR))


if __name__ == "__main__":
    main(sys.argv[1:])
