"""How the end of a thread that waits for the rendezvous store is reported."""

from __future__ import annotations

from queue import SimpleQueue

import pytest
import torch.distributed as dist
from nvrx_launcher.rendezvous.store_threads import KEYS_GONE, Follower, Link, Requests

from nvrx_core.store.endpoint import StoreConnectionError


def fail(error: BaseException) -> Link:
    def make(_: object) -> object:
        raise error

    return make  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StoreConnectionError("nobody listens at a:1 any more"), "is lost: nobody listens at a:1 any more"),
        (dist.DistStoreError("wait timeout after 30 s"), f"is lost: {KEYS_GONE}"),
        (OSError(), "is lost: OSError"),
        (ValueError("not JSON: ''"), "the thread nvrx-node has failed: ValueError: not JSON: ''"),
    ],
)
def test_requests_end_with_one_line(error: BaseException, line: str) -> None:
    lines = SimpleQueue[str]()
    requests = Requests(fail(error), bool, 1.0, name="nvrx-node", failed=lines.put)
    requests.start()
    assert lines.get(timeout=20).endswith(line)
    requests.finish(20)


def test_a_follower_that_is_stopped_says_nothing() -> None:
    lines = list[str]()
    follower = Follower(fail(OSError()), str, name="nvrx-inbox", found=print, failed=lines.append)
    follower.stop()
    follower.start()
    follower._thread.join(20)
    assert lines == []
