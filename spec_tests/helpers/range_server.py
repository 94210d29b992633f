"""A web server on this machine that sends ranges of files in memory, and can misbehave."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class RangeServer:
    """The files of the server, and how it misbehaves."""

    files: dict[str, bytes]
    """The files, by their paths without "/" at the beginning."""
    url: str = ""
    """The address, without "/" at the end."""
    num_requests: int = 0
    """Requests that were answered."""
    knows_ranges: bool = True
    """False if it sends whole files whatever is asked, as the servers of some languages do."""
    cut: int = 0
    """Bytes that are left out at the end of each range, as a broken proxy does that corrects the
    length."""
    redirects: dict[str, str] = field(default_factory=dict)
    """The address to which every request of a method is sent on."""
    redirected: dict[str, str] = field(default_factory=dict)
    """The address to which requests of a path are sent on."""
    failures: list[int] = field(default_factory=list)
    """Status codes for the next requests, instead of answers."""
    pause: str = ""
    """The pause that these answers ask for."""


@contextmanager
def answering(handler: Any) -> Iterator[str]:
    """Run a web server until the block is left; give its address, without "/" at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[RangeServer]:
    """Serve files until the block is left."""
    state = RangeServer(files)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.lstrip("/").partition("?")[0]
            content = state.files.get(name)
            elsewhere = state.redirects.get(self.command) or state.redirected.get(name)
            if elsewhere:
                self.send_response(302)
                self.send_header("Location", elsewhere)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            with lock:
                state.num_requests += 1
                status = (
                    state.failures.pop(0) if state.failures else 404 if content is None else 200
                )
            if status != 200 or content is None:
                self.send_response(status)
                if state.pause:
                    self.send_header("Retry-After", state.pause)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            asked = _RANGE.fullmatch(self.headers.get("Range", "")) if state.knows_ranges else None
            start, stop = (
                (int(asked[1]), min(int(asked[2]) + 1, len(content)))
                if asked
                else (0, len(content))
            )
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
                stop = max(stop - state.cut, start)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
            self.send_header("Content-Length", str(stop - start))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[start:stop])

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, format: str, *args: object) -> None:
            pass

    with answering(Handler) as state.url:
        yield state
