"""A parameter declared once: what its declaration says, and what is checked by it."""

import os
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import pytest

from nvrx_core.errors import ParameterError, ParameterTypeError
from nvrx_core.settings.forms import BOOLEAN, SECONDS, SECTION_TIMEOUTS, Misread
from nvrx_core.settings.parameter import (
    NOT_NEGATIVE,
    POSITIVE,
    ValueRule,
    above,
    at_least,
    check,
    declarations,
    default_of,
    one_of,
    parameter,
    setting,
    time_parameter,
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    timeout: timedelta = time_parameter(timedelta(seconds=1), "How long.", "limit")
    limit: timedelta = time_parameter(timedelta(seconds=2), "How long at most.", rule=NOT_NEGATIVE)
    path: str | None = parameter(None, "Where.", kind=str, rule=ValueRule("an absolute path", os.path.isabs))
    mode: str = parameter("a", "Which.", kind=str, rule=one_of("a", "b"))
    count: int = parameter(1, "How many.", kind=int, rule=at_least(1))
    interval: timedelta = time_parameter(timedelta(seconds=1), "How often at least.", "timeout", upper_bound=True)
    anything: Any = parameter((), "Whatever.")


def test_the_defaults_keep_the_rules():
    check(Settings())


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"timeout": 3}, ParameterTypeError, "timeout=3"),
        ({"timeout": timedelta(0)}, ParameterError, "timeout=.*must be positive"),
        ({"limit": timedelta(seconds=-1)}, ParameterError, "limit=.*must be not negative"),
        ({"timeout": timedelta(seconds=2)}, ParameterError, "timeout=.*must be shorter than limit=2 s"),
        ({"path": "relative"}, ParameterError, "path='relative': must be an absolute path"),
        ({"mode": "c"}, ParameterError, "mode='c': must be 'a' or 'b'"),
        ({"count": 0}, ParameterError, "count=0: must be at least 1"),
    ],
)
def test_a_value_that_breaks_its_rule_is_refused(given, error, told):
    with pytest.raises(error, match=told):
        check(Settings(**given))


def test_the_value_that_was_given_is_the_one_that_is_named():
    with pytest.raises(ParameterError, match=r"limit=0\.5 s: must be longer than timeout=1 s, which is the default"):
        check(Settings(limit=timedelta(seconds=0.5)))


def test_the_default_of_an_upper_bound_fits_to_all():
    check(Settings(timeout=timedelta(seconds=0.1)))
    with pytest.raises(ParameterError, match=r"interval=0\.5 s: must be shorter than timeout=0\.1 s"):
        check(Settings(timeout=timedelta(seconds=0.1), interval=timedelta(seconds=0.5)))


def test_none_is_a_value_where_it_is_the_default():
    assert declarations(Settings)["path"][1].optional
    assert not declarations(Settings)["timeout"][1].optional


def test_a_time_is_given_in_seconds():
    assert [declared.unit for _, declared in declarations(Settings()).values()] == ["s", "s", "", "", "", "s", ""]
    assert POSITIVE.holds(1)


@dataclass
class Written:
    limit: float | None = setting(60.0, SECONDS, "How long.", rule=above(1, 9), optional=True)
    path: str | None = setting(None, SECONDS, "Optional, as its default is None.")
    each: dict[str, float] = setting({}, SECTION_TIMEOUTS, "How long each.")
    flag: bool = setting(True, BOOLEAN, "Whether.")


def test_a_setting_is_read_by_its_form_and_its_rule():
    limit, path, each, flag = (declared for _, declared in declarations(Written).values())
    assert (limit.read("2"), limit.read("none"), path.read(None), each.read("a:1")) == (2.0, None, None, {"a": 1.0})
    with pytest.raises(Misread, match="greater than 1 and at most 9"):
        limit.read(1)
    with pytest.raises(Misread, match="true or false"):
        flag.read(None)


def test_a_setting_is_shown_as_a_person_writes_it():
    limit, path, each, flag = (declared for _, declared in declarations(Written).values())
    assert [limit.unit, path.unit, each.unit, flag.unit] == ["s", "s", "s", ""]
    assert [limit.shown(2.0), path.shown(None), each.shown({}), flag.shown(True)] == ["2.0", "none", "none", "true"]
    assert limit.written(None) is None


def test_a_default_may_be_a_mapping_of_which_each_instance_has_its_own():
    assert [default_of(field) for field in fields(Written)] == [60.0, None, {}, True]
    assert Written().each is not Written().each


def test_a_parameter_without_a_form_is_read_as_it_is():
    assert declarations(Settings)["count"][1].read(2) == 2
    assert declarations(Settings)["count"][1].shown(2) == "2"
