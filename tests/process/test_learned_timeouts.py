"""Timeouts that three ranks learn together over gloo, against figures worked by hand (safety factor 2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.process.job import Job

from .conftest import Launch

WORKER = "tests.harness.process.workers.learned"


@pytest.fixture
def job(prepare: Launch, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("g")
    job = prepare(world=3, store=False)
    job.start(WORKER, NVRX_TEST_RENDEZVOUS=str(folder / "gloo"), NVRX_RUNTIME_DIR=str(folder / "run"))
    return job.finish()


def said(job: Job, rank: int, what: str) -> dict[str, Any]:
    lines = (job.directory / f"rank-{rank}.out").read_text().splitlines()
    return next(line for line in map(json.loads, lines) if line["what"] == what)


def test_ranks_learn_the_longest_times_of_all(job: Job) -> None:
    assert set(job.codes.values()) == {0}, [job.errors(rank) for rank in range(3)]
    for rank in range(3):
        not_ready = said(job, rank, "not ready")
        assert not_ready["skipped"] == [False, False]
        assert not_ready["refused"] == "timeouts cannot be calculated yet: no rank has sent two heartbeats"

        # The first heartbeats come after 1, 3 and 2 s; the longest gaps are 1, 4 and, for a single heartbeat, none.
        heartbeats = said(job, rank, "heartbeats")
        assert (heartbeats["learned"], heartbeats["hb"]["initial"], heartbeats["hb"]["subsequent"]) == (True, 6.0, 8.0)

        # `step` takes 4, 6 and 5 s; only rank 2 has saved, for 9 s. The time of no section stays as configured.
        sections = said(job, rank, "sections")["sections"]
        assert sections["section"] == {"step": 12.0, "save": 18.0}
        assert (sections["calculated_sections"], sections["out_of_section"]) == (["save", "step"], None)

        # Then rank 0 takes 10 s for `step`, and its gap of heartbeats is 58 s: the means with what was learned before.
        # No section was open for longest on rank 0: from 14 to 40 s, and from 50 to 60 s; on rank 1 from 16 to 61 s.
        again = said(job, rank, "again")
        assert (again["hb"]["initial"], again["hb"]["subsequent"]) == (6.0, (8.0 + 120.0) / 2)
        assert again["sections"]["section"]["step"] == (12.0 + 20.0) / 2
        assert again["sections"]["section"]["save"] == 18.0
        assert again["sections"]["out_of_section"] == 90.0
        assert again["state"]["current_timeouts"]["heartbeat"]["were_calculated"] is True
