"""The reports of a hang in the store: one for each member, whichever way the store keeps them."""

import pytest
import torch.distributed as dist

from nvrx_core.fault.hang_report import HangReport, RankCondition
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import BATCH, GuardedStore
from nvrx_core.inprocess.coordination.hang_reports import Written
from nvrx_core.store.keys import StoreKeys

MEMBERS = frozenset(range(3))


def report(member):
    return HangReport(rank=member, initial_rank=member, condition=RankCondition.RUNS, begun={"0": member})


class NoAppend(dist.HashStore):
    """A store that cannot append."""

    def has_extended_api(self):
        return False


@pytest.fixture(params=[dist.HashStore, NoAppend])
def control_store(request):
    return ControlStore(GuardedStore(request.param()), StoreKeys("job", 0, 0))


def test_each_report_is_counted_and_read(control_store):
    hangs = control_store.hangs
    assert hangs.written(4) == Written(0, 0)
    assert hangs.put(4, report(0)) == Written(1, 0)
    assert hangs.put(4, report(2), by_monitor=True) == Written(1, 1)
    assert hangs.put(4, report(1)) == Written(2, 1)
    assert hangs.read(4, MEMBERS) == {member: report(member) for member in MEMBERS}
    assert hangs.read(4, {0}) == {0: report(0)}
    assert hangs.read(5, MEMBERS) == {}


def test_one_member_gives_the_verdict(control_store):
    assert [control_store.hangs.claim(4, member) for member in (2, 0, 2)] == [True, False, True]


def test_what_is_malformed_is_ignored(control_store):
    hangs, keys = control_store.hangs, control_store.keys.round(4)
    control_store.store.put(keys.hang_reports(0), "nonsense")
    control_store.store.put(keys.hang_report(1), "nonsense")
    hangs.put(4, report(0))
    assert hangs.read(4, MEMBERS) == {0: report(0)}


@pytest.mark.parametrize("hung", [True, False])
def test_a_round_that_hung_leaves_no_key(control_store, hung):
    members = [0, BATCH + 1] if hung else []
    for member in members:
        control_store.hangs.put(4, report(member))
        control_store.hangs.claim(4, member)
    control_store.deletion.delete_round(4, BATCH + 2, hung=hung)
    assert control_store.store.store.num_keys() == 0
