"""The development part of the corpus, line by line, without files."""

from __future__ import annotations

import pytest

from tests.attribution.cases import Case, cases, verdict_of_logs


@pytest.mark.parametrize("case", list(cases("development")), ids=lambda case: case.name)
def test_the_verdict_is_that_of_the_label(case: Case) -> None:
    verdict = verdict_of_logs(case.logs)
    assert (verdict.failure, verdict.rank) == (case.failure, case.rank)
    if case.host is not None:
        assert verdict.host == case.host
    assert verdict.failure == "clean" or verdict.evidence
