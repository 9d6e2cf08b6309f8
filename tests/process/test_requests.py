"""How many requests a restart makes of the control store: all of a job's processes, counted where they ask."""

from __future__ import annotations

import re
from collections import Counter

from nvrx_core.store.keys import LauncherKeys
from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch

WORKER = "tests.harness.process.workers.counting"
RESTARTS, WORLD = 9, 4
KEYS = LauncherKeys("job", 0)
STEADY = range(3, RESTARTS - 1)
"""Rounds whose beginning, end and deletion lie in the job."""
MOST = 5
OF_THE_ROUND = ("announce", "closing", "deletion")
"""What one rank does for all: whoever fails, whoever arrives last, and the new rank 0."""


def purpose(line: dict[str, object]) -> str:
    """What a request is for."""
    how, key = str(line["how"]), str(line["key"]).rsplit("/", 1)[-1]
    if how == "delete_key":
        return "deletion"
    if how == "compare_set" and line["writes"]:
        return {"event": "announce", "decision": "closing"}.get(key, key)
    if how in ("check", "multi_get") or (how, key) == ("compare_set", "event"):  # the closer's: nobody has completed
        return "closing"
    return f"{how} {key}"


def counted(job: Job, rank: int) -> Counter[str]:
    """The requests of one rank and its monitor process in all steady rounds, by purpose; leases are no restart's."""
    found = Counter[str]()
    for line in job.lines("asked", initial_rank=rank):
        round_ = re.match(r"nvrx/job/0/0/(\d+)/", line["key"])
        if round_ and int(round_[1]) in STEADY:
            found[purpose(line)] += line["requests"]
    return found


def test_a_restart_costs_each_rank_at_most_five_requests(prepare: Launch) -> None:
    job = prepare(world=WORLD).start(WORKER, NVRX_TEST_RESTARTS=str(RESTARTS)).finish()
    assert set(job.codes.values()) == {0}
    assert_no_process_left(job)
    found = [counted(job, rank) for rank in range(WORLD)]
    own = [sum(n for what, n in each.items() if what not in OF_THE_ROUND) / len(STEADY) for each in found]
    assert all(0 < requests <= MOST for requests in own), found
    shared = sum(each[what] for each in found for what in OF_THE_ROUND) / len(STEADY)
    assert shared <= 16, found
    told = Counter(line["key"] for line in job.lines("asked") if "/inprocess/" in line["key"])
    assert told == {KEYS.announce(): 1 + 1, KEYS.entered(): RESTARTS + 1 + 1}, "written, and deleted at the end"
