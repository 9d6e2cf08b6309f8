"""Reading what came through the store: JSON of bounded size, whose values have the type and the range they must have.

Pure. Anybody who reaches the store can write to it, so nothing is believed: what is malformed is a `ValueError`, and
what would cost without bound, such as a number of ranks, is bounded here.
"""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = ["MAX_RANKS", "address", "integer", "integers", "number", "parse_json", "parse_object", "string"]

MAX_RANKS: Final = 1 << 20
"""No job has more ranks."""
WORD: Final = 1 << 63
MAX_BYTES: Final = 1 << 24
MAX_HOST: Final = 255
MAX_PORT: Final = (1 << 16) - 1


def parse_json(text: str | bytes) -> Any:
    """The JSON value that `text` is.

    Raises:
        ValueError: when it is none.
    """
    try:
        if len(text) > MAX_BYTES:
            raise ValueError(f"longer than {MAX_BYTES} bytes")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {text[:100]!r}") from error


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object that `text` is; ValueError when it is none."""
    data = parse_json(text)
    if not isinstance(data, dict):
        raise ValueError(f"not a JSON object: {text[:100]!r}")
    return data


def integer(value: object, minimum: int = -WORD, maximum: int = WORD) -> int:
    """`value`, an integer of at least `minimum` and at most `maximum`; ValueError when it is none."""
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"not an integer from {minimum} to {maximum}: {value!r:.100}")
    return value


def integers(value: object, minimum: int = -WORD, maximum: int = WORD) -> tuple[int, ...]:
    """A list of at most `MAX_RANKS` such integers; ValueError when it is none."""
    if not isinstance(value, list) or len(value) > MAX_RANKS:
        raise ValueError(f"not a list of integers: {value!r:.100}")
    return tuple(integer(each, minimum, maximum) for each in value)


def number(value: object) -> float:
    """`value`, a finite number; ValueError when it is none."""
    if not isinstance(value, int | float) or not -WORD <= value <= WORD:
        raise ValueError(f"not a finite number: {value!r:.100}")
    return value


def string(value: object) -> str:
    """`value`, a text; ValueError when it is none."""
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r:.100}")
    return value


def address(text: bytes) -> tuple[str, int]:
    """The host and port that `host:port` names; ValueError when it names none."""
    host, _, port = text.decode("ascii").rpartition(":")
    if not (0 < len(host) <= MAX_HOST and host.isprintable() and " " not in host and port.isdecimal()):
        raise ValueError(f"not host:port: {text[:100]!r}")
    return host, integer(int(port), 1, MAX_PORT)
