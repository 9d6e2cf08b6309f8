"""Submits the logs of cycles to the attribution service, and asks for its results, in a thread."""

from __future__ import annotations

import http
import http.client
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final
from urllib.parse import quote, urlsplit

from nvrx_core.attribution.verdict import shown
from nvrx_core.backoff import Backoff
from nvrx_core.parsing import parse_object
from nvrx_core.process.helper_thread import HelperThread

__all__ = ["Advice", "AttributionClient"]

log = logging.getLogger("nvrx_launcher")
ANSWER_TIMEOUT: Final = 5.0
"""Seconds in which the service answers a request."""
MAX_ANSWER: Final = 1 << 20
MAX_EXPLANATION: Final = 1_000
RESULT_TIMEOUT: Final = 900.0
"""Seconds for the result of a log."""
TRIES: Final = Backoff(0.1, 2.0)
"""Pauses between the tries of a request, for the service may just be started, and between questions for a result."""
SUBMIT_TIMEOUT: Final = 20.0
MOST_SUBMISSIONS: Final = 8
"""Times that a log is submitted again to a service that does not know it: one that was started again."""
END_TIMEOUT: Final = 1.0
"""Seconds that the thread has to end in once its request is cut off."""


class _NotSubmittedError(ValueError):
    """The service does not know the log."""


@dataclass(frozen=True)
class Advice:
    """What the service says of a cycle.

    Attributes:
        cycle: its number.
        action: what it recommends, in capitals, as in STOP; "" for nothing.
        reason: why.
        explanation: what its model adds; "" for nothing.
    """

    cycle: int
    action: str
    reason: str
    explanation: str

    @classmethod
    def of(cls, cycle: int, answer: Mapping[str, Any]) -> Advice:
        """Return that in an answer of the service, which is not trusted."""
        recommendation, explanation = (answer.get(name) for name in ("recommendation", "explanation"))
        recommendation = recommendation if isinstance(recommendation, dict) else {}
        action, reason = (shown(str(recommendation.get(name, ""))) for name in ("action", "reason"))
        text = shown(str(explanation.get("text", "")), MAX_EXPLANATION) if isinstance(explanation, dict) else ""
        return cls(cycle, action.upper(), reason, text)


@dataclass(frozen=True)
class _Log:
    cycle: int
    path: str
    offset: int
    is_final: bool


@dataclass(eq=False)
class _Awaited:
    """A final log whose result is asked for, in turn with those of other cycles.

    Attributes:
        given: the log.
        due: when it is submitted, and then asked for again, monotonic seconds.
        deadline: when it is given up, monotonic seconds; `inf` before it is submitted.
        tries: times that it was asked for.
        submissions: times that it was submitted again.
        known: the last answer with a recommendation.
        problem: why there is no result.
    """

    given: _Log
    due: float
    deadline: float = math.inf
    tries: int = 0
    submissions: int = 0
    known: dict[str, Any] = field(default_factory=dict)
    problem: str = "the service is not done"


