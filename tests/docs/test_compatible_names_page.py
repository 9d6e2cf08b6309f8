"""The page of names is the one that the files give."""

from pathlib import Path

from tests.harness.compatible_names_page import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatible-names.md"


def test_the_page_of_names_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), f"run: python -m tests.harness.compatible_names_page > {PAGE}"
