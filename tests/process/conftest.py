"""The template process, the launching of jobs, and the history of a job whose test failed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness.process.history import history
from tests.harness.process.host import alive, eventually
from tests.harness.process.job import LIVE_TEMPLATE, Job, Template
from tests.harness.process.launch import (
    TORCH_WORKERS,
    Launch as LaunchedJob,
    Nodes,
    Start,
    left_in,
    rendezvous_options,
)
from tests.harness.process.template import WHOLE_END
from tests.harness.process.workers.plan import Plan, schedule_text

Launch = Callable[..., Job]
crossed = pytest.mark.parametrize(
    ("target", "collective"),
    [(0, False), (1, True), *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((0, True), (1, False)))],
    ids=["rank 0, alone", "rank 1, in a collective", "rank 0, in a collective", "rank 1, alone"],
)
"""The faulty rank, and whether the others are in a collective meanwhile."""
_JOBS = pytest.StashKey[list[Job]]()


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    with closing(Template()) as template:
        yield template


@pytest.fixture(scope="session")
def live_template() -> Iterator[Template]:
    """The template of ranks with a live state, or an optimizer; a module uses it by a fixture `template` of its own."""
    with closing(Template(LIVE_TEMPLATE)) as template:
        yield template


@pytest.fixture
def whole_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreters of forked ranks are torn down at their ends, with the process groups that they hold."""
    monkeypatch.setenv(WHOLE_END, "1")


@pytest.fixture
def launcher(template: Template, tmp_path: Path) -> Iterator[Start]:
    """Starts launchers with the workers of a case; they are ended after the test, and nothing is left of them.

    A launcher of several nodes begins with the import of torch, which takes seconds of CPU time, as some workers do: it
    is forked from the template, with these workers, unless its test says `template=None`.
    """
    launched: list[LaunchedJob] = []

    def start(case: str, *options: str, **more: Any) -> LaunchedJob:
        imports_torch = "--nnodes" in options or more.get("worker") in TORCH_WORKERS
        imported = {"template": template} if imports_torch else {}
        launched.append(LaunchedJob(tmp_path, case, *options, **imported | more))
        return launched[-1]

    yield start
    for each in launched:
        each.close()
    assert eventually(lambda: not left_in(tmp_path), 10.0)
    assert eventually(lambda: not any(alive(pid) for each in launched for pid in each.pids()), 10.0)


@pytest.fixture
def store_endpoint() -> Iterator[str]:
    """A store that is none of the launchers', in which they can meet: any of them may be lost."""
    command = [sys.executable, "-m", "nvrx_core.store", "--host", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        yield store.stdout.readline().strip()
        store.kill()


@pytest.fixture
def nodes(launcher: Start) -> Nodes:
    """Starts the launchers of one job, which meet at an endpoint of their own."""

    def nodes(count: int, case: str, *options: str, **more: Any) -> list[LaunchedJob]:
        where = rendezvous_options()
        return [launcher(case, *where, *options, **more) for _ in range(count)]

    return nodes


@pytest.fixture
def ordered(launcher: Start) -> Nodes:
    """Starts the launchers of one job; the first of them hosts the rendezvous, and has the first ranks."""

    def ordered(
        count: int, case: str, *options: str, variables: Sequence[Mapping[str, str]] = (), **more: Any
    ) -> list[LaunchedJob]:
        where, started = rendezvous_options(), list[LaunchedJob]()
        for rank in range(count):
            own = variables[rank] if variables else {}
            started.append(launcher(case, *where, "--node-rank", str(rank), *options, **more, **own))
            if rank == 0:
                started[0].await_log("host the rendezvous")
        return started

    return ordered


@pytest.fixture
def prepare(template: Template, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launch]:
    """Makes a job without starting it; whatever is left of it is killed after the test."""
    jobs = request.node.stash.setdefault(_JOBS, [])

    def prepare(
        faults: dict[tuple[int, int, int | str], str] | None = None, *, world: int = 3, store: bool = True, **plan: Any
    ) -> Job:
        planned = Plan(faults=schedule_text(faults or {}), **plan)
        jobs.append(Job(template, tmp_path / f"job-{len(jobs)}", planned, world=world, store=store))
        return jobs[-1]  # type: ignore[no-any-return]

    yield prepare
    template.sweep()


@pytest.fixture
def launch(prepare: Launch) -> Launch:
    """Starts a job: `faults` by (initial rank, iteration, step), the rest as `Plan` names it."""

    def launch(*arguments: Any, **plan: Any) -> Job:
        return prepare(*arguments, **plan).start()

    return launch


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        for job in item.stash.get(_JOBS, []):
            report.sections.append((f"history of {job.directory.name}", history(job)))
    return report
