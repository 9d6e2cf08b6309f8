"""A reader can open what the documents and the code name."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PRODUCT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
PRODUCT += [*(ROOT / "nvrx_core").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
OUT_OF_REACH = re.compile(r"\bspec(ification)?s? 0\d\d\b|\bseed[- ]0\d\d\b|\.\./shared/", re.IGNORECASE)


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_named_that_is_not_published(path: pathlib.Path) -> None:
    assert not OUT_OF_REACH.search(path.read_text())
