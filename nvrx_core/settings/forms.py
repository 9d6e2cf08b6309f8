"""Forms of a value: how a setting is written in a YAML file, in a flag, in a variable and in code. Pure.

A flag or a variable is text; a YAML file and code have typed values. A form reads all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from nvrx_core.values import value

__all__ = [
    "BOOLEAN", "INTEGER", "MEGABYTES", "NUMBER", "PATH", "PATHS", "SECONDS", "SECTION_TIMEOUTS", "SWITCH", "TEXT",
    "Form", "Misread", "brief", "is_none",
]  # fmt: skip

MAX_SECONDS: Final = 1e9
"""Thirty years; nanoseconds up to it fit into a signed 64-bit integer."""
MAX_INTEGER: Final = 10**9
LONGEST: Final = 80
"""How many characters of a value or a name an error shows."""
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_SWITCH: Final = ("auto", "on", "off")
_UNITS: Final = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_WITH_UNIT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


class Misread(ValueError):
    """A value that has not the form, or breaks the rule, of its setting.

    Attributes:
        value: the value.
        rule: what it must be.
        instead: what to write instead, "" where nothing is known.
        part: the entry of a mapping that it belongs to, "" for the whole.
    """

    def __init__(self, value: object, rule: str, instead: str = "", part: str = "") -> None:
        super().__init__(value, rule, instead, part)
        self.value, self.rule, self.instead, self.part = value, rule, instead, part


@value
class Form:
    """How a value is written.

    Attributes:
        text: completes the sentence "must be ...".
        read: returns the value; raises `Misread`.
        example: a value as a YAML file has it.
        write: returns the value as a YAML file or JSON holds it.
        unit: the unit, "" where it has none.
        metavar: what stands for a value in the help of a flag.
    """

    text: str
    read: Callable[[object], Any]
    example: str
    write: Callable[[Any], Any] = lambda value: value
    unit: str = ""
    metavar: str = "TEXT"


def brief(value: object) -> str:
    """Return a value as an error shows it."""
    if value is None:
        return "an empty value"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def is_none(value: object) -> bool:
    """Return whether a value stands for None: None itself, "none", "null", "~" or empty text."""
    return value is None or (isinstance(value, str) and value.strip().lower() in ("", "none", "null", "~"))


def _seconds(value: object) -> float:
    given = value.total_seconds() if isinstance(value, timedelta) else value
    seconds = _number(given, "a number of seconds", _in_seconds(value))
    if seconds > MAX_SECONDS:
        raise Misread(value, f"at most {MAX_SECONDS:.0f}")
    return seconds


def _number(value: object, rule: str = "a number", instead: str = "") -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        number = None
    if number is None:
        raise Misread(value, rule, instead)
    if not math.isfinite(number):
        raise Misread(value, "finite")
    return number


def _in_seconds(value: object) -> str:
    """What to write for a time with a unit, such as "10m"."""
    found = _WITH_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(found[2].lower()) if found else None
    return f"{float(found[1]) * unit:g}" if found and unit else ""


def _integer(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}", value.strip(), re.ASCII):
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        raise Misread(value, "a whole number")
    if abs(number) > MAX_INTEGER:
        raise Misread(value, f"at most {MAX_INTEGER}" if number > 0 else f"at least -{MAX_INTEGER}")
    return number


def _boolean(value: object) -> bool:
    text = str(value).strip().lower() if isinstance(value, bool | int | str) else ""
    if text not in _TRUE | _FALSE:
        raise Misread(value, "true or false")
    return text in _TRUE


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Misread(value, "text", "it in quotes" if isinstance(value, int | float) else "")
    return value


def _switch(value: object) -> str:
    text = ("on" if value else "off") if isinstance(value, bool) else _text(value)  # YAML reads on and off as booleans
    if text not in _SWITCH:
        raise Misread(value, "auto, on or off")
    return text


def _path(value: object) -> str:
    as_text = getattr(type(value), "__fspath__", None)
    return _text(as_text(value) if as_text is not None else value)


def _paths(value: object) -> str:
    return ",".join(map(_path, value)) if isinstance(value, list | tuple) else _path(value)


def _section_timeouts(value: object) -> dict[str, float | None]:
    timeouts: dict[str, float | None] = {}
    for name, timeout in _entries(value):
        if not isinstance(name, str):
            raise Misread(name, "the name of a section, which is text", "the name in quotes")
        if not name.strip():
            raise Misread(name, "the name of a section, not empty")
        if name in timeouts:
            raise Misread(timeout, "the only timeout of its section", part=name)
        timeouts[name] = _section_timeout(name, timeout)
    return timeouts


def _entries(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, str):
        yield from () if is_none(value) else (_entry(each) for each in value.split(",") if each.strip())
    elif value is not None:
        raise Misread(value, SECTION_TIMEOUTS.text)


def _entry(text: str) -> tuple[str, str]:
    name, colon, timeout = text.rpartition(":")
    if not colon:
        raise Misread(text, "a section and its timeout, such as step:60")
    return name.strip(), timeout.strip()


def _section_timeout(name: str, value: object) -> float | None:
    if is_none(value):
        return None
    try:
        timeout = _seconds(value)
    except Misread as error:
        raise Misread(value, error.rule, error.instead, name) from None
    if timeout <= 0:
        raise Misread(value, "positive", part=name)
    return timeout


SECONDS: Final = Form(text="a number of seconds", read=_seconds, example="60.0", unit="s", metavar="SECONDS")
NUMBER: Final = Form(text="a number", read=_number, example="2.0", metavar="NUMBER")
MEGABYTES: Final = Form(text="a number of megabytes", read=_number, example="512.0", unit="MB", metavar="MB")
INTEGER: Final = Form(text="a whole number", read=_integer, example="1", metavar="N")
BOOLEAN: Final = Form(text="true or false", read=_boolean, example="true", metavar="BOOL")
SWITCH: Final = Form(text="auto, on or off", read=_switch, example="on", metavar="auto|on|off")
TEXT: Final = Form(text="text", read=_text, example="text")
PATH: Final = Form(text="a path", read=_path, example="/path/to/it", metavar="PATH")
PATHS: Final = Form(
    text="paths with commas between them, or a list of paths", read=_paths, example="/data,/home", metavar="PATH,..."
)
SECTION_TIMEOUTS: Final = Form(
    text="a mapping of section to seconds, or text such as setup:600,step:60,checkpointing:none",
    read=_section_timeouts, write=dict, example="step:60", unit="s", metavar="SECTION:SECONDS,...",
)  # fmt: skip
