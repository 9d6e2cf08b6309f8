"""The store of in-process restart, as a launcher knows it: its listener, and what its program says."""

from __future__ import annotations

from contextlib import closing

from nvrx_launcher.loop import EventLoop
from nvrx_launcher.store_host import StoreHost

ELSEWHERE = "127.0.0.1:1"


def test_a_launcher_that_hosts_the_store_again_listens_where_it_has_listened_before() -> None:
    with closing(EventLoop()) as loop, closing(StoreHost(loop, "job", address="127.0.0.1")) as control:
        control.begin_cycle()
        first = control.own_endpoint()
        control.begin_cycle(ELSEWHERE)  # another launcher runs the coordinator
        control.begin_cycle(control.own_endpoint())
        assert control.endpoint == control.own_endpoint() == first
