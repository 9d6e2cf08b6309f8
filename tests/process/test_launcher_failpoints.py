"""A launcher that is lost, or late, at any of its failpoints: nothing of it is left, or the job ends as it should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvrx_core.failpoint import LAUNCHER_NAMES
from nvrx_core.testing import failpoints
from tests.harness.process.host import alive, eventually
from tests.harness.process.launch import Launch, left_in

Start = Callable[..., Launch]
CYCLE = {"monitor-spawn": -1, "rendezvous-join": -1}
WITHIN = 10.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    launched: list[Launch] = []

    def start(point: str, fault: str) -> Launch:
        cycle = CYCLE.get(point, 0 if point == "term-kill-gap" else 1)
        nth = "#2" if point in ("worker-spawn", "monitor-spawn") else ""
        schedule = {failpoints.SCHEDULE: f"0:{cycle}@{point}{nth}={fault}", failpoints.RECORD: str(tmp_path / "record")}
        launched.append(
            Launch(
                tmp_path, "killed", "--max-restarts", "1", launcher="tests.harness.process.launcher_at_failpoints",
                RANK="0", **schedule,
            )
        )  # fmt: skip
        return launched[-1]

    yield start
    for each in launched:
        each.close()


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
    assert eventually(lambda: not left_in(tmp_path), WITHIN)


def struck(folder: Path) -> list[dict[str, str]]:
    return failpoints.read_record(folder / "record")
