"""A wall clock that is wrong by NVRX_TEST_SKEW seconds, and jumps by as much every other second."""

import os
import time

SKEW = float(os.environ.get("NVRX_TEST_SKEW", "0"))
_right, _begun = time.time, time.monotonic()


def _wrong() -> float:
    return _right() + SKEW * (1 + int(time.monotonic() - _begun) % 2)


if SKEW:
    time.time = _wrong
