"""A template process that has imported megatron-core, and jobs of its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.megatron.job import TEMPLATE, TRAIN, Launch, MegatronJob
from tests.harness.megatron.plan import Plan
from tests.harness.process.job import Template


@pytest.fixture(scope="session")
def megatron() -> Iterator[Template]:
    template = Template(TEMPLATE)
    try:
        yield template
    finally:
        template.close()


@pytest.fixture
def launch(megatron: Template, tmp_path: Path) -> Iterator[Launch]:
    """Starts a job of `world` ranks; the rest as `Plan` names it."""
    jobs: list[MegatronJob] = []

    def launch(world: int = 2, module: str = TRAIN, **plan: Any) -> MegatronJob:
        jobs.append(MegatronJob(megatron, tmp_path / f"job-{len(jobs)}", Plan(**plan), world=world))
        return jobs[-1].begin(module)

    yield launch
    end(megatron, jobs)


@pytest.fixture
def run(megatron: Template, tmp_path: Path) -> Iterator[Launch]:
    """Runs a script of the stand-in tree to its end."""
    jobs: list[MegatronJob] = []

    def run(script: str, *words: str, world: int = 2, **plan: Any) -> MegatronJob:
        jobs.append(MegatronJob(megatron, tmp_path / f"job-{len(jobs)}", Plan(**plan), world=world))
        jobs[-1].begin("tests.harness.megatron.script", script, *words).finish()
        return jobs[-1]

    yield run
    end(megatron, jobs)


def end(template: Template, jobs: list[MegatronJob]) -> None:
    """Ends what is left of the jobs."""
    template.sweep()
    for job in jobs:
        job.clear()
