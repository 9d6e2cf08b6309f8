"""What a fit warns of once: on which rank what several have found is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvrx_lightning.restart import fit_warnings as module
from nvrx_lightning.restart.fit_warnings import FitWarnings


@pytest.mark.parametrize(
    ("rank", "rates", "left", "texts"),
    [
        (0, None, {"a": "a has 2", "b": "b has 1"}, ["a has 2, b has 1: the restart takes back steps"]),
        (1, (0.1, 0.2), {"a": "a has 3", "c": "c has 1"}, ["rate of this rank is 0.1", "c has 1: the restart"]),
        (2, (0.3, 0.2), {"c": "c has 1"}, []),
    ],
)
def test_what_several_ranks_find_is_said_by_the_lowest_of_them(rank, rates, left, texts, monkeypatch, caplog):
    def gather(told: list[Any], own: list[str]) -> None:
        told[:] = [["a", "b"], ["a", "c", module._RATES], ["c", module._RATES]]
        assert sorted(told[rank]) == sorted(own)

    monkeypatch.setattr(module.dist, "all_gather_object", gather)
    told = FitWarnings(SimpleNamespace(world_size=3, global_rank=rank), "lightning.pytorch")
    told.restored(rates, left)
    assert len(caplog.records) == len(texts)
    assert all(text in each.getMessage() for text, each in zip(texts, caplog.records, strict=True))
    assert told._has_told_rates
