"""The table of Lightning trainings is about those that are verified."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "harness" / "lightning" / "programs"


def test_the_page_says_how_many_trainings_are_verified() -> None:
    stated = re.compile(r"^@(same|warned|differs|fails|refused)\b", re.MULTILINE)
    parts = (path for path in PROGRAMS.glob("*.py") if path.stem not in ("refusals", "unmended"))
    count = sum(len(stated.findall(path.read_text())) for path in parts)
    assert f"{count} small trainings" in (ROOT / "docs" / "reference" / "lightning.md").read_text()
