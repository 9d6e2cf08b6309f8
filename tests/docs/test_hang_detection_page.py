"""The diagrams on the page of hang detection are those of the machines."""

import pytest

from tests.harness.hang_detection_page import PAGE, with_diagrams


def test_the_diagrams_are_up_to_date() -> None:
    assert PAGE.read_text() == with_diagrams(PAGE.read_text()), "run: python -m tests.harness.hang_detection_page"


def test_a_page_without_a_place_for_a_diagram_is_refused() -> None:
    with pytest.raises(ValueError, match="no place"):
        with_diagrams("# How a hang is detected\n")
