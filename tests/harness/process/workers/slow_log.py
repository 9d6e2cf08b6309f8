"""A rank whose function fails, and whose job is over with that; a handler of its log takes its time for a traceback."""

from __future__ import annotations

import logging
import time

from nvrx_core import inprocess
from nvrx_core.inprocess.initialize import RetryController

SECONDS = 1.5


def write_slowly(entry: logging.LogRecord) -> bool:
    if entry.getMessage().startswith("the function failed"):
        time.sleep(SECONDS)
    return True


@inprocess.Wrapper(initialize=RetryController(max_iterations=1))
def work() -> None:
    raise ValueError("injected")


if __name__ == "__main__":
    logging.getLogger("nvrx_core.inprocess").addFilter(write_slowly)
    work()