class AttributionClient:
    """The thread.

    Args:
        url: of the service.
        token: what it wants to be shown, "" for nothing.
        job: `user` and `job_id`, as far as they are known.
        starts_within: seconds in which it answers first.
        written_within: seconds after the end of a cycle in which its log is written.
        advised: called in the thread with each result.
    """

    def __init__(
        self, url: str, token: str, job: Mapping[str, str], *, starts_within: float, written_within: float,
        advised: Callable[[Advice], object],
    ) -> None:  # fmt: skip
        self._url, self._parts, self._job, self._starts_within = url, urlsplit(url), job, starts_within
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._written_within, self._advised = written_within, advised
        self._queue, self._ending = SimpleQueue[_Log | None](), threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        failed = partial(log.warning, "no more logs are attributed: %s")
        self._thread = HelperThread(self._run, name="nvrx-attribution", failed=failed)
        self._thread.start()

    def submit(self, cycle: int, path: str, *, offset: int, is_final: bool) -> None:
        """Submit the log of a cycle, from a position on; if it is final, ask for its result as well."""
        self._queue.put(_Log(cycle, path, offset, is_final))

    def finish(self, within: float) -> None:
        """Wait for the results of what was submitted, for `within` seconds at most; then take what is known of them."""
        self._queue.put(None)
        self._thread.join(within)
        if self._thread.is_alive() and within:
            log.warning("the attribution has taken longer than %g s, and is given up", within)
        self._ending.set()
        self._cut()

    def close(self) -> None:
        """Give up what is left, and end the thread; one that looks up a name ends later."""
        self._ending.set()
        self._queue.put(None)
        self._cut()
        self._thread.join(END_TIMEOUT)

    def _cut(self) -> None:
        """Fail the request that is under way."""
        connection = self._connection
        if connection is not None and (sock := connection.sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        if (problem := self._tried("GET", "/healthz", None, self._starts_within)) and not self._ending.is_set():
            log.warning("the attribution service at %s does not answer: %s", self._url, problem)
        awaited, is_open = list[_Awaited](), True
        while (is_open or awaited) and not self._ending.is_set():
            due = min((each.due for each in awaited), default=None)
            pause = None if due is None else max(0.0, due - time.monotonic())
            if is_open:
                is_open = self._receive(awaited, pause)
            else:
                self._ending.wait(pause)
            for each in [each for each in awaited if each.due <= time.monotonic()]:
                if not self._ending.is_set() and self._is_settled(each):
                    awaited.remove(each)
        for each in awaited:
            self._give_up(each)

    def _receive(self, awaited: list[_Awaited], pause: float | None) -> bool:
        """Wait for logs, and take all that there are; return whether there may be more.

        Args:
            awaited: gets the final ones.
            pause: seconds to wait at most; None for no limit.
        """
        with suppress(Empty):
            while (given := self._queue.get(timeout=pause)) is not None:
                pause = 0.0
                if given.is_final:
                    awaited.append(_Awaited(given, due=time.monotonic() + self._written_within))
                else:
                    self._warn(given, self._submit(given))
            return False
        return True

    def _submit(self, given: _Log) -> str:
        """Submit a log; return why that has failed, else ""."""
        intent = "terminal" if given.is_final else "progressive"
        offset = {"log_offset": given.offset} if given.offset else {}
        body = json.dumps({"log_path": given.path, "analysis_intent": intent, **offset, **self._job})
        return self._tried("POST", "/logs", body, SUBMIT_TIMEOUT)

    def _tried(self, method: str, path: str, body: str | None, within: float) -> str:
        """Try until a request succeeds; return the last failure when that takes too long, else ""."""
        deadline, failures = time.monotonic() + within, 0
        while True:
            try:
                self._ask(method, path, body)
                return ""
            except (OSError, ValueError, http.client.HTTPException) as error:
                failures += 1
                pause = TRIES.pause(failures)
                if time.monotonic() + pause >= deadline or self._ending.wait(pause):
                    return str(error) or type(error).__name__

    def _is_settled(self, asked_for: _Awaited) -> bool:
        """Submit a final log, then ask for its result; return whether there is nothing more to ask.

        A service that was started again knows nothing of it, and gets it again.
        """
        given = asked_for.given
        if asked_for.deadline == math.inf:
            if problem := self._submit(given):
                self._warn(given, problem)
                return True
            asked_for.deadline = time.monotonic() + RESULT_TIMEOUT
        try:
            answer = parse_object(self._ask("GET", f"/logs?log_path={quote(given.path, safe='')}"))
        except (OSError, ValueError, http.client.HTTPException) as error:
            answer, asked_for.problem = {}, str(error) or type(error).__name__
            if isinstance(error, _NotSubmittedError) and asked_for.submissions < MOST_SUBMISSIONS:
                asked_for.submissions += 1
                asked_for.problem = self._submit(given) or asked_for.problem
        asked_for.known = answer if "recommendation" in answer else asked_for.known
        match str(answer.get("status", "")).lower():
            case "completed":
                self._advised(Advice.of(given.cycle, answer))
                return True
            case "failed":
                self._warn(given, shown(str(answer.get("error", ""))))
                return True
            case _:
                pass
        if time.monotonic() >= asked_for.deadline:
            self._give_up(asked_for)
            return True
        asked_for.tries += 1
        asked_for.due = time.monotonic() + TRIES.pause(asked_for.tries)
        return False

    def _give_up(self, asked_for: _Awaited) -> None:
        """Take a result of which the model has said nothing yet, if there is one."""
        if asked_for.known:
            self._advised(Advice.of(asked_for.given.cycle, asked_for.known))
        else:
            self._warn(asked_for.given, asked_for.problem)

    def _warn(self, given: _Log, problem: str) -> None:
        if problem and not self._ending.is_set():
            log.warning("the log of cycle %d is not attributed: %s", given.cycle, problem)

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        """Return the answer to a request; one that is not there after `ANSWER_TIMEOUT` is cut off.

        Raises:
            OSError, ValueError, HTTPException: when there is none, or another one than 2xx.
        """
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        self._connection = connection = kind(self._parts.netloc, timeout=ANSWER_TIMEOUT)
        timer = threading.Timer(ANSWER_TIMEOUT, self._cut)
        timer.name, timer.daemon = "nvrx-attribution-timeout", True
        timer.start()
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, body, self._headers)
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER)
        finally:
            timer.cancel()
            timer.join()
            connection.close()
        if not 200 <= response.status < 300:
            text = shown(answer.decode(errors="replace"))
            is_unknown = method == "GET" and response.status == http.HTTPStatus.NOT_FOUND
            raise (_NotSubmittedError if is_unknown else ValueError)(
                f"{method} {path.partition('?')[0]} is answered with {response.status}: {text}"
            )
        return answer
