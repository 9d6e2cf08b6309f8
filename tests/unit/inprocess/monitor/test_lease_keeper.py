"""A rank's lease: how often it was renewed says how long the rank has been in the job."""

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.monitor.store import LeaseKeeper
from nvrx_core.inprocess.protocol.timeouts import HangTimeouts
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.store.keys import StoreKeys

KEYS = StoreKeys("job", 0, 0)


@pytest.fixture
def control_store():
    return ControlStore(GuardedStore(dist.HashStore()), KEYS)


@pytest.fixture
def keeper_of(control_store):
    plan, link = (
        SimpleNamespace(member=1, timeouts=HangTimeouts(60.0, 90.0, 1.0, 1.0, heartbeat_timeout=30.0)),
        SimpleNamespace(connect=lambda: control_store),
    )
    return lambda: LeaseKeeper(plan, Page(2), link, AwakeClock())


def renewals(control_store):
    return control_store.membership.leases([1])[1].partition("/")[0]


def test_a_monitor_process_that_replaces_another_goes_on_counting(keeper_of, control_store):
    for _ in range(2):
        keeper = keeper_of()
        for _ in range(4):
            keeper.move()
    assert renewals(control_store) == "7"  # the first move of the second reads how far the first has come


def test_a_strange_lease_is_replaced(keeper_of, control_store):
    control_store.store.put(KEYS.lease(1), "strange")
    keeper = keeper_of()
    for _ in range(2):
        keeper.move()
    assert renewals(control_store) == "2"


def test_a_rank_that_left_while_its_monitor_process_connected_has_no_lease(keeper_of, control_store):
    keeper = keeper_of()
    keeper.page.enter(Stage.LEFT)
    keeper.move()
    assert control_store.membership.leases([1]) == {}


def test_a_rank_that_leaves_while_its_first_lease_is_on_its_way_has_none(keeper_of, control_store, monkeypatch):
    """The others delete the keys of the call when all have left: what comes after that would stay in the store.

    Its end lets a monitor process that the store has answered end itself.
    """
    keeper, write = keeper_of(), control_store.membership.move_lease

    def late(*arguments):
        assert keeper.page[ProgressField.MONITOR_BEAT]
        keeper.page.enter(Stage.LEFT)
        return write(*arguments)

    monkeypatch.setattr(control_store.membership, "move_lease", late)
    keeper.move()
    assert control_store.membership.leases([1]) == {}
