"""A client of etcd's HTTP gateway: bounded requests, failover between endpoints, waits by watches.

A request without an answer is repeated, at the next endpoint, until etcd has been silent for too long. The first
attempt may have been executed nevertheless, so callers make each request idempotent. This is the only file that imports
etcd3gw, the extra `etcd`; it is imported only when an etcd store is used.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from etcd3gw import Etcd3Client
from etcd3gw.exceptions import (
    ConnectionFailedError,
    ConnectionTimeoutError,
    Etcd3Exception,
    InternalServerError,
)

from nvrx_core.backoff import Backoff
from nvrx_core.parsing import endpoint_text
from nvrx_core.process.sockets import of_descriptor
from nvrx_core.store.endpoint import LINE_EVERY, StoreConnectionError, StoreRefusedError, StoreSilentError

__all__ = ["Endpoint", "EtcdClient", "EtcdError", "EtcdLost", "EtcdRefused", "encoded"]

log = logging.getLogger("nvrx_core.store")
DEFAULT_PORT: Final = 2379
REQUEST: Final = 2.0
"""Seconds that one request may take."""
ANSWER_TIMEOUT: Final = 7.0
"""Seconds that an etcd which accepted a connection has to answer."""
SILENCE: Final = 5.0
"""Seconds without an event after which a watch is begun anew: its endpoint may be gone without a word."""
PAUSES: Final = Backoff(0.01, 0.25)
"""Between two tries of a request."""
_PASSING: Final = frozenset({1, 4, 8, 10, 13, 14})
"""Codes of gRPC for what may go well the next time: cancelled, late, exhausted, aborted, internal, unavailable."""
_DOUBTFUL: Final = frozenset({-1, 5})
"""A proxy may have answered; and a lease that has expired is granted again by the next write."""
TOO_LARGE: Final = "larger than max"
"""The text of gRPC, under the code of what is exhausted, about a request that never fits."""


class EtcdError(RuntimeError):
    """A request was refused.

    Attributes:
        code: its gRPC code; -1 when the answer was not etcd's, but perhaps that of a proxy.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self._text, self.code = text, code

    def __str__(self) -> str:
        return self._text


class EtcdRefused(EtcdError, StoreRefusedError):
    """etcd itself refused a request."""


class EtcdLost(ConnectionError):
    """etcd no longer answers, or this client was closed."""


