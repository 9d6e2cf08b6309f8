"""Submits the logs of cycles to the attribution service, and asks for its results, in a thread."""

from __future__ import annotations

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
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
"""Seconds for the result of a log; then the next one is asked for."""
TRIES: Final = Backoff(0.1, 2.0)
"""Pauses between the tries of a request, for the service may just be started, and between questions for a result."""
SUBMIT_TIMEOUT: Final = 20.0


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


class AttributionClient:
    """The thread.

    Args:
        url: of the service.
        token: what it wants to be shown, "" for nothing.
        job: `user` and `job_id`, as far as they are known.
        starts_within: seconds in which it answers first.
        advised: called in the thread with each result.
    """

    def __init__(
        self, url: str, token: str, job: Mapping[str, str], *, starts_within: float,
        advised: Callable[[Advice], object],
    ) -> None:  # fmt: skip
        self._url, self._parts, self._job, self._starts_within = url, urlsplit(url), job, starts_within
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._advised, self._queue, self._ending = (
            advised,
            SimpleQueue[tuple[int, str, bool] | None](),
            threading.Event(),
        )
        failed = partial(log.warning, "no more logs are attributed: %s")
        self._thread = HelperThread(self._run, name="nvrx-attribution", failed=failed)
        self._thread.start()

    def submit(self, cycle: int, path: str, *, is_final: bool) -> None:
        """Submit the log of a cycle; if it is final, ask for its result as well."""
        self._queue.put((cycle, path, is_final))

    def finish(self, within: float) -> None:
        """Wait for the results of what was submitted, for `within` seconds at most."""
        self._queue.put(None)
        self._thread.join(within)

    def close(self) -> bool:
        """Give up what is left; return whether the thread has ended. One that waits for an answer ends later."""
        self._ending.set()
        self.finish(ANSWER_TIMEOUT)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if problem := self._tried("GET", "/healthz", None, self._starts_within):
            log.warning("the attribution service at %s does not answer: %s", self._url, problem)
        while (item := self._queue.get()) is not None and not self._ending.is_set():
            cycle, path, is_final = item
            intent = "terminal" if is_final else "progressive"
            body = json.dumps({"log_path": path, "analysis_intent": intent, **self._job})
            problem = self._tried("POST", "/logs", body, SUBMIT_TIMEOUT)
            if is_final and not problem:
                problem = self._await(cycle, path)
            if problem and not self._ending.is_set():
                log.warning("the log of cycle %d is not attributed: %s", cycle, problem)

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

    def _await(self, cycle: int, path: str) -> str:
        """Ask for the result of a log until it is there; return why there is none, else ""."""
        deadline, problem, asked = time.monotonic() + RESULT_TIMEOUT, "the service is not done", 0
        while time.monotonic() < deadline and not self._ending.is_set():
            try:
                answer = parse_object(self._ask("GET", f"/logs?log_path={quote(path, safe='')}"))
            except (OSError, ValueError, http.client.HTTPException) as error:
                answer, problem = {}, str(error) or type(error).__name__
            match str(answer.get("status", "")).lower():
                case "completed":
                    self._advised(Advice.of(cycle, answer))
                    return ""
                case "failed":
                    return shown(str(answer.get("error", "")))
                case _:
                    pass
            asked += 1
            self._ending.wait(TRIES.pause(asked))
        return problem

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        """Return the answer to a request.

        Raises:
            OSError, ValueError, HTTPException: when there is none, or another one than 2xx.
        """
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.netloc.rpartition("@")[2], timeout=ANSWER_TIMEOUT)
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, body, self._headers)
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER)
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            text = shown(answer.decode(errors="replace"))
            raise ValueError(f"{method} {path.partition('?')[0]} is answered with {response.status}: {text}")
        return answer
