"""A proxy before a server of buckets, on this machine: it counts, and misbehaves as networks and
services do.

With ``is_google`` it is our model of Google's XML interface before a server of S3, which is nearly
the same: it adds generations, compares them, and answers 404 where what is deleted does not exist.
It is not Google's.
"""

import hashlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

from spec_tests.helpers.range_server import answering

_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, "
    "Signature=0"
)
_HOPS = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}


@dataclass(frozen=True)
class Asked:
    """One request."""

    number: int
    """The requests before it."""
    method: str
    """GET, PUT and the like."""
    path: str
    """The path with its query, decoded."""
    headers: dict[str, str]
    """The headers, with names in small letters."""


Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""

Rule = Callable[[Asked], str | int | Callable[[Answer], Answer] | None]
"""Says what becomes of a request: None passes it on, a number is the status of the answer instead,
"lose" passes it on and breaks the connection instead of answering, "cut" sends half of the answer,
"hang" answers after 5 seconds, and "dead" breaks the connection at once. "lie" answers a PUT or a
POST as if it had taken effect. A function changes the answer."""


@dataclass
class Proxy:
    """What the proxy does, and what it has seen."""

    url: str = ""
    """Its address."""
    rule: Rule = lambda _asked: None
    """What becomes of each request."""
    gate: Callable[[Asked], object] = lambda _asked: None
    """Called with each request, by the thread that answers it, before it is passed on."""
    asked: list[Asked] = field(default_factory=list)
    """The requests."""
    sent_nbytes: int = 0
    """Bytes of bodies of answers to GET."""
    generations: dict[str, int] = field(default_factory=dict)
    """The generation of each object, where it is Google's."""

    def clear(self) -> None:
        self.asked.clear()
        self.sent_nbytes, self.rule, self.gate = 0, lambda _asked: None, lambda _asked: None


@contextmanager
def proxy_before(port: int, *, is_google: bool = False) -> Iterator[Proxy]:
    """Run a proxy before the server at a port of this machine until the block is left."""
    state, lock, conditional = Proxy(), threading.Lock(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:  # the client has gone
                self.close_connection = True

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                asked = Asked(len(state.asked), self.command, unquote(self.path), headers)
                state.asked.append(asked)
                fate = state.rule(asked)
            state.gate(asked)
            if fate == "hang":
                time.sleep(5)
            if fate in ("dead", "hang"):
                self.hang_up()
            elif isinstance(fate, int):
                self.reply(fate, {}, b"")
            elif fate == "lie":
                self.reply(201 if "x-ms-version" in headers else 200, *self.lie(body))
            else:
                status, given, content = self.pass_on(headers, body)
                if fate == "lose":
                    self.hang_up()
                elif fate == "cut" and len(content) > 1:
                    self.reply(status, given, content, len(content) // 2)
                elif callable(fate):
                    self.reply(*fate((status, given, content)))
                else:
                    self.reply(status, given, content)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names of http.server

        def pass_on(self, headers: dict[str, str], body: bytes) -> Answer:
            if is_google:
                with lock:
                    return self.as_google(headers, body)
            # A bucket compares and puts in one step, and moto in two.
            asks = headers.keys() & {"if-match", "if-none-match"}
            with conditional if asks and self.command == "PUT" else nullcontext():
                return self.forward(headers, body)

        def as_google(self, headers: dict[str, str], body: bytes) -> Answer:
            name, _, query = self.path.partition("?")
            wanted = headers.pop("x-goog-if-generation-match", None)
            there = state.generations.get(name, 0)
            if wanted is not None and int(wanted) != there:
                return 412, {}, b""
            if self.command == "DELETE" and not query and not there:
                return 404, {}, b""
            if "x-goog-copy-source" in headers:
                headers["x-amz-copy-source"] = headers.pop("x-goog-copy-source")
            headers["authorization"] = _SIGNED
            status, given, content = self.forward(headers, body)
            is_written = self.command == "PUT" and "partNumber" not in query
            is_written |= self.command == "POST" and "uploadId" in query
            if status == 200 and is_written:
                state.generations[name] = max(state.generations.values(), default=1000) + 1
            if self.command == "DELETE" and not query:
                state.generations.pop(name, None)
            if name in state.generations:
                given["x-goog-generation"] = str(state.generations[name])
            return status, given, content

        def forward(self, headers: dict[str, str], body: bytes) -> Answer:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                kept = {
                    name: value
                    for name, value in headers.items()
                    if name not in ("connection", "content-length")
                }
                connection.request(
                    self.command,
                    self.path,
                    body or None,
                    {**kept, "content-length": str(len(body))},
                )
                answer = connection.getresponse()
                given = {
                    name: value for name, value in answer.getheaders() if name.lower() not in _HOPS
                }
                if self.command == "HEAD":
                    given["Content-Length"] = answer.headers.get("Content-Length", "0")
                return answer.status, given, answer.read()
            finally:
                connection.close()

        def lie(self, body: bytes) -> tuple[dict[str, str], bytes]:
            """Headers and body for a file of these bytes."""
            tag = hashlib.md5(body).hexdigest()
            moment = {"Last-Modified": self.date_time_string()}
            result = f"<R><ETag>{tag}</ETag><LastModified>2026-01-01T00:00:00Z</LastModified></R>"
            return {"ETag": f'"{tag}"', "x-goog-generation": "1"} | moment, result.encode()

        def reply(
            self, status: int, headers: dict[str, str], content: bytes, nbytes: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                with lock:  # before the bytes go: who has them may look at the sum
                    state.sent_nbytes += len(content[:nbytes])
            if self.command != "HEAD":
                self.wfile.write(content[:nbytes])
            if nbytes is not None:
                self.hang_up()

        def hang_up(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with answering(Handler) as state.url:
        yield state
