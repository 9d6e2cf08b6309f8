"""The attribution service over HTTP; the only module that imports Starlette, uvicorn and httpx.

| request | answer |
|---|---|
| `GET /healthz` | 200 |
| `POST /logs`, `{"log_path": ..., "user": ..., "job_id": ...}` | 202 once the log is queued |
| `GET /logs?log_path=...` | 200, its `status`; once it is `completed`: `verdict`, `recommendation`, `explanation` |

Each log is analysed by a process of its own, within a deadline. A model is asked afterwards, and results are exported;
neither can fail an analysis.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from nvrx_core.attribution.explanation import Explanation, explanation_in, numbered, request
from nvrx_core.attribution.reading import last_lines
from nvrx_core.attribution.service_settings import Model, ServiceSettings
from nvrx_core.attribution.submissions import Submission, Submissions, result_of
from nvrx_core.attribution.verdict import Verdict, shown
from nvrx_core.parsing import parse_object

__all__ = ["serve"]

log = logging.getLogger("nvrx_core.attribution")
MAX_BODY: Final = 1 << 16
"""Bytes of a request."""
MAX_ANSWER: Final = 1 << 20
"""Bytes of a model's answer."""
MAX_PATH: Final = 4_096
MAX_TEXT: Final = 1_024
"""Characters of what a request says of the job."""
ANALYSIS_TIMEOUT: Final = 3_600.0
"""Seconds for a log: one of 10 GB takes a minute, or two hours where all its lines look like errors."""
MODEL_TIMEOUT: Final = 60.0
EXPORT_TIMEOUT: Final = 10.0
ENDS_WITHIN: Final = 1
"""Seconds that requests have to end in when the service ends."""
LAST_EXPORT_TIMEOUT: Final = 2.0
"""Seconds that the service takes, when it ends, for the result that it has not exported yet."""
REQUESTS: Final = 64
"""Requests that are answered at a time."""
TAIL: Final = 1 << 16
"""Bytes at the end of a log of which a model may get lines."""


