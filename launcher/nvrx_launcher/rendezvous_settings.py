"""The settings in `--rdzv-conf`. Pure.

Each key of torch or nvidia-resiliency-ext either works or is refused, with what to write instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.settings.spelling import nearest

__all__ = ["OURS", "STATIC", "RendezvousSettings"]

BOTH: Final = (
    "close_timeout", "join_timeout", "keep_alive_interval", "keep_alive_max_attempt", "last_call_timeout",
    "read_timeout", "same_command", "store_connect_wait_seconds", "timeout",
)  # fmt: skip
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "c10d": (*BOTH, "is_host", "store_type", "use_libuv"),
    "etcd-v2": (*BOTH, "ca_cert", "protocol", "ssl_cert", "ssl_cert_key"),
    "etcd": (
        "cacert",
        "cert",
        "close_timeout",
        "etcd_prefix",
        "key",
        "last_call_timeout",
        "protocol",
        "same_command",
        "timeout",
    ),
    "static": ("close_timeout", "same_command", "timeout"),
}
"""Those of torch's own handlers are theirs; they read them themselves."""
OURS: Final = ("c10d", "etcd-v2")
STATIC: Final = "static"
REFUSED: Final = {
    "heartbeat_timeout": "a lease that does not move counts; write keep_alive_interval or keep_alive_max_attempt",
    "replacement_group_size": "groups of spares are not implemented; leave it out",
    "segment": "segments of nodes are not implemented; leave it out",
    "segment_check_interval": "segments of nodes are not implemented; leave it out",
}
TRUE: Final = ("1", "true", "t", "yes", "y")
FALSE: Final = ("0", "false", "f", "no", "n")


@dataclass(frozen=True)
class RendezvousSettings:
    """The settings of a rendezvous; times in seconds.

    Attributes:
        join_timeout: within which enough nodes must have joined.
        last_call: for how long the first cycle waits for more nodes.
        close_timeout: for how long the coordinator's launcher waits for the others at the end.
        read_timeout: for one request to the store.
        connect_timeout: within which the store must be reachable.
        beat: between two renewals of a lease.
        lost_after: beats without a renewal after which a node is lost.
        is_host: whether this launcher hosts the store; None: if it can.
        same_command: whether a launcher of another command is refused (True), warned of (None), or expected (False).
        protocol, ca_cert, ssl_cert, ssl_cert_key: the connection to etcd.
        given: all keys, as given.
    """

    join_timeout: float = 600.0
    last_call: float = 1.0
    close_timeout: float = 5.0
    read_timeout: float = 30.0
    connect_timeout: float = 600.0
    beat: float = 1.0
    lost_after: int = 5
    is_host: bool | None = None
    same_command: bool | None = None
    protocol: str = "http"
    ca_cert: str = ""
    ssl_cert: str = ""
    ssl_cert_key: str = ""
    given: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, backend: str) -> RendezvousSettings:
        """Read `<key>=<value>,<key>=<value>` for a backend.

        Raises:
            ConfigurationError: when a key is unknown, is refused, or has a wrong value.
        """
        given = _pairs(text)
        if (known := KEYS.get(backend)) is None:  # another's backend has keys that nobody else knows
            return cls(given=given)
        for key in given:
            _check(key, known, backend)
        if backend not in OURS:
            return cls(
                close_timeout=_seconds(given, "close_timeout", cls.close_timeout),
                same_command=_flag(given, "same_command"), given=given,
            )  # fmt: skip
        _choice(given, "store_type", ("tcp",))
        _choice(given, "use_libuv", TRUE)
        join_timeout = _seconds(given, "join_timeout", _seconds(given, "timeout", cls.join_timeout))
        return cls(
            join_timeout=join_timeout, last_call=_seconds(given, "last_call_timeout", cls.last_call),
            close_timeout=_seconds(given, "close_timeout", cls.close_timeout),
            read_timeout=_seconds(given, "read_timeout", cls.read_timeout),
            connect_timeout=_seconds(given, "store_connect_wait_seconds", join_timeout),
            beat=_seconds(given, "keep_alive_interval", cls.beat, least=0.1),
            lost_after=round(_seconds(given, "keep_alive_max_attempt", cls.lost_after, least=2)),
            is_host=_flag(given, "is_host"), same_command=_flag(given, "same_command"),
            protocol=_choice(given, "protocol", ("http", "https")), ca_cert=given.get("ca_cert", ""),
            ssl_cert=given.get("ssl_cert", ""), ssl_cert_key=given.get("ssl_cert_key", ""), given=given,
        )  # fmt: skip


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for key, equals, value in pairs:
        if not key.strip() or not equals or not value.strip():
            raise _wrong(f"{key.strip()!r} has no value", "write <key>=<value>,<key>=<value>")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _check(key: str, known: tuple[str, ...], backend: str) -> None:
    if key in REFUSED:
        raise _wrong(f"{key} has no effect here", REFUSED[key])
    if key not in known:
        close = nearest(key, known)
        advice = f"did you mean {close}?" if close else f"it has {', '.join(known)}"
        raise _wrong(f"{backend} has no {key!r}", advice)


def _seconds(given: Mapping[str, str], key: str, default: float, *, least: float = 0.0) -> float:
    try:
        value = float(given.get(key, default))
    except ValueError:
        raise _wrong(f"{key}={given[key]!r} is no number", "write a number of seconds") from None
    if not least <= value < math.inf:
        raise _wrong(f"{key}={given[key]} is out of range", f"write a number, {least:g} or more")
    return value


def _flag(given: Mapping[str, str], key: str) -> bool | None:
    if key not in given:
        return None
    return _choice(given, key, (*TRUE, *FALSE)) in TRUE


def _choice(given: Mapping[str, str], key: str, choices: tuple[str, ...]) -> str:
    value = given.get(key, choices[0]).lower()
    if value not in choices:
        raise _wrong(f"{key}={given[key]!r} is none of {', '.join(choices)}", f"write {choices[0]}")
    return value


def _wrong(problem: str, advice: str) -> ConfigurationError:
    return ConfigurationError("command line", "--rdzv-conf", problem, advice)
