"""Fits of real processes, forked from one that has imported Lightning; and the fits without faults beside them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness.lightning.account import Ends, how_it_ended
from tests.harness.lightning.setting import Setting
from tests.harness.process.history import history
from tests.harness.process.job import Job, Template
from tests.harness.process.workers.plan import Plan

FIT = "tests.harness.lightning.workers.fit"
Variables = Callable[[int], dict[str, str | None]]


@pytest.fixture(scope="session")
def lightning_template() -> Iterator[Template]:
    with closing(Template(Path(__file__).parents[2] / "harness" / "lightning" / "template.py")) as template:
        yield template


@pytest.fixture
def prepare(lightning_template: Template, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes a job; whatever is left of it is killed after the test."""
    count = itertools.count()

    def prepare(world: int, *, store: bool) -> Job:
        return Job(lightning_template, tmp_path / f"job-{next(count)}", Plan(), world=world, store=store)

    yield prepare
    lightning_template.sweep()


@pytest.fixture
def start(prepare: Callable[..., Job]) -> Callable[..., Job]:
    """Starts a fit; `each` gives the variables of a rank that differ."""

    def start(setting: Setting, *, world: int = 2, store: bool = True, each: Variables = lambda rank: {}) -> Job:
        job = prepare(world, store=store)
        if store:
            job.start_store()
        for rank in range(world):
            environment = job.environment(rank, **setting.written(), **each(rank))
            job.pids[rank] = job.template.fork(FIT, [], environment, job.directory / f"rank-{rank}")
        return job

    return start


@pytest.fixture
def run(start: Callable[..., Job]) -> Callable[..., Job]:
    """Runs a fit to its end."""

    def run(setting: Setting, *, limit: float = 60, **how: Any) -> Job:
        job = start(setting, **how)
        try:
            return job.finish(limit)
        except AssertionError as error:
            error.add_note(history(job))
            raise

    return run


@pytest.fixture
def start_script(prepare: Callable[..., Job]) -> Callable[[Setting], Job]:
    """Starts the script of a fit once; Lightning starts the other ranks."""

    def start_script(setting: Setting) -> Job:
        job = prepare(3, store=False)
        job.run_command("script", "-m", FIT, key=0, **setting.written(), LOCAL_WORLD_SIZE="3")
        return job

    return start_script


@pytest.fixture(scope="session")
def undisturbed(lightning_template: Template, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ends]:
    """How a fit ends when no fault is injected, under Lightning's own strategy."""
    known: dict[str, Ends] = {}

    def ends(setting: Setting, world: int = 2) -> Ends:
        setting = setting.plain()
        key = json.dumps([setting.written(), world])
        if key not in known:
            job = Job(lightning_template, tmp_path_factory.mktemp("undisturbed") / "job", Plan(), world=world)
            job.start(FIT, **setting.written()).finish(60)
            known[key] = how_it_ended(job)
        return known[key]

    return ends
