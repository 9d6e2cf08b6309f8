"""A template process that has imported megatron-core, and jobs of its ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness.megatron.job import TEMPLATE, TRAIN, Launch, MegatronJob, MegatronLMJob, Train
from tests.harness.megatron.plan import Plan
from tests.harness.process.job import Template

LIMIT = 300
"""Seconds for a run of pretrain_gpt.py."""


@pytest.fixture(scope="session")
def megatron() -> Iterator[Template]:
    with closing(Template(TEMPLATE)) as template:
        yield template


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


@pytest.fixture(scope="session")
def plain() -> Iterator[Template]:
    """A template that has not imported a megatron-core: that of the checkout is used."""
    with closing(Template()) as template:
        yield template


@pytest.fixture
def train(plain: Template, tmp_path: Path) -> Iterator[Train]:
    """Runs pretrain_gpt.py of the checkout to its end, `also` with these folders of packages."""
    jobs: list[MegatronLMJob] = []

    def train(
        *more: str, faults: str = "", world: int = 2, also: Sequence[Path] = (), saves: bool = True
    ) -> MegatronLMJob:
        path = os.pathsep.join([os.environ["NVRX_TEST_MEGATRON_LM"], *map(str, also)])
        jobs.append(MegatronLMJob(plain, tmp_path / f"job-{len(jobs)}", Plan(), world=world))
        jobs[-1].train(path, "--inprocess-restart", *more, faults=faults, saves=saves)
        jobs[-1].finish(LIMIT)
        return jobs[-1]

    yield train
    end(plain, jobs)


def end(template: Template, jobs: Sequence[MegatronJob]) -> None:
    """Ends what is left of the jobs."""
    template.sweep()
    for job in jobs:
        job.clear()
