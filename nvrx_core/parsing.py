"""Parsing and validation of values read from the store, and of endpoints wherever they are written. Pure.

Any process that reaches the store can write to it, so its values are not trusted: a malformed value raises
`ValueError`, and whatever could cost unbounded time or memory, such as a number of ranks, has a bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

__all__ = [
    "MAX_INTEGER",
    "MAX_PORT",
    "MAX_RANKS",
    "address",
    "count_in",
    "endpoint_text",
    "integer",
    "integers",
    "number",
    "parse_endpoint",
    "parse_json",
    "parse_object",
    "parse_ranges",
    "ranges",
    "string",
]

MAX_RANKS: Final = 1 << 20
"""The largest number of ranks of a job."""
MAX_INTEGER: Final = 1 << 63
MAX_DIGITS: Final = 18
"""Digits of a number that is below `MAX_INTEGER` whatever they are."""
MAX_BYTES: Final = 1 << 24
MAX_HOST: Final = 255
MAX_PORT: Final = (1 << 16) - 1


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: when the text is too long or not JSON.
    """
    try:
        if len(text) > MAX_BYTES:
            raise ValueError(f"longer than {MAX_BYTES} bytes")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {text[:100]!r}") from error


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object that `text` encodes.

    Raises:
        ValueError: when it is not a JSON object.
    """
    data = parse_json(text)
    if not isinstance(data, dict):
        raise ValueError(f"not a JSON object: {text[:100]!r}")
    return data


def integer(value: object, minimum: int = -MAX_INTEGER, maximum: int = MAX_INTEGER) -> int:
    """Return `value` if it is an integer from `minimum` to `maximum`, else raise ValueError."""
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"not an integer from {minimum} to {maximum}: {value!r:.100}")
    return value


def integers(value: object, minimum: int = -MAX_INTEGER, maximum: int = MAX_INTEGER) -> tuple[int, ...]:
    """Return `value` if it is a list of at most `MAX_RANKS` such integers, else raise ValueError."""
    if not isinstance(value, list) or len(value) > MAX_RANKS:
        raise ValueError(f"not a list of integers: {value!r:.100}")
    return tuple(integer(each, minimum, maximum) for each in value)


def number(value: object) -> float:
    """Return `value` if it is a finite number, else raise ValueError."""
    if not isinstance(value, int | float) or not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ValueError(f"not a finite number: {value!r:.100}")
    return value


def count_in(text: str) -> int:
    """Return the number that a text of at most `MAX_DIGITS` ASCII digits says; -1 for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else -1


def string(value: object) -> str:
    """Return `value` if it is a string, else raise ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r:.100}")
    return value


def ranges(ranks: Iterable[int]) -> str:
    """Return ranks as text in ascending order, neighbours as a range: "0-3, 7"."""
    runs = list[tuple[int, int]]()
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1] = runs[-1][0], rank
        else:
            runs.append((rank, rank))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_ranges(text: object) -> frozenset[int]:
    """Return the ranks of a text that `ranges` has written, else raise ValueError."""
    found = set[int]()
    for run in filter(None, string(text).split(", ")):
        first, _, last = run.partition("-")
        begin = integer(count_in(first), 0, MAX_RANKS - 1)
        found.update(range(begin, integer(count_in(last or first), begin, MAX_RANKS - 1) + 1))
    return frozenset(found)


def address(text: bytes) -> tuple[str, int]:
    """Return host and port of a text `host:port`, else raise ValueError."""
    return parse_endpoint(text.decode("ascii"))


def parse_endpoint(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Return host and port of an endpoint: `host:port`, with an IPv6 address in brackets as in `[fd00::2]:29500`.

    The brackets may be left out where it is certain which colon begins the port, as in `fd00::2:29500`: a part of an
    address has four digits at most.

    Args:
        text: the endpoint.
        default_port: the port of an endpoint without one; None: it must have one.

    Raises:
        ValueError: when it is no endpoint, or could be read in two ways; the text says what to write.
    """
    host, port = _host_and_port(text)
    if not port and default_port is not None and not text.endswith(":"):
        port = str(default_port)
    if not (0 < len(host) <= MAX_HOST and host.isprintable() and not set(host) & set(" /[]")):
        raise ValueError(f"not host:port: {text[:100]!r}")
    if not (port.isascii() and port.isdigit() and len(port) <= len(str(MAX_PORT))):
        raise ValueError(f"not host:port: {text[:100]!r}")
    return host, integer(int(port), 1, MAX_PORT)


def endpoint_text(host: str, port: int) -> str:
    """Return an endpoint as `parse_endpoint` reads it; an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_and_port(text: str) -> tuple[str, str]:
    """Split an endpoint; the port is empty if there is none."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return (host, rest.removeprefix(":")) if rest[:1] in ("", ":") and _is_ipv6(host) else ("", "")
    if text.count(":") < 2:
        host, _, port = text.partition(":")
        return host, port
    if _is_ipv6(text):
        raise ValueError(
            f"{text[:100]!r} does not say where its port begins; put the address in brackets, as in [{text}]:29500"
        )
    host, _, port = text.rpartition(":")
    return (host, port) if _is_ipv6(host) else ("", "")


def _is_ipv6(text: str) -> bool:
    import ipaddress  # of use to few: most endpoints have no second colon

    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
