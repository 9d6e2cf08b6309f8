"""Restarts leave nothing behind."""

from __future__ import annotations

import statistics

from tests.harness.lightning.setting import Setting
from tests.harness.process.template import WHOLE_END
from tests.harness.process.workers.record import HELD


def test_twenty_restarts_hold_no_more_than_the_first(run, monkeypatch):
    """The interpreters are torn down at the end, with the process groups that they hold."""
    monkeypatch.setenv(WHOLE_END, "1")
    job = run(
        Setting(
            restarts=20,
            checkpoint=None,
            options={"wrapper": {"no_progress_limit": None}},
            loader={"num_workers": 1},
            loggers=("csv",),
        ),
        limit=120,
    )
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    for rank in (0, 1):
        starts = [line for line in job.lines("train_start") if line["initial_rank"] == rank]
        assert len(starts) == 21
        for name in HELD:
            held = [line["usage"][name] for line in starts]
            assert statistics.median(held[-5:]) <= statistics.median(held[1:6]), (name, held)
        pages = [line["usage"]["pages"] for line in starts]
        assert pages[-1] - pages[5] < 2048, pages  # 8 MiB
        assert {line["wrapped"] for line in starts} == {2}, "a model or an optimizer of an earlier attempt is alive"
