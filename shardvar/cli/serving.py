"""``shardvar view --serve``: a page that only this machine sees, with values and statistics of one
tensor, read when the page asks.

A tensor is named by its row in the page, so that no key is written into an address. The server
listens on the loopback address and only reads. Three things keep out other users of the machine and
other pages of the browser:

1. Each path begins with a random token, which only the printed address has.
2. The header Host must name the loopback address, so that a hostile name which resolves to it is
   refused.
3. GET is the only method; a path is the page or one of the given answers.
"""

import json
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import parse_qsl

from shardvar.cli.output import note, print_json, put
from shardvar.cli.show import describe_selection, has_checksums
from shardvar.errors import ArgumentError, ShardvarError
from shardvar.forks import new_lock
from shardvar.layout.dtypes import is_number, json_number
from shardvar.verbs.compare.blocks import Statistics, measure
from shardvar.verbs.problems import SCHEMA
from shardvar.verbs.reader import Reader
from shardvar.view.collect import JsonColumns

PageAnswer = Callable[[Mapping[str, str]], JsonColumns]
"""From the fields of a query to an object of JSON; a ``ShardvarError`` becomes its cause and
remedy."""

LOOPBACK = "127.0.0.1"

_TOKEN_NBYTES = 24
"""192 bits, too many to find a token by trying."""

_SECONDS = 30
"""The time that a connection may take to send its request, so that none that sends nothing lives
on."""

_MOST_CONNECTIONS = 64
"""Connections that are served at a time, each by a thread; a browser opens six."""

_WAIT_SECONDS = 1
"""The time that one more connection waits for its turn before it is closed."""

_MOST_FIELDS = 8

_HEADERS = {
    "Cache-Control": "no-store",  # a value of a checkpoint is left in no cache
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the token leaves with no link
    "X-Content-Type-Options": "nosniff",
}


class PageServer(ThreadingHTTPServer):
    request_queue_size = 2 * _MOST_CONNECTIONS

    def __init__(self, page: str, answers: Mapping[str, PageAnswer]) -> None:
        """Bind a free port of the loopback address."""
        self.page = page.encode()
        self.answers = answers
        self.token = secrets.token_urlsafe(_TOKEN_NBYTES)
        self._room = BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((LOOPBACK, 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def server_bind(self) -> None:
        """Bind without looking up the host's name, which takes seconds without a network."""
        TCPServer.server_bind(self)
        self.server_port = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a new thread, if there is room for one."""
        if not self._room.acquire(timeout=_WAIT_SECONDS):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, *connection: Any) -> None:
        """Print an error, except of a connection that a browser closed."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(*connection)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _SECONDS

    def do_GET(self) -> None:  # the name that http.server calls
        hosts = [[f"{name}:{self.server.server_port}"] for name in (LOOPBACK, "localhost")]
        if self.headers.get_all("Host") not in hosts:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
            return
        path, _, query = self.path.partition("?")
        token, *names = path.removeprefix("/").split("/")
        # Compared in a time that does not tell how much of it is right; bytes, since a text must be
        # ASCII for that.
        is_known = secrets.compare_digest(
            token.encode("latin-1", "replace"), self.server.token.encode()
        )
        if not is_known or not path.startswith("/") or len(names) != 1:
            self._refuse(HTTPStatus.NOT_FOUND)
        elif not names[0] and not query:
            self._send(HTTPStatus.OK, "text/html", self.server.page)
        elif names[0] in self.server.answers:
            self._answer(self.server.answers[names[0]], query)
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _answer(self, answer: PageAnswer, query: str) -> None:
        try:
            fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
            status, told = HTTPStatus.OK, answer(fields)
        except ShardvarError as error:
            status, told = (
                HTTPStatus.BAD_REQUEST,
                {"cause": error.cause, "remedy": error.remedy or ""},
            )
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST)  # more fields than any answer has
            return
        self._send(status, "application/json", json.dumps(told, allow_nan=False).encode())

    def send_error(self, code: int, *_texts: str | None) -> None:
        """Refuse what ``http.server`` cannot read, with the headers of every answer."""
        self.request_version = "HTTP/1.0"  # of a request that has none, no headers would be sent
        self._refuse(HTTPStatus(code))

    def _refuse(self, status: HTTPStatus) -> None:
        self._send(status, "text/plain", f"{status.value} {status.phrase}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response_only(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind};charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_values: object) -> None:
        """Print nothing: an address has the token."""


_WIDTH = 100
"""Characters of a line of values; the page scrolls longer ones."""

_FIELDS = ("min", "max", "mean", "std", "NaN", "inf", "zero", "elements")


def serve_page(page: str, reader: Reader, keys: Sequence[str], as_json: bool, show: bool) -> None:
    """Print the address and serve until an interrupt; with ``show``, open a browser."""
    import webbrowser

    with PageServer(page, answers_of(reader, keys)) as server:
        if as_json:
            print_json({"schema": SCHEMA, "url": server.url})
        else:
            put(f"serving {server.url}")
            note("Ctrl-C ends it. Only this machine can open the address, and only with its token.")
        sys.stdout.flush()  # the command goes on, and a program waits for the address
        if show and not webbrowser.open(server.url):
            note("note: no browser was found; open the address yourself.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            note("ended")


def answers_of(reader: Reader, keys: Sequence[str]) -> dict[str, PageAnswer]:
    """Return the answers by name: ``values`` of a tensor's part, and its ``statistics``."""
    # One answer of a kind at a time: a page may ask again before the first is done. A statistic
    # reads a whole tensor, so values do not wait for it.
    reading, measuring = new_lock(), new_lock()

    def key_of(fields: Mapping[str, str]) -> str:
        row = fields.get("tensor", "")
        if not (row.isascii() and row.isdigit() and len(row) <= 12 and int(row) < len(keys)):
            raise ArgumentError(
                f"The page has no tensor {row[:20]!r}.", f"Give a number from 0 to {len(keys) - 1}."
            )
        return keys[int(row)]

    def values(fields: Mapping[str, str]) -> dict[str, Any]:
        with reading:
            reader.unverified.clear()  # what was noted of the answer before
            key = key_of(fields)
            heading, text, caution = describe_selection(
                reader, key, fields.get("index", ""), _WIDTH
            )
            if not has_checksums(reader, key):
                caution = f"not verified: {reader.format} has no checksum of it"
        return {"heading": heading, "text": text, "note": caution}

    def statistics(fields: Mapping[str, str]) -> dict[str, Any]:
        key = key_of(fields)
        if not is_number(reader[key].dtype):
            raise ArgumentError(
                f"{reader[key].dtype} has no statistics.", "Choose a tensor of numbers."
            )
        with measuring:
            ((_, found),) = measure(reader, [key])
        if not isinstance(found, Statistics):
            raise found
        numbers = (
            found.minimum,
            found.maximum,
            found.mean,
            found.std,
            found.nan,
            found.inf,
            found.zero,
            found.count,
        )
        return dict(zip(_FIELDS, map(json_number, numbers), strict=True))

    return {"values": values, "statistics": statistics}
