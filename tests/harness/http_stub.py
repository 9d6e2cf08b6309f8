"""A real HTTP server in a thread, which answers as a test says and keeps what it was asked."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Self

__all__ = ["Asked", "HttpStub", "completion"]


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    authorization: str | None
    body: Any


Answer = Callable[[Asked], tuple[int, bytes]]


class HttpStub:
    """The server.

    Args:
        answer: returns status and body of an answer; it may wait for `closing`.

    Attributes:
        asked: the requests, in order.
        closing: set when the test is over.
    """

    def __init__(self, answer: Answer) -> None:
        self.asked, self.closing = SimpleQueue[Asked](), threading.Event()
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                asked = Asked(self.command, self.path, self.headers.get("authorization"), json.loads(body or b"null"))
                stub.asked.put(asked)
                status, said = answer(asked)
                try:
                    self.send_response(status)
                    self.send_header("content-length", str(len(said)))
                    self.end_headers()
                    self.wfile.write(said)
                except OSError:
                    pass  # who has asked has gone

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.05])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def completion(content: str) -> bytes:
    """Return what `/chat/completions` answers."""
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()
