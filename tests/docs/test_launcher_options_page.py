"""The page of the launcher's options is the one that their declarations give."""

from pathlib import Path

from tests.harness.launcher_options_page import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "launcher-options.md"


def test_the_page_of_options_is_up_to_date():
    assert PAGE.read_text() == page(), f"run: python -m tests.harness.launcher_options_page > {PAGE}"
