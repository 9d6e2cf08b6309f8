"""Keys in etcd that are attached to a lease, their transactions, and counters that etcd itself counts.

All keys of a job are attached to one lease, which its ranks keep alive: `LEASE` seconds after the last rank they
expire. A counter is a key whose writes etcd counts, so that ranks which count at the same moment do not conflict.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nvrx_core.store.etcd_client import EtcdClient, EtcdError, encoded

__all__ = [
    "COUNTER", "LEASE", "LeasedKeys", "Op", "Value", "after_prefix", "both", "comparison", "found_in", "portions",
    "range_of",
]  # fmt: skip

LEASE: Final = 60
"""Seconds that keys outlive the last rank of their job."""
AT_ONCE: Final = 100
"""Operations in one transaction; etcd allows 128 by default."""
LISTED: Final = 5_000
"""Keys in one answer that lists them."""
COUNTER: Final = b"\0nvrx counter"
"""The value of a counter: what it stands at is how often it was written."""
NOT_FOUND: Final = 5
Op = dict[str, Any]
"""A comparison or an operation of a transaction, in the JSON of etcd's gateway."""


class LeasedKeys:
    """Transactions on the keys of one lease.

    Args:
        etcd: the connection.
        lease: the number of the lease.
    """

    def __init__(self, etcd: EtcdClient, lease: int) -> None:
        self._etcd, self.lease = etcd, lease
        self._renew_at = 0.0

    def transaction(self, compare: Sequence[Op], success: Sequence[Op], failure: Sequence[Op] = ()) -> dict[str, Any]:
        """Execute `success` if all comparisons hold, else `failure`; return etcd's answer."""
        body = {"compare": list(compare), "success": list(success), "failure": list(failure)}
        return self._etcd.call("/kv/txn", body)

    def each(self, operations: Sequence[Op]) -> list[Op]:
        """Execute operations that need not be one transaction; return the answer to each."""
        return [answer for some in portions(operations) for answer in self.transaction([], some)["responses"]]

    def put(self, name: str, value: bytes) -> Op:
        """The operation that writes a key."""
        return {"request_put": {"key": encoded(name), "value": encoded(value), "lease": self.lease}}

    def written(self, write: Callable[[], Any]) -> Any:
        """Execute a write while the lease exists and is not about to expire."""
        if time.monotonic() >= self._renew_at:
            self._renew()
        try:
            return write()
        except EtcdError as error:
            if error.code != NOT_FOUND:
                raise
        self._renew()
        return write()

    def _renew(self) -> None:
        alive = self._etcd.call("/lease/keepalive", {"ID": self.lease}).get("result", {})
        if not int(alive.get("TTL", 0)):
            try:
                self._etcd.call("/lease/grant", {"ID": self.lease, "TTL": LEASE})
            except EtcdError as error:
                if "already exists" not in str(error):
                    raise
        self._renew_at = time.monotonic() + LEASE / 3


@dataclass(frozen=True)
class Value:
    """A key's value, the number of writes since its creation, and the revision of the last write."""

    raw: bytes
    version: int
    modified: int

    @property
    def shown(self) -> bytes:
        """The value as the store returns it: for a counter, how often it was written."""
        return str(self.version).encode() if self.raw == COUNTER else self.raw


def found_in(answer: Op) -> Value | None:
    """Return the value in the answer to a range request, None if there is no key."""
    for kv in answer["response_range"].get("kvs", ()):
        return Value(b64decode(kv.get("value", "")), int(kv["version"]), int(kv["mod_revision"]))
    return None


def range_of(
    name: str, *, range_end: str = "", revision: int = 0, count_only: bool = False, keys_only: bool = False
) -> Op:
    """Return the request that reads a key, or a range of keys; without their values, up to `LISTED` of them."""
    options: Op = {"range_end": encoded(range_end)} if range_end else {}
    if keys_only:
        options |= {"keys_only": True, "limit": LISTED}
    return {"request_range": {"key": encoded(name), "revision": revision, "count_only": count_only, **options}}


def both(*names: str) -> list[Op]:
    """Return the requests that read these keys."""
    return [range_of(name) for name in names]


def comparison(name: str, target: str, **to: Any) -> Op:
    """Return a comparison of a transaction; without `to`, that the key was never created."""
    return {"key": encoded(name), "target": target, "result": "EQUAL", **(to or {"create_revision": 0})}


def portions(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split the operations into portions that fit in one transaction."""
    return (items[at : at + AT_ONCE] for at in range(0, len(items), AT_ONCE))


def after_prefix(prefix: str) -> str:
    """Return the end of the range of all keys that begin with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "\0"
