"""The settings in `--rdzv-conf`, and the timeouts that follow from them. Pure.

Each key is declared once: how it is read, what it means, which backends have it. One of torch or nvidia-resiliency-ext
that is not, is refused, with what to write instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from nvrx_core.errors import ConfigurationError
from nvrx_core.settings.spelling import nearest

__all__ = ["KEYS", "OURS", "Key", "RendezvousSettings", "backend_named"]

Value = TypeVar("Value")
Reader = Callable[[str, str], Any]
OURS: Final = ("c10d", "etcd-v2", "static")
C10D: Final = ("c10d",)
TCP_STORE: Final = ("c10d", "static")
ETCD_V2: Final = ("etcd-v2",)
LAUNCHERS: Final = (*OURS, "etcd")
OF_ETCD: Final = ("cacert", "cert", "etcd_prefix", "key", "last_call_timeout", "protocol", "timeout")
"""The keys of torch's handler `etcd`, which reads them itself."""
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


@dataclass(frozen=True)
class Key:
    """A key of `--rdzv-conf`.

    Attributes:
        name: the key.
        read: returns its value, given key and text.
        help: what it means.
        default: its default, in words.
        backends: those that have it.
        is_jobs: the value of one node counts for all: that of the coordinator's launcher.
    """

    name: str
    read: Reader
    help: str
    default: str = ""
    backends: tuple[str, ...] = OURS
    is_jobs: bool = False


def _key(
    value: Value, read: Reader, help: str, *, default: str | None = None, backends: tuple[str, ...] = OURS,
    is_jobs: bool = False,
) -> Value:  # fmt: skip
    """Declare a key that is a field of the settings, with the value that it has by default."""
    shown = f"{value:g}" if default is None else default
    more = {"read": read, "help": help, "default": shown, "backends": backends, "is_jobs": is_jobs}
    return field(default=value, metadata=more)


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


@dataclass(frozen=True)
class RendezvousSettings:
    """The settings of a rendezvous, by their keys; times in seconds.

    Attributes:
        given: all keys, as given; the others are described where they are declared.
    """

    join_timeout: float = _key(
        600.0, _seconds, "seconds within which `--nnodes` minimum nodes must have joined, at each cycle", is_jobs=True
    )
    last_call_timeout: float = _key(
        1.0, _seconds, "seconds that the first cycle waits for more nodes than the minimum", is_jobs=True
    )
    store_connect_wait_seconds: float = _key(
        600.0, _seconds, "seconds that a launcher waits for the one that hosts the rendezvous", default="`join_timeout`"
    )
    read_timeout: float = _key(
        30.0, _seconds, "seconds for a request to the store; a slower one is made again over another connection"
    )
    close_timeout: float = _key(
        5.0, _seconds, "seconds that the host of the rendezvous waits at the end until all others have heard of it",
        backends=LAUNCHERS,
    )  # fmt: skip
    keep_alive_interval: float = _key(
        1.0, functools.partial(_seconds, least=0.1), "seconds between two signs of life, 0.1 or more", is_jobs=True
    )
    keep_alive_max_attempt: int = _key(
        5, lambda key, text: round(_seconds(key, text, least=2)),
        "how many may be missing before a node is lost, 2 or more", is_jobs=True,
    )  # fmt: skip
    same_command: bool | None = _key(
        None, _flag, "0: launchers may run different commands; 1: they must not", default="a warning",
        backends=LAUNCHERS,
    )  # fmt: skip
    is_host: bool | None = _key(
        None, _flag, "1: this launcher must host the rendezvous; 0: it must not", default="who can", backends=C10D
    )
    protocol: str = _key(
        "http", functools.partial(_choice, choices=("http", "https")), "`http`, or `https` and its files",
        default="`http`", backends=ETCD_V2,
    )  # fmt: skip
    ca_cert: str = _key(
        "", _text, "file with the authority that has signed etcd's certificate", default="", backends=ETCD_V2
    )
    ssl_cert: str = _key("", _text, "file with this node's certificate", default="", backends=ETCD_V2)
    ssl_cert_key: str = _key("", _text, "file with its key", default="", backends=ETCD_V2)
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
        keys = {key.name: key for key in KEYS if backend in key.backends}
        if not keys:  # another's backend has keys that nobody else knows
            return cls(given=given)
        for name in given:
            _check(name, sorted((*keys, *OF_ETCD)) if backend == "etcd" else sorted(keys), backend)
        read = {name: keys[name].read(name, value) for name, value in given.items() if name in keys}
        timeout = read.pop("timeout", cls.join_timeout)
        read.setdefault("store_connect_wait_seconds", read.setdefault("join_timeout", timeout))
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in read.items() if name in known}, given=given)


KEYS: Final = (
    *(Key(each.name, **each.metadata) for each in fields(RendezvousSettings) if each.metadata),
    Key("timeout", _seconds, "`join_timeout`, where that is not given"),
    Key(
        "store_type",
        functools.partial(_choice, choices=("tcp",)),
        "`tcp`: anything else is refused",
        "`tcp`",
        TCP_STORE,
    ),
    Key("use_libuv", functools.partial(_choice, choices=TRUE), "`1`: anything else is refused", "`1`", TCP_STORE),
)
"""All keys but those of a handler of torch's or a user's; the last three are no fields."""


def backend_named(text: str) -> str:
    """Return one of our backends, in any case and with or without `nvrx-` before it; another's name as it is."""
    name = text.strip()
    return next((ours for ours in OURS if name.lower() in (ours, f"nvrx-{ours}")), name)


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for key, equals, value in pairs:
        if not key.strip() or not equals or not value.strip():
            raise _wrong(f"{key.strip()!r} has no value", "write <key>=<value>,<key>=<value>")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _check(key: str, known: Sequence[str], backend: str) -> None:
    if key in REFUSED:
        raise _wrong(f"{key} has no effect here", REFUSED[key])
    if key == "rank" and backend == "static":  # torch's handler is told so by torchrun
        raise _wrong(f"{backend} has no {key!r}", "write --node-rank")
    if key not in known:
        close = nearest(key, known)
        advice = f"did you mean {close}?" if close else f"it has {', '.join(known)}"
        raise _wrong(f"{backend} has no {key!r}", advice)


def _wrong(problem: str, advice: str) -> ConfigurationError:
    return ConfigurationError("command line", "--rdzv-conf", problem, advice)
