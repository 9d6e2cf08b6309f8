"""The settings in `--rdzv-conf`, and the timeouts that follow from them. Pure.

Each key of torch or nvidia-resiliency-ext either works or is refused, with what to write instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.settings.spelling import nearest

__all__ = ["OURS", "RendezvousSettings"]

BOTH: Final = (
    "close_timeout", "join_timeout", "keep_alive_interval", "keep_alive_max_attempt", "last_call_timeout",
    "read_timeout", "same_command", "store_connect_wait_seconds", "timeout",
)  # fmt: skip
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "c10d": (*BOTH, "is_host", "store_type", "use_libuv"),
    "etcd-v2": (*BOTH, "ca_cert", "protocol", "ssl_cert", "ssl_cert_key"),
    "etcd": (
        "cacert", "cert", "close_timeout", "etcd_prefix", "key", "last_call_timeout", "protocol", "same_command",
        "timeout",
    ),
    "static": BOTH,
}  # fmt: skip
"""Those of torch's handler `etcd` are its own; it reads them itself."""
OURS: Final = ("c10d", "etcd-v2", "static")
REFUSED: Final = {
    "heartbeat_timeout": "a lease that does not move counts; write keep_alive_interval or keep_alive_max_attempt",
    "replacement_group_size": "groups of spares are not implemented; leave it out",
    "segment": "write --ft-segment",
    "segment_check_interval": "a node that joins is noticed at once; leave it out",
}
CLOSED_FOR: Final = 1.5
"""Beats from the close of a connection to the loss of its node."""
TRUE: Final = ("1", "true", "t", "yes", "y")
FALSE: Final = ("0", "false", "f", "no", "n")


def _seconds(key: str, text: str, *, least: float = 0.0) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _wrong(f"{key}={text!r} is no number", "write a number of seconds") from None
    if not least <= value < math.inf:
        raise _wrong(f"{key}={text} is out of range", f"write a number, {least:g} or more")
    return value


def _choice(key: str, text: str, *, choices: tuple[str, ...]) -> str:
    if text.lower() not in choices:
        raise _wrong(f"{key}={text!r} is none of {', '.join(choices)}", f"write {choices[0]}")
    return text.lower()


def _flag(key: str, text: str) -> bool:
    return _choice(key, text, choices=(*TRUE, *FALSE)) in TRUE


def _text(_: str, text: str) -> str:
    return text


READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "join_timeout": _seconds, "timeout": _seconds, "last_call_timeout": _seconds, "close_timeout": _seconds,
    "read_timeout": _seconds, "store_connect_wait_seconds": _seconds,
    "keep_alive_interval": functools.partial(_seconds, least=0.1),
    "keep_alive_max_attempt": lambda key, text: round(_seconds(key, text, least=2)),
    "is_host": _flag, "same_command": _flag,
    "store_type": functools.partial(_choice, choices=("tcp",)), "use_libuv": functools.partial(_choice, choices=TRUE),
    "protocol": functools.partial(_choice, choices=("http", "https")),
    "ca_cert": _text, "ssl_cert": _text, "ssl_cert_key": _text,
}  # fmt: skip
"""How the value of a key is read."""
WITHOUT_EFFECT: Final = ("store_type", "use_libuv")
"""They can say only what holds anyway."""
OF_THE_LAUNCHER: Final = ("close_timeout", "same_command")
"""The keys that are the launcher's also where the handler is torch's."""


@dataclass(frozen=True)
class RendezvousSettings:
    """The settings of a rendezvous, by their keys; times in seconds.

    Attributes:
        join_timeout: within which enough nodes must have joined.
        last_call_timeout: for how long the first cycle waits for more nodes.
        close_timeout: for how long the coordinator's launcher waits for the others at the end.
        read_timeout: for one request to the store.
        store_connect_wait_seconds: within which the store must be reachable.
        keep_alive_interval: between two renewals of a lease: a beat.
        keep_alive_max_attempt: beats without a renewal after which a node is lost.
        is_host: whether this launcher hosts the store; None: if it can.
        same_command: whether a launcher of another command is refused (True), warned of (None), or expected (False).
        protocol, ca_cert, ssl_cert, ssl_cert_key: the connection to etcd.
        given: all keys, as given.
    """

    join_timeout: float = 600.0
    last_call_timeout: float = 1.0
    close_timeout: float = 5.0
    read_timeout: float = 30.0
    store_connect_wait_seconds: float = 600.0
    keep_alive_interval: float = 1.0
    keep_alive_max_attempt: int = 5
    is_host: bool | None = None
    same_command: bool | None = None
    protocol: str = "http"
    ca_cert: str = ""
    ssl_cert: str = ""
    ssl_cert_key: str = ""
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def lease_timeout(self) -> float:
        """Seconds without a renewal that others see after which a node is lost."""
        return self.keep_alive_interval * self.keep_alive_max_attempt

    @property
    def own_lease_timeout(self) -> float:
        """Seconds without a renewal after which a node considers itself lost: a beat earlier than the others do."""
        return self.keep_alive_interval * (self.keep_alive_max_attempt - 1)

    @property
    def closed_timeout(self) -> float:
        """Seconds from the close of a node's connection, without a renewal since, after which it is lost.

        A node that lives renews its lease once a beat.
        """
        return self.keep_alive_interval * CLOSED_FOR

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
        mine = READERS if backend in OURS else OF_THE_LAUNCHER
        read = {key: READERS[key](key, value) for key, value in given.items() if key in mine}
        timeout = read.pop("timeout", cls.join_timeout)
        read.setdefault("store_connect_wait_seconds", read.setdefault("join_timeout", timeout))
        return cls(**{key: value for key, value in read.items() if key not in WITHOUT_EFFECT}, given=given)


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


def _wrong(problem: str, advice: str) -> ConfigurationError:
    return ConfigurationError("command line", "--rdzv-conf", problem, advice)
