"""Who has entered and who is missing, as those who wait are told."""

import logging
from datetime import timedelta

import pytest
import torch.distributed as dist

from nvrx_core.errors import BarrierTimeout
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.joining import Joining, JoinRequest
from nvrx_core.inprocess.coordination.presence import Presence, Reminders, find_presence
from nvrx_core.progress.page import Page
from nvrx_core.store.keys import StoreKeys
from nvrx_core.store.torch_stores import FileStore

KEYS = StoreKeys("job", 0, 0)


class Counted:
    """A store of a job in which these ranks have entered, and the number of its requests."""

    def __init__(self, entered):
        self.requests, self.store = 0, dist.HashStore()
        for rank in entered:
            self.store.set(KEYS.claim(rank), f"node{rank // 8}/{100 + rank}/x")
            self.store.add(KEYS.claims(), 1)

    def __getattr__(self, name):
        self.requests += name != "has_extended_api"
        return getattr(self.store, name)


def look(entered, size, member=0):
    store = Counted(entered)
    return find_presence(GuardedStore(store), KEYS, size, member), store.requests


def test_the_missing_ranks_and_the_hosts_of_those_present_are_named():
    present, _ = look([0, 1, 2, 8], 10)
    assert present.missing == (3, 4, 5, 6, 7, 9)
    assert str(present) == "missing ranks: 3-7, 9 (of 10); present: 0-2 on node0, 8 on node1"


def test_a_missing_node_is_found_among_thousands_with_few_requests():
    present, requests = look([*range(512), *range(520, 4096)], 4096)
    assert present.missing == tuple(range(512, 520))
    assert str(present).endswith(", and others")
    assert requests < 64


@pytest.mark.parametrize(("entered", "looks"), [(range(4095), [0]), (range(8, 4096), [8]), ([0, 5, 6], [0]), ([3], [])])
def test_one_rank_of_a_large_job_looks_and_the_others_count(entered, looks):
    found = {member: look(entered, 4096, member) for member in {*list(entered)[:9], 16, 4095} & {*entered}}
    assert [member for member, (present, _) in sorted(found.items()) if present.missing] == looks
    for member in found.keys() - looks:
        assert str(found[member][0]) == f"missing: {4096 - len(entered)} of 4096 ranks"
        assert found[member][1] < 16


def test_it_is_passed_on_as_json():
    present, _ = look([0, 8], 10)
    assert Presence.decode(present.encode()) == present
    for text in ("{}", '{"size": 2, "entered": 1, "missing": [], "hosts": {}}'):
        with pytest.raises(ValueError, match="not a"):
            Presence.decode(text)


def test_a_waiting_rank_logs_repeatedly_and_ends_with_an_error(tmp_path, caplog):
    links = Connections(FileStore, {"file_name": str(tmp_path / "store")}, KEYS, timedelta(seconds=1))
    page = Page(3)
    reminders = Reminders(first=0.05, every=0.2)
    joining = Joining(
        links, page, JoinRequest(1, False), timeout=timedelta(seconds=0.6), lease_interval=1.0, reminders=reminders
    )
    with caplog.at_level(logging.WARNING), pytest.raises(BarrierTimeout) as caught:
        joining.run()
    lines = [
        line for line in caplog.messages if line.startswith("waiting at entry since 0 s; missing ranks: 0, 2 (of 3)")
    ]
    assert 2 <= len(lines) <= 3
    error = caught.value
    assert (error.missing, error.arrived, error.expected, error.seconds) == ((0, 2), 1, 3, 0.6)
    assert str(error).startswith("not all ranks have entered within 0.6 s; missing ranks: 0, 2 (of 3); present: 1 on ")
    page.close()
    links.close()
