"""Logging, through a handler that all threads of the process share, ours included."""

from __future__ import annotations

import io
import logging
import threading
import time
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, assert_free, work

__all__ = ["SHAPES"]


class SharedHandler(Shape):
    """The root logger's handler, while another thread logs all the time."""

    def prepare(self) -> None:
        self.over = False
        self.stream = (self.folder / "log").open("w")
        self.handler = logging.StreamHandler(self.stream)
        logging.getLogger().addHandler(self.handler)
        self.thread = threading.Thread(target=self.log, daemon=True)
        self.thread.start()

    def log(self) -> None:
        while not self.over:
            logging.getLogger("shapes.other").warning("another thread")
            time.sleep(0.0005)

    def run(self, call: Any) -> None:
        logging.getLogger("shapes.main").warning("the main thread, %d", work())

    def check(self) -> None:
        assert_free(self.handler.lock, "the handler's lock")
        assert_free(logging._lock, "the lock of logging itself")  # type: ignore[attr-defined]
        self.stream.truncate(0)

    def close(self) -> None:
        self.over = True
        self.thread.join()
        logging.getLogger().removeHandler(self.handler)
        self.stream.close()


class NewLoggers(Shape):
    """Loggers and handlers that come and go, under the lock of the module."""

    def run(self, call: Any) -> None:
        logger = logging.getLogger("shapes.new")
        handler = logging.StreamHandler(io.StringIO())
        logger.addHandler(handler)
        try:
            logger.debug("text %s", work())
        finally:
            logger.removeHandler(handler)

    def check(self) -> None:
        assert_free(logging._lock, "the lock of logging itself")  # type: ignore[attr-defined]


SHAPES = (SharedHandler, NewLoggers)
