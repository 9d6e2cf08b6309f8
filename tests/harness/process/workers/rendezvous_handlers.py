"""What torch elastic asks of a rendezvous: `rendezvous_handlers.py BACKEND ENDPOINT`; prints each case that holds.

A process of its own, for handlers leave threads to their process.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from nvrx_launcher.rendezvous.registration import register
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from tests.harness.process.host import eventually

BACKEND, ENDPOINT = sys.argv[1:]
Make = Callable[..., Any]
Come = Callable[[Any], "Future[Any]"]


def places(*coming: Future[Any]) -> list[tuple[int, int]]:
    return [(info.rank, info.world_size) for info in (each.result(30) for each in coming)]


def the_rendezvous_keeps_what_torch_promises_of_one(make: Make, come: Come) -> None:
    """Barrier, consistency, shared store, exclusivity, waiting nodes, another round, a lost node, closing."""
    first, second, late = (make(2, 3, last_call_timeout=0.2) for _ in range(3))
    alone = come(first)
    assert not eventually(alone.done, 0.5), "it is complete with the minimum, not before"
    both = alone, come(second)
    assert sorted(places(*both)) == [(0, 2), (1, 2)]
    stores = [each.result().store for each in both]
    stores[0].set("said", "by one")
    assert stores[1].get("said") == b"by one"
    meets = {
        (each.result().bootstrap_store_info.master_addr, each.result().bootstrap_store_info.master_port)
        for each in both
    }
    assert len(meets) == 1
    waiting = come(late)
    assert not eventually(waiting.done, 0.5), "no second group beside the first"
    assert [each.num_nodes_waiting() for each in (first, second)] == [0, 0], "a spare disturbs nobody"
    again = come(second)
    assert eventually(first.num_nodes_waiting, 10), "the other one is told that it has to come, too"
    both = come(first), again
    assert sorted(places(*both)) == [(0, 2), (1, 2)]
    assert not any(each.result().store.check(["said"]) for each in both), "a round has its own keys"
    assert second.shutdown()
    assert eventually(first.num_nodes_waiting, 10)
    assert sorted(places(come(first), waiting)) == [(0, 2), (1, 2)]
    late.set_closed()
    assert eventually(first.is_closed, 10)
    with pytest.raises(RendezvousClosedError):
        first.next_rendezvous()


def a_node_that_is_lost_before_the_rendezvous_is_complete_is_not_waited_for(make: Make, come: Come) -> None:
    first, lost, third = make(2, 2), make(2, 2), make(2, 2)
    assert eventually(lambda: lost._coordination._node >= 0, 10)
    lost._coordination.close(lost._loop)  # as when its process is killed: it came, and moves its lease no more
    assert sorted(places(come(first), come(third))) == [(0, 2), (1, 2)]


def all_that_come_at_once_are_taken_up_to_the_last_call(make: Make, come: Come) -> None:
    handlers = [make(1, 3, last_call_timeout=30) for _ in range(3)]
    started = time.monotonic()
    coming = [come(each) for each in handlers]
    (found,) = {next(each for each in coming if eventually(each.done, 20)).result().world_size}
    assert found == 1, "the minimum takes part, the others are spares"
    assert time.monotonic() - started < 25, "the maximum has come: nothing more is waited for"


def the_end_of_the_join_timeout_ends_the_rendezvous_and_says_who_was_there(make: Make, come: Come) -> None:
    with pytest.raises(RendezvousTimeoutError, match=r"1 of 2 nodes have joined in 5 s: \['"):
        come(make(2, 2, join_timeout=5)).result(30)


def a_store_that_is_lost_is_a_lost_connection(_: Make, come: Come) -> None:
    """Not with etcd: that is waited for."""
    if BACKEND != "nvrx-c10d":
        return
    code = (
        "import sys\nfrom nvrx_core.store import serve\n"
        "served = serve()\nprint(served.endpoint, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as host:  # fmt: skip
        assert host.stdout is not None
        endpoint = host.stdout.readline().strip()
        handler = get_rendezvous_handler(RendezvousParameters("nvrx-c10d", endpoint, "job", 1, 2, is_host=0))
        info = come(handler).result(30)
        assert (info.rank, info.world_size) == (0, 1)
        host.kill()
        assert eventually(handler.is_closed, 20)
        with pytest.raises(RendezvousConnectionError, match="nobody listens at"):
            handler.num_nodes_waiting()
        assert handler.shutdown()


CASES = (
    the_rendezvous_keeps_what_torch_promises_of_one,
    a_node_that_is_lost_before_the_rendezvous_is_complete_is_not_waited_for,
    all_that_come_at_once_are_taken_up_to_the_last_call,
    the_end_of_the_join_timeout_ends_the_rendezvous_and_says_who_was_there,
    a_store_that_is_lost_is_a_lost_connection,
)


def main() -> None:
    faulthandler.dump_traceback_later(120, exit=True)
    register()
    for number, case in enumerate(CASES):
        made: list[Any] = []
        host, _, port = ENDPOINT.rpartition(":")
        endpoint = ENDPOINT if BACKEND != "nvrx-c10d" else f"{host}:{int(port) + number}"

        def make(least: int, most: int, made: list[Any] = made, endpoint: str = endpoint, **settings: Any) -> Any:
            made.append(get_rendezvous_handler(RendezvousParameters(BACKEND, endpoint, "job", least, most, **settings)))
            return made[-1]

        with ThreadPoolExecutor(8) as pool:
            try:
                case(make, lambda handler, pool=pool: pool.submit(handler.next_rendezvous))
            finally:
                left = [each.shutdown() for each in reversed(made)]  # those that wait in it have an answer
        assert all(left)
        print(case.__name__, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
