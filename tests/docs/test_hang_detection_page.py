"""The diagram on the page of hang detection is that of the machine."""

import pytest

from tests.harness.hang_detection_page import PAGE, with_diagram


def test_the_diagram_is_up_to_date() -> None:
    assert PAGE.read_text() == with_diagram(PAGE.read_text()), "run: python -m tests.harness.hang_detection_page"


def test_a_page_without_a_place_for_a_diagram_is_refused() -> None:
    with pytest.raises(ValueError, match="no place"):
        with_diagram("# How a hang is detected\n")
