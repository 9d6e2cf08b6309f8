"""How a value is written: text of a flag or a variable, or a typed value of YAML or Python."""

import contextlib
import math
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nvrx_core.settings.forms import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    PATH,
    PATHS,
    SECONDS,
    SECTION_TIMEOUTS,
    SWITCH,
    TEXT,
    Misread,
    is_none,
)


@pytest.mark.parametrize(
    ("form", "written", "value"),
    [
        (SECONDS, 5, 5.0),
        (SECONDS, "2.5", 2.5),
        (SECONDS, " 1e2 ", 100.0),
        (SECONDS, timedelta(minutes=1), 60.0),
        (NUMBER, "3", 3.0),
        (INTEGER, 5, 5),
        (INTEGER, " -5", -5),
        (BOOLEAN, True, True),
        (BOOLEAN, "YES", True),
        (BOOLEAN, "on", True),
        (BOOLEAN, 1, True),
        (BOOLEAN, "false", False),
        (BOOLEAN, "No", False),
        (BOOLEAN, 0, False),
        (SWITCH, "auto", "auto"),
        (SWITCH, True, "on"),
        (SWITCH, False, "off"),
        (TEXT, "text", "text"),
        (PATH, Path("/data"), "/data"),
        (PATHS, "/data,/home", "/data,/home"),
        (PATHS, ["/data", Path("/home")], "/data,/home"),
        (SECTION_TIMEOUTS, "setup:600, step : 60,save:none,", {"setup": 600.0, "step": 60.0, "save": None}),
        (SECTION_TIMEOUTS, "a:b:1", {"a:b": 1.0}),
        (SECTION_TIMEOUTS, {"setup": 600, "save": None, "load": "none"}, {"setup": 600.0, "save": None, "load": None}),
        (SECTION_TIMEOUTS, "none", {}),
        (SECTION_TIMEOUTS, None, {}),
    ],
)
def test_a_value_is_read(form, written, value):
    read = form.read(written)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("form", "written", "rule"),
    [
        (SECONDS, True, "a number of seconds"),
        (SECONDS, None, "a number of seconds"),
        (SECONDS, "", "a number of seconds"),
        (SECONDS, "12x", "a number of seconds"),
        (SECONDS, [1], "a number of seconds"),
        (SECONDS, 10**400, "a number of seconds"),
        (SECONDS, math.nan, "finite"),
        (SECONDS, "-inf", "finite"),
        (SECONDS, 1.1e9, "at most 1000000000"),
        (SECONDS, timedelta.max, "at most 1000000000"),
        (NUMBER, "x", "a number"),
        (INTEGER, 10**400, "at most 1000000000"),
        (INTEGER, "-1000000001", "at least -1000000000"),
        (INTEGER, 5.0, "a whole number"),
        (INTEGER, True, "a whole number"),
        (INTEGER, "5.5", "a whole number"),
        (INTEGER, "9" * 5000, "a whole number"),
        (BOOLEAN, 2, "true or false"),
        (BOOLEAN, 1.0, "true or false"),
        (BOOLEAN, "", "true or false"),
        (SWITCH, "warm", "auto, on or off"),
        (TEXT, 7, "text"),
        (TEXT, [], "text"),
        (PATH, Path, "text"),
        (PATHS, [7], "text"),
        (SECTION_TIMEOUTS, 7, "a mapping of section to seconds, or text such as setup:600,step:60,checkpointing:none"),
        (SECTION_TIMEOUTS, "step", "a section and its timeout, such as step:60"),
        (SECTION_TIMEOUTS, {1: 60}, "the name of a section, which is text"),
        (SECTION_TIMEOUTS, ":60", "the name of a section, not empty"),
        (SECTION_TIMEOUTS, {" ": 60}, "the name of a section, not empty"),
    ],
)
def test_what_has_not_the_form_is_refused_with_the_rule(form, written, rule):
    with pytest.raises(Misread) as found:
        form.read(written)
    assert found.value.rule == rule


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ({"step": "x"}, "a number of seconds"),
        ({"step": 0}, "positive"),
        ("step:inf", "finite"),
        ("a:1,step:1,step:2", "the only timeout of its section"),
    ],
)
def test_the_section_with_a_wrong_timeout_is_named(written, rule):
    with pytest.raises(Misread) as found:
        SECTION_TIMEOUTS.read(written)
    assert (found.value.part, found.value.rule) == ("step", rule)


@pytest.mark.parametrize(
    ("written", "instead"), [("10m", "600"), ("1.5 H", "5400"), ("500ms", "0.5"), ("3 apples", ""), ("m", "")]
)
def test_a_time_with_a_unit_is_converted_in_the_advice_only(written, instead):
    with pytest.raises(Misread) as found:
        SECONDS.read(written)
    assert found.value.instead == instead


@pytest.mark.parametrize("written", [None, "", " ", "none", "None", "NULL", "~"])
def test_none_has_several_spellings(written):
    assert is_none(written)


@pytest.mark.parametrize("written", [0, False, "0", "no", {}, []])
def test_what_is_empty_or_false_is_not_none(written):
    assert not is_none(written)


@given(st.floats(max_value=1e9, allow_nan=False, allow_infinity=False))
def test_a_number_survives_being_written_as_text(number):
    assert SECONDS.read(str(SECONDS.write(number))) == number


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(ANYTHING)
def test_a_form_answers_anything_with_a_value_or_a_reason(written):
    for form in (SECONDS, INTEGER, BOOLEAN, TEXT, PATH, PATHS, SECTION_TIMEOUTS):
        with contextlib.suppress(Misread):
            value = form.read(written)
            assert form.read(form.write(value)) == value
