"""The table of a round's phases on the page is the one that the machine goes by."""

import pytest

from tests.harness.transitions_page import PAGE, with_table


def test_the_table_of_phases_is_up_to_date():
    assert PAGE.read_text() == with_table(PAGE.read_text()), "run: python -m tests.harness.transitions_page"


def test_a_page_without_a_place_for_the_table_is_refused():
    with pytest.raises(ValueError, match="no place"):
        with_table("# The restart protocol\n")
