"""Another process with this RANK: it ends the job on all ranks only if that has just begun."""

import pytest
import torch.distributed as dist

from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.joining import Duplicate
from nvrx_core.store.keys import StoreKeys

KEYS = StoreKeys("job", 0, 0)


@pytest.mark.parametrize(
    ("renewals", "interval", "young"), [(60, 1.0, True), (61, 1.0, False), (7, 10.0, False), (500, 0.1, True)]
)
def test_a_job_has_just_begun_for_a_minute_whatever_the_interval_of_its_leases(renewals, interval, young):
    store = GuardedStore(dist.HashStore())
    store.put(KEYS.verdict(0), "met")
    store.put(KEYS.claim(1), "node1/77/abc")
    duplicate = Duplicate(store, KEYS, 1, 0.0)
    for beat in (renewals - 1, renewals):
        store.put(KEYS.lease(1), f"{beat}/0")
        lives = duplicate.lives()
    assert lives
    duplicate.end_young_job("two of rank 1", interval)
    assert store.has([KEYS.round(0).event]) is young
