"""A launcher that is lost, or late, at any of its failpoints: nothing of it is left, or the job ends as it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_core.failpoint import LAUNCHER_NAMES
from nvrx_core.testing import failpoints
from tests.harness.process.host import alive, eventually
from tests.harness.process.launch import Launch, Start, left_in

CYCLE = {"monitor-spawn": -1, "rendezvous-join": -1}
WITHIN = 10.0


@pytest.fixture
def start(launcher: Start, tmp_path: Path) -> Start:
    def start(point: str, fault: str) -> Launch:
        cycle = CYCLE.get(point, 0 if point == "term-kill-gap" else 1)
        nth = "#2" if point in ("worker-spawn", "monitor-spawn") else ""
        schedule = {failpoints.SCHEDULE: f"0:{cycle}@{point}{nth}={fault}", failpoints.RECORD: str(tmp_path / "record")}
        module = "tests.harness.process.launcher_at_failpoints"
        return launcher("killed", "--max-restarts", "1", launcher=module, RANK="0", **schedule)

    return start


@pytest.mark.parametrize("point", LAUNCHER_NAMES)
def test_nothing_is_left_of_a_launcher_that_is_killed_there(start: Start, tmp_path: Path, point: str) -> None:
    job = start(point, "kill")
    code, log = job.finish()
    assert code == -9, log
    assert [each["hit"].partition("@")[2].partition("#")[0] for each in struck(tmp_path)] == [point]
    assert eventually(lambda: not left_in(tmp_path) and not any(map(alive, job.pids())), WITHIN)


@pytest.mark.parametrize("point", LAUNCHER_NAMES)
def test_a_launcher_that_is_late_there_ends_as_it_should(start: Start, tmp_path: Path, point: str) -> None:
    code, log = start(point, "delay:0.3").finish()
    assert code == 0, log
    assert struck(tmp_path)


def struck(folder: Path) -> list[dict[str, str]]:
    return failpoints.read_record(folder / "record")
