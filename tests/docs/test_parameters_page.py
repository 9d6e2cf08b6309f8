"""The page of parameters is the one that their declarations give."""

from pathlib import Path

from tests.harness.parameters_page import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "parameters.md"


def test_the_page_of_parameters_is_up_to_date():
    assert PAGE.read_text() == page(), f"run: python -m tests.harness.parameters_page > {PAGE}"