class _RefusedError(Exception):
    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class AttributionService:
    """The service.

    Args:
        settings: what it does.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings, self._submissions, self._submitted = settings, Submissions(), asyncio.Event()

    def application(self) -> Starlette:
        """Return the application; its worker runs as long as it does."""
        routes = [
            Route("/healthz", self._answering(self._health)),
            Route("/logs", self._answering(self._submit), methods=["POST"]),
            Route("/logs", self._answering(self._result), methods=["GET"]),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        worker = asyncio.create_task(self._work())
        yield
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker

    def _answering(
        self, handler: Callable[[Request], Awaitable[JSONResponse]]
    ) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def answer(request: Request) -> JSONResponse:
            try:
                return await handler(request)
            except _RefusedError as refused:
                return JSONResponse({"error": str(refused)}, refused.status)

        return answer

    async def _health(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _submit(self, request: Request) -> JSONResponse:
        self._authorise(request)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                raise _RefusedError(413, f"a request has {MAX_BODY} bytes or fewer")
        try:
            given = parse_object(bytes(body))
        except ValueError as error:
            raise _RefusedError(400, str(error)) from None
        path = await asyncio.to_thread(self._path, given.get("log_path"))
        offset = given.get("log_offset", 0)
        if type(offset) is not int or not 0 <= offset < 1 << 62:
            raise _RefusedError(400, "log_offset is a number of bytes")
        user, job = (self._text(name, given.get(name)) for name in ("user", "job_id"))
        try:
            found = await asyncio.to_thread(os.stat, path)  # a file system over the network may not answer
        except OSError as error:
            raise _RefusedError(404, f"{path}: {error.strerror}") from None
        if not stat.S_ISREG(found.st_mode):
            raise _RefusedError(400, f"{path} is no regular file")
        if not self._submissions.submit(Submission(path, user, job, (found.st_size, found.st_mtime_ns), offset)):
            raise _RefusedError(429, "too many logs wait to be analysed; try again later")
        self._submitted.set()
        return JSONResponse(self._submissions.answer(path), 202)

    async def _result(self, request: Request) -> JSONResponse:
        self._authorise(request)
        path = await asyncio.to_thread(self._path, request.query_params.get("log_path"))
        if (said := self._submissions.answer(path)) is None:
            raise _RefusedError(404, f"{path} was not submitted")
        return JSONResponse(said)

    def _authorise(self, request: Request) -> None:
        if self._settings.token is None:
            return
        kind, _, shown = request.headers.get("authorization", "").encode().partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(shown.strip(), self._settings.token):
            raise _RefusedError(401, "show the token of the job, as in: Authorization: Bearer TOKEN")

    def _path(self, given: object) -> str:
        """Return the file that a request names, without symbolic links; it is below the folder of the logs.

        A file system over the network may not answer: called in a thread.
        """
        if not isinstance(given, str) or not given.startswith("/") or not given.isprintable() or len(given) > MAX_PATH:
            raise _RefusedError(400, "log_path is the absolute path of a log")
        path = os.path.realpath(given)
        if os.path.commonpath([path, self._settings.root]) != self._settings.root:
            raise _RefusedError(403, f"only logs below {self._settings.root} are read")
        return path

    def _text(self, name: str, given: object) -> str | None:
        if given is None or (isinstance(given, str) and given.isprintable() and len(given) <= MAX_TEXT):
            return given or None
        raise _RefusedError(400, f"{name} is a text of {MAX_TEXT} characters or fewer")

    async def _work(self) -> None:
        """Analyse one log after the other."""
        while True:
            if (submission := self._submissions.take()) is None:
                self._submitted.clear()
                await self._submitted.wait()
                continue
            try:
                await self._handle(submission)
            except Exception as error:  # boundary: one log of many; the others are analysed all the same
                problem = shown(str(error)) or type(error).__name__
                log.warning("%s is not analysed: %s", submission.path, problem)
                self._submissions.failed(submission.path, problem)

    async def _handle(self, submission: Submission) -> None:
        verdict = await _verdict_of(submission.path, submission.offset)
        log.info("%s: %s: %s", submission.path, verdict.failure, verdict.sentence)
        explanation: Explanation | None = None
        problem = ""
        model = self._settings.model
        if model is not None and verdict.failure != "clean":
            without = result_of(verdict, None, "the model has not answered yet")
            self._submissions.explaining(submission.path, without)
            try:
                explanation = await self._ask(model, verdict, submission)
            except asyncio.CancelledError:
                await self._export({**submission.metadata, **without}, LAST_EXPORT_TIMEOUT)
                raise
            except Exception as error:  # boundary: whatever the model, or the way to it, has answered
                problem = shown(f"{type(error).__name__}: {error}")
                log.warning("the model explains nothing of %s: %s", submission.path, problem)
        result = result_of(verdict, None if explanation is None else explanation.as_json(), problem)
        self._submissions.completed(submission.path, result)
        export = asyncio.create_task(self._export({**submission.metadata, **result}, EXPORT_TIMEOUT))
        try:
            await asyncio.shield(export)
        except asyncio.CancelledError:  # a job ends once it has the result
            await asyncio.wait([export], timeout=LAST_EXPORT_TIMEOUT)
            raise

    async def _ask(self, model: Model, verdict: Verdict, submission: Submission) -> Explanation:
        lines = numbered(verdict, await asyncio.to_thread(_tail_of, submission.path, submission.offset))
        url, body = f"{model.base_url.rstrip('/')}/chat/completions", bytearray()
        headers = {"authorization": f"Bearer {model.key}", "accept-encoding": "identity"}
        content = request(model.name, verdict, lines)
        async with asyncio.timeout(MODEL_TIMEOUT), _posted(url, content, headers) as answer:
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > MAX_ANSWER:
                    raise ValueError(f"the answer has more than {MAX_ANSWER} bytes")
        return explanation_in(bytes(body), model.name, verdict, lines)

    async def _export(self, result: dict[str, object], within: float) -> None:
        if not (url := self._settings.export_url):
            return
        try:
            async with asyncio.timeout(within), _posted(url, result, {}):
                pass  # what it answers besides is of no use
        except Exception as error:  # boundary: whoever gets the results
            problem = shown(str(error)) or type(error).__name__
            log.warning("the result of %s is not exported: %s", result["log_path"], problem)


@asynccontextmanager
async def _posted(url: str, content: object, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
    """Return the answer to a request, whose body is not read yet; one that is no success raises `HTTPError`.

    Only what is encrypted goes through a proxy that the environment names.
    """
    client = httpx.AsyncClient(trust_env=url.startswith("https://"))
    async with client, client.stream("POST", url, json=content, headers=headers, timeout=None) as answer:
        answer.raise_for_status()
        yield answer


async def _verdict_of(path: str, offset: int) -> Verdict:
    """Return the verdict of a log from a position on, which a process makes that can be ended.

    Raises:
        OSError: when it cannot be started.
        TimeoutError: when it takes too long.
        ValueError: when the log cannot be read.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "nvrx_core.attribution", "--json", "--skip", str(offset), "--", path,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(ANALYSIS_TIMEOUT):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ValueError(errors.decode(errors="replace").strip()[-500:] or f"exit code {process.returncode}")
    return Verdict.from_json(json.loads(output))


def _tail_of(path: str, offset: int) -> Sequence[str]:
    with open(path, "rb") as file:
        file.seek(max(offset, file.seek(0, os.SEEK_END) - TAIL))
        return last_lines(file.read(TAIL), TAIL)


def _listener(settings: ServiceSettings) -> socket.socket:
    if settings.descriptor >= 0:
        return socket.socket(fileno=settings.descriptor)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    return socket.create_server((settings.host, settings.port), family=family)


class _Server(uvicorn.Server):
    """One whose process decides itself which signals it handles."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: ServiceSettings, until: Callable[[], Awaitable[object]]) -> None:
    """Serve until something has happened.

    Args:
        settings: what is served, and where.
        until: returns when it has happened.

    Raises:
        OSError: when it cannot listen.
    """
    with _listener(settings) as listener:
        config = uvicorn.Config(
            AttributionService(settings).application(), log_config=None, access_log=False, lifespan="on",
            timeout_graceful_shutdown=ENDS_WITHIN, limit_concurrency=REQUESTS,
        )  # fmt: skip
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        ending = asyncio.ensure_future(until())
        host, port = listener.getsockname()[:2]
        print(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", flush=True)
        log.info("the attribution service is at port %d of %s, for logs below %s", port, host, settings.root)
        await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        ending.cancel()
        await serving
