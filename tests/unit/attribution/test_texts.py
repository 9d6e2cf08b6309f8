"""What lines of logs are called."""

from __future__ import annotations

import re

import pytest

from nvrx_core.attribution.rules import BY_NAME, CLASSES
from tests.attribution.cases import messages, verdict_of_text


@pytest.mark.parametrize(("failure", "text"), messages())
def test_a_message_has_its_class(failure: str, text: str) -> None:
    assert verdict_of_text(text).failure == failure


def test_each_class_has_a_message() -> None:
    assert {failure for failure, _ in messages()} == set(BY_NAME) - {"unknown"}


def test_a_literal_has_no_digits_since_lines_that_differ_in_digits_are_looked_at_once() -> None:
    texts = [rule.text for each in CLASSES for rule in each.rules]
    assert not [text for text in texts if not text or re.search(r"\d", text)]


def test_each_pattern_compiles_and_no_class_is_named_twice() -> None:
    assert all(re.compile(rule.pattern) for each in CLASSES for rule in each.rules)
    assert len(BY_NAME) == len(CLASSES)
