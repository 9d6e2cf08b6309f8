"""The control store in etcd: it outlives every rank and, as a cluster, every node.

Each operation is correct when etcd executes it twice, as it may after a lost answer: `compare_set` finds its own value,
`add` is guarded by a key of this client that counts its additions. A counter is a key whose writes etcd itself counts,
so that ranks which count at the same moment do not conflict. All keys are attached to one lease, which the job's ranks
keep alive: `LEASE` seconds after the last rank, the keys expire.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from base64 import b64decode
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

import torch.distributed as dist

from nvrx_core.settings.environment import job_name
from nvrx_core.store.etcd_client import Endpoint, EtcdClient, encoded
from nvrx_core.store.leased_keys import (
    COUNTER,
    LEASE,
    LeasedKeys,
    Op,
    Value,
    after_prefix,
    both,
    comparison,
    found_in,
    portions,
    range_of,
)
from nvrx_core.store.mixin import DEFAULT_TIMEOUT, StoreMixin, as_client, client_only

__all__ = ["LEASE", "EtcdStore"]

LOST_AFTER: Final = timedelta(seconds=10)


class EtcdStore(StoreMixin, dist.Store):
    """A control store in etcd (version 3.4 or later), over its HTTP gateway; needs the extra `etcd`.

    If etcd does not answer for `lost_after`, it counts as lost, and the job exits with code 75; a shorter outage is
    survived.

    Args:
        endpoints: `host:port` or `http[s]://host:port`, several of them in a sequence or separated by commas; the next
            one is used when one does not answer. Default: `host` and `port`.
        host: the host of etcd, when `endpoints` are not given.
        port: its port for clients.
        prefix: put before every key, for jobs that share an etcd.
        timeout: how long to wait for the first answer of etcd, and default bound of blocking operations.
        lost_after: how long etcd may be silent; the wrapper itself waits no longer than the default.
        certificates: files for https: `ca_cert` of the trusted authority, `cert_cert` and `cert_key` of the client.

    Raises:
        StoreConnectionError: when etcd does not answer.
    """

    hosted = False

    def __init__(
        self,
        endpoints: str | Sequence[str] | None = None,
        host: str = "127.0.0.1",
        port: int = 2379,
        *,
        prefix: str = "",
        timeout: timedelta = DEFAULT_TIMEOUT,
        lost_after: timedelta = LOST_AFTER,
        **certificates: str,
    ) -> None:
        super().__init__()
        self.set_timeout(timeout)
        self._members = _endpoints(endpoints) or (Endpoint(host, port),)
        self._certificates = certificates
        self.prefix = prefix
        self.endpoint = (self._members[0].host, self._members[0].port)
        self._lost_after = lost_after
        self._etcd = EtcdClient(self._members, lost_after.total_seconds(), **self._certificates)
        self._adding = threading.Lock()
        self._guard, self._guarded, self._old_guard = "", "", ""
        self._additions = 0
        self._keys = LeasedKeys(self._etcd, _lease_id(prefix))
        self._etcd.reach((min(timeout, lost_after) if client_only() else timeout).total_seconds())

    def clone(self) -> EtcdStore:
        """Open one more connection to the same store."""
        options: dict[str, Any] = {"prefix": self.prefix, "timeout": self._timeout(), "lost_after": self._lost_after}
        with as_client():
            return type(self)([str(member) for member in self._members], **(options | self._certificates))

    def _timeout(self) -> timedelta:
        default: timedelta = self.timeout  # type: ignore[attr-defined]
        return default

    def cut(self) -> None:
        """End all waits on this connection; it cannot be used afterwards."""
        self._etcd.end()

    # Reading

    def get(self, key: str) -> bytes:
        """Wait for a key and read it."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Wait for the keys and read them."""
        while (found := self.read(keys)) is None:
            self.wait(keys)
        return found

    def read(self, keys: list[str]) -> list[bytes] | None:
        """Read the keys, in one request; None unless all of them exist."""
        found = [found_in(answer) for answer in self._keys.each([range_of(self.prefix + key) for key in keys])]
        shown = [value.shown for value in found if value is not None]
        return shown if len(shown) == len(keys) else None

    def check(self, keys: list[str]) -> bool:
        """Whether all the keys exist."""
        return self._missing(keys) is None

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Block until all the keys exist.

        Raises:
            torch.distributed.DistStoreError: when they do not exist after the timeout, by default the store's.
        """
        limit = (self._timeout() if timeout is None else timeout).total_seconds()
        deadline = time.monotonic() + limit
        while (missing := self._missing(keys)) is not None:
            name, revision = missing
            left = deadline - time.monotonic()
            if left <= 0:
                raise dist.DistStoreError(f"wait timeout after {limit:g} s: nobody has set {name}")
            if self._etcd.watch(name, revision + 1, left) and len(keys) == 1:
                return

    def _missing(self, keys: Sequence[str]) -> tuple[str, int] | None:
        """Return the first key that does not exist, and the revision of that observation."""
        names = [self.prefix + key for key in keys]
        for some in portions(names):
            answer = self._keys.transaction([], [range_of(name, count_only=True) for name in some])
            for name, found in zip(some, answer["responses"], strict=True):
                if not int(found["response_range"].get("count", 0)):
                    return name, int(answer["header"]["revision"])
        return None

    def num_keys(self) -> int:
        """Return the number of keys in the store."""
        ranges = [
            range_of(prefix or "\0", range_end=after_prefix(prefix), count_only=True)
            for prefix in (self.prefix, self._clients)
        ]
        ours, clients = (int(answer["response_range"].get("count", 0)) for answer in self._keys.each(ranges))
        return ours - clients

    def list_keys(self) -> list[str]:
        """Return all keys of the store."""
        names, more, end = [self.prefix], True, after_prefix(self.prefix)
        while more:
            answer = self._keys.each([range_of(f"{names[-1]}\0", range_end=end, keys_only=True)])[0]["response_range"]
            found, more = answer.get("kvs", ()), bool(answer.get("more"))
            names += [b64decode(each["key"]).decode() for each in found]
        return [name.removeprefix(self.prefix) for name in names[1:] if not name.startswith(self._clients)]

    # Writing

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._keys.written(lambda: self._keys.transaction([], [self._keys.put(self.prefix + key, _bytes(value))]))

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        """Write several values."""
        puts = [self._keys.put(self.prefix + key, _bytes(value)) for key, value in zip(keys, values, strict=True)]
        self._keys.written(lambda: self._keys.each(puts))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` if the key's value is `expected`, or if that is empty and there is no key.

        Returns:
            The present value; `expected` if there is no key.
        """
        name, before, after = self.prefix + key, _bytes(expected), _bytes(desired)
        compare = comparison(name, "VALUE", value=encoded(before)) if before else comparison(name, "CREATE")
        while True:
            exchange = partial(self._keys.transaction, [compare], [self._keys.put(name, after)], [range_of(name)])
            answer = self._keys.written(exchange)
            if answer.get("succeeded"):
                return after
            value = found_in(answer["responses"][0])
            if value is None or value.shown != before:
                return before if value is None else value.shown
            compare = comparison(name, "MOD", mod_revision=value.modified)

    def add(self, key: str, amount: int) -> int:
        """Add to the number in a key, initially 0; return the sum."""
        name = self.prefix + key
        counts = amount == 1
        compare, after = comparison(name, "VALUE", value=encoded(COUNTER)), COUNTER
        if not counts:
            compare, after = comparison(name, "CREATE"), str(amount).encode()
        with self._adding:
            self._guard_in(key.rpartition("/")[0])
            while True:
                done, value = self._add_once(name, compare, after)
                if done and value is not None:
                    return int(value.shown)
                if value is None:
                    compare, after = comparison(name, "CREATE"), COUNTER if counts else str(amount).encode()
                elif counts and value.raw == COUNTER:
                    compare, after = comparison(name, "VALUE", value=encoded(COUNTER)), COUNTER
                else:
                    compare = comparison(name, "MOD", mod_revision=value.modified)
                    after = str(int(value.shown) + amount).encode()

    def _guard_in(self, folder: str) -> None:
        """Return the key that counts this client's additions, one at a time; it is deleted with the folder's keys."""
        if not self._guard or folder != self._guarded:
            self._old_guard, self._guarded, self._additions = self._guard, folder, 0
            self._guard = f"{self._clients}{folder}/{uuid.uuid4().hex}"

    def _add_once(self, name: str, compare: Op, after: bytes) -> tuple[bool, Value | None]:
        """Write, and count the addition in the same transaction; return whether it was done, and the value."""
        new = comparison(self._guard, "VERSION", version=self._additions)
        puts = [self._keys.put(name, after), self._keys.put(self._guard, b"")]
        if self._old_guard:
            puts.append({"request_delete_range": {"key": encoded(self._old_guard)}})
        answer = self._keys.written(
            lambda: self._keys.transaction([new, compare], [*puts, range_of(name)], both(name, self._guard))
        )
        responses = answer["responses"]
        if answer.get("succeeded"):
            self._additions += 1
            self._old_guard = ""
            return True, found_in(responses[-1])
        value, guard = found_in(responses[0]), found_in(responses[1])
        if guard is None or guard.version <= self._additions:
            self._additions = 0 if guard is None else guard.version
            return False, value
        self._additions += 1  # an earlier try was carried out, and its answer lost
        then = self._keys.transaction([], [range_of(name, revision=guard.modified)])
        return True, found_in(then["responses"][0])

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it existed."""
        answer = self._etcd.call("/kv/deleterange", {"key": encoded(self.prefix + key)})
        return int(answer.get("deleted", 0)) > 0

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815 (the names by which torch's C++ asks, from a PrefixStore)

    def forget_except(self, prefix: str, keys: Collection[str]) -> bool:
        """Delete all keys that begin with `prefix`, except these."""
        stay = sorted(self.prefix + key for key in keys if key.startswith(prefix))
        begins = [self._clients + prefix, self.prefix + prefix, *(f"{name}\0" for name in stay)]
        ends = [after_prefix(begins[0]), *stay, after_prefix(begins[1])]
        ranges = [{"key": encoded(a), "range_end": encoded(b)} for a, b in zip(begins, ends, strict=True)]
        self._keys.each([{"request_delete_range": each} for each in ranges])
        return True

    @property
    def _clients(self) -> str:
        return f"{self.prefix}nvrx-client/"


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _endpoints(given: str | Sequence[str] | None) -> tuple[Endpoint, ...]:
    texts = given.split(",") if isinstance(given, str) else given or ()
    return tuple(map(Endpoint.parse, texts))


def _lease_id(prefix: str) -> int:
    """Return a lease id that is equal on all ranks of a job, and unique to the job."""
    name = f"{prefix}\0{job_name()}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1 or 1
