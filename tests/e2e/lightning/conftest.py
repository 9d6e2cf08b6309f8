"""Fits of real processes, forked from one that has imported Lightning; and the fits without faults beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.lightning.setting import Setting
from tests.harness.process.history import history
from tests.harness.process.job import Job, Template
from tests.harness.process.workers.plan import Plan

FIT = "tests.harness.lightning.workers.fit"
Run = Callable[..., Job]


@pytest.fixture(scope="session")
def lightning_template() -> Iterator[Template]:
    template = Template(Path(__file__).parents[2] / "harness" / "lightning" / "template.py")
    try:
        yield template
    finally:
        template.close()


@pytest.fixture
def run(lightning_template: Template, tmp_path: Path) -> Iterator[Run]:
    """Runs a fit to its end; whatever is left of it is killed after the test."""
    count = iter(range(1000))

    def run(setting: Setting, *, world: int = 2, store: bool = True, limit: float = 60, **variables: str | None) -> Job:
        job = Job(lightning_template, tmp_path / f"job-{next(count)}", Plan(), world=world, store=store)
        try:
            return job.start(FIT, **setting.written(), **variables).finish(limit)
        except AssertionError as error:
            error.add_note(history(job))
            raise

    yield run
    lightning_template.sweep()


@pytest.fixture(scope="session")
def undisturbed(lightning_template: Template, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The weights that a fit has in the end when no fault strikes, under Lightning's own strategy."""
    known: dict[str, str] = {}

    def weights(setting: Setting, world: int = 2) -> str:
        key = json.dumps([setting.written(), world])
        if key not in known:
            job = Job(lightning_template, tmp_path_factory.mktemp("undisturbed") / "job", Plan(), world=world)
            job.start(FIT, **setting.written()).finish(60)
            (known[key],) = {line["weights"] for line in job.lines("fitted")}
        return known[key]

    return weights
