"""Where the wrapper's log lines go, by specification 002, "Logging": to streams, not to files, and no further.

The stream handlers are those of the first ancestor of our logger that has handlers. Where none of these is a stream, or
nobody has handlers, warnings go to stderr.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["own_stream_handlers"]


@contextmanager
def own_stream_handlers() -> Iterator[None]:
    """While this lasts, the package's logger writes to its ancestor's streams only."""
    logger = logging.getLogger("nvrx_core")
    before = logger.handlers, logger.propagate
    streams = _streams(logger)
    if streams:
        logger.handlers, logger.propagate = streams, False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before


def _streams(logger: logging.Logger | None) -> list[logging.Handler]:
    while logger is not None and not logger.handlers:
        logger = logger.parent
    if logger is None:
        return []
    streams: list[logging.Handler] = [
        h for h in logger.handlers if isinstance(h, logging.StreamHandler) and not isinstance(h, logging.FileHandler)
    ]
    return streams or [h for h in [logging.lastResort] if h is not None]
