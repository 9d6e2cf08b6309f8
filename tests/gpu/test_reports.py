"""What a job over NCCL writes: torch's flight record, and warnings about its environment."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.gpu.test_restarts import check, run
from tests.harness.gpu.case import Case
from tests.harness.process.job import Job
from tests.process.conftest import Launch

ONCE = Case("synchronize", restarts=1)


def errors(job: Job) -> list[str]:
    return [job.errors(rank) for rank in range(job.world)]


def test_each_rank_writes_its_flight_record(prepare: Launch, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("records")
    run(prepare, ONCE, NVRX_FR_TRACE_PATH=str(folder), TORCH_FR_BUFFER_SIZE="100")
    records = sorted((folder / "iter_0").glob("*.nccl.json"))
    assert [path.name for path in records] == [f"rank_{rank}.nccl.json" for rank in range(3)]
    for path, reductions in zip(records, (2, 1, 2), strict=True):
        entries = json.loads(path.read_text())["entries"]
        assert [entry["profiling_name"] for entry in entries].count("nccl:all_reduce") == reductions, entries


RULES = {
    "NCCL_NVLS_ENABLE": ("1", "NCCL_NVLS_ENABLE is not 0"),
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": ("1", "TORCH_NCCL_RETHROW_CUDA_ERRORS is not 0"),
    "TORCH_CPP_LOG_LEVEL": ("warning", "TORCH_CPP_LOG_LEVEL is not error or fatal"),
}


@pytest.mark.parametrize("name", RULES)
def test_each_unmet_requirement_is_one_warning(prepare: Launch, name: str) -> None:
    value, text = RULES[name]
    job = check(prepare, ONCE, **{name: value})
    assert [told.count(text) for told in errors(job)] == [1, 1, 1], errors(job)[0]
    assert not any(other in told for told in errors(job) for each, (_, other) in RULES.items() if each != name)


def test_a_watchdog_that_is_shorter_than_the_hard_timeout_is_one_warning(prepare: Launch) -> None:
    job = check(prepare, Case("synchronize", restarts=1, group_timeout=10.0))
    text = f"an NCCL group has timeout={timedelta(seconds=10)} and the wrapper hard_timeout={timedelta(seconds=12)}"
    assert [told.count(text) for told in errors(job)] == [1, 1, 1], errors(job)[0]