class _NoAnswer(Exception):
    """A request without a usable answer; `refused`: no process listens, or etcd is not ready."""

    def __init__(self, text: str, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


@dataclass(frozen=True)
class Endpoint:
    """The address at which a member of the cluster serves clients."""

    host: str
    port: int = DEFAULT_PORT
    protocol: str = "http"

    def __str__(self) -> str:
        return f"{self.protocol}://{endpoint_text(self.host, self.port)}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse `host`, `host:port`, `http://host:port` or `https://host:port`.

        Raises:
            ValueError: when the text has none of these forms.
        """
        text = text.strip()
        is_ipv6 = text.count(":") > 1 and "[" not in text and "://" not in text
        try:
            parts = urlsplit(f"http://[{text}]" if is_ipv6 else text if "://" in text else f"http://{text}")
            port = DEFAULT_PORT if parts.port is None else parts.port
        except ValueError:
            parts, port = urlsplit(""), 0
        if parts.scheme not in ("http", "https") or not parts.hostname or not port or parts.path.strip("/"):
            raise ValueError(f"endpoints: {text!r} is not host, host:port or http[s]://host:port")
        return cls(parts.hostname, port, parts.scheme)


class EtcdClient:
    """One client, for any number of threads.

    Args:
        endpoints: the members of the cluster; with several, the loss of one is survived.
        lost_after: seconds without an answer after which etcd counts as lost.
        certificates: `ca_cert`, `cert_key` and `cert_cert`: files for https.

    Raises:
        TypeError: for another name among the certificates.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        lost_after: float,
        **certificates: str,
    ) -> None:
        self.endpoints, self.lost_after = tuple(endpoints), lost_after
        if unknown := certificates.keys() - {"ca_cert", "cert_key", "cert_cert"}:
            raise TypeError(f"etcd: unknown argument {', '.join(sorted(unknown))}")
        self._members = [_member(endpoint, certificates) for endpoint in endpoints]
        self._turn = 0
        self._answered = 0.0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._streams = set[requests.Response]()

    def reach(self, timeout: float) -> None:
        """Wait until etcd answers, `timeout` seconds at most.

        Raises:
            StoreSilentError: when it accepts connections and does not answer for 7 s.
            StoreConnectionError: when it does not answer in time.
        """
        start = time.monotonic()
        next_line, failures, refused_at = start + LINE_EVERY, 0, start
        while (failure := self._probe()) is not None:
            now = time.monotonic()
            refused_at = now if failure.refused else refused_at
            if now - start >= timeout or now - refused_at >= ANSWER_TIMEOUT:
                kind = StoreSilentError if now - refused_at >= ANSWER_TIMEOUT else StoreConnectionError
                raise kind(
                    f"no answer from etcd at {self} within {now - start:.1f} s ({failure}); "
                    "is it running and reachable?"
                )
            if now >= next_line:
                log.warning("waiting for etcd at %s since %.0f s (%s)", self, now - start, failure)
                next_line += LINE_EVERY
            failures += 1
            self._ended.wait(min(PAUSES.pause(failures), start + timeout - now))

    def _probe(self) -> _NoAnswer | None:
        try:
            self._try("/kv/range", {"key": encoded("nvrx"), "count_only": True})
        except _NoAnswer as failure:
            self._turn += 1
            return failure
        except EtcdError as error:
            raise StoreConnectionError(
                f"what answers at {self} is no etcd for us: {error}; is another service using this port?"
            ) from None
        return None

    def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make a request, and repeat it until it is answered.

        Raises:
            EtcdError: when etcd refuses it.
            EtcdLost: when etcd has not answered for `lost_after` seconds, or this client was closed.
        """
        started, failures = time.monotonic(), 0
        while not self._ended.is_set():
            try:
                return self._try(path, body)
            except _NoAnswer as failure:
                self._turn, failures = self._turn + 1, failures + 1
                pause = PAUSES.pause(failures)
                if time.monotonic() + pause - max(started, self._answered) > self.lost_after:
                    raise EtcdLost(f"no answer from etcd at {self} for {self.lost_after:g} s: {failure}") from None
                self._ended.wait(pause)
        raise EtcdLost("this connection to etcd was ended")

    def _try(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        member = self._members[self._turn % len(self._members)]
        try:
            answer: dict[str, Any] = member.post(member.get_url(path), json=body)
        except (ConnectionFailedError, ConnectionTimeoutError, InternalServerError) as error:
            raise _NoAnswer(_line(error), isinstance(error, ConnectionFailedError)) from None
        except requests.RequestException as error:
            raise _NoAnswer(_line(error), refused=False) from None
        except Etcd3Exception as error:
            text, code = _refusal(error)
            if code in _PASSING and TOO_LARGE not in text:
                raise _NoAnswer(text, refused=False) from None
            raise (EtcdError if code in _DOUBTFUL else EtcdRefused)(text, code) from None
        self._answered = time.monotonic()
        return answer

    def watch(self, key: str, revision: int, timeout: float) -> bool:
        """Block until the key is written at `revision` or later, no longer than `timeout` seconds.

        Returns:
            Whether it was. False also when in doubt: the caller then reads the key again.
        """
        member = self._members[self._turn % len(self._members)]
        body: Any = {"create_request": {"key": encoded(key), "start_revision": revision}}
        limits = (REQUEST, max(min(timeout, SILENCE), 0.001))
        try:
            with (
                member.session.post(member.get_url("/watch"), json=body, stream=True, timeout=limits) as response,
                self._streaming(response),
            ):
                return _await_put(response)
        except (requests.RequestException, OSError) as error:
            if not _ran_out(error):
                self._turn += 1
                self._ended.wait(PAUSES.first)
            return False

    @contextmanager
    def _streaming(self, response: requests.Response) -> Iterator[None]:
        with self._lock:
            self._streams.add(response)
        if self._ended.is_set():
            _shut(response)
        try:
            yield
        finally:
            with self._lock:
                self._streams.discard(response)

    def end(self) -> None:
        """End all waits, in any thread; every later request fails."""
        self._ended.set()
        with self._lock:
            for response in self._streams:
                _shut(response)
        for member in self._members:
            member.session.close()

    def __str__(self) -> str:
        return ", ".join(str(endpoint).rpartition("/")[2] for endpoint in self.endpoints)


def _member(endpoint: Endpoint, files: Mapping[str, Any]) -> Etcd3Client:
    member = Etcd3Client(endpoint.host, endpoint.port, endpoint.protocol, timeout=REQUEST, api_path="/v3/", **files)
    member.session.trust_env = False  # a proxy for the web is no way to a store, and each look costs time
    return member


def _await_put(response: requests.Response) -> bool:
    """Read a watch up to its first event; return whether that is a write of the key."""
    for chunk in response.iter_content(None):
        if chunk.strip() and (b'"created"' not in chunk or b'"events"' in chunk):
            return b'"events"' in chunk and b'"DELETE"' not in chunk
    return False


def _ran_out(error: Exception) -> bool:
    """Whether a watch has timed out; while a stream is read, `requests` wraps the timeout in another error."""
    return isinstance(error, requests.Timeout) or "Read timed out" in str(error)


def _shut(response: requests.Response) -> None:
    with (
        suppress(OSError, ValueError, AttributeError),
        of_descriptor(os.dup(response.raw.fileno())) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)


def _refusal(error: Etcd3Exception) -> tuple[str, int]:
    """Return the gateway's text about a refused request, and gRPC's code."""
    try:
        body = json.loads(error.detail_text or "")
        return str(body["error"]), int(body["code"])
    except (ValueError, KeyError, TypeError):
        return f"{_line(error)} {(error.detail_text or '')[:80]!r}", -1


def _line(error: Exception) -> str:
    """Return the text of an error, without the texts that requests wraps around it."""
    text = str(error) or str(getattr(error, "detail_text", "") or "") or type(error).__name__
    system = re.search(r"\[Errno -?\d+\] [^'\")]+", text)
    return system[0] if system else text.splitlines()[0][:200]


def encoded(value: str | bytes) -> str:
    """Return a key or value in the gateway's encoding."""
    return b64encode(value if isinstance(value, bytes) else value.encode()).decode("ascii")
