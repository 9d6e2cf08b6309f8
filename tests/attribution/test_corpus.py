"""The goals of `make bench-attribution`, on the part of the corpus that is held out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.attribution.cases import PARTS, cases


def test_the_part_held_out_is_named_as_well_as_the_goals_say(tmp_path: Path) -> None:
    right, said, true, ranks = Counter[str](), Counter[str](), Counter[str](), Counter[bool]()
    for case in cases("held_out"):
        verdict = case.verdict(tmp_path / case.name)
        true[case.failure] += 1
        said[verdict.failure] += 1
        right[case.failure] += verdict.failure == case.failure
        if case.is_injected and case.failure != "clean":
            ranks[verdict.rank == case.rank] += 1
    scores = [2 * right[failure] / (said[failure] + true[failure]) for failure in true | said]
    assert sum(scores) / len(scores) >= 0.95
    assert ranks[True] / ranks.total() >= 0.98
    assert right["clean"] == true["clean"]


def test_the_parts_have_no_source_in_common() -> None:
    sources = [case.source for part in PARTS for case in {each.source: each for each in cases(part)}.values()]
    assert len(sources) == len(set(sources))
