"""A folder as a bucket of S3 that can be read: ``python -m benchmarks.served FOLDER PORT``.

It answers ``HEAD``, ``GET`` with a range and the listing of a folder, and checks no signature.
"""

import os
import sys
from contextlib import suppress
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit


class ServedFolder(BaseHTTPRequestHandler):
    """The requests to one bucket, whose name comes first in their paths."""

    protocol_version = "HTTP/1.1"
    folder: ClassVar[Path]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _answer(self, *, with_body: bool) -> None:
        url = urlsplit(self.path)
        key = unquote(url.path.lstrip("/").partition("/")[2])
        path = self.folder / key
        if not key:
            self._send(200, _listing(self.folder, parse_qs(url.query).get("prefix", [""])[0]))
        elif path.is_file():
            self._send_file(path, with_body)
        else:
            missing = b"<Error><Code>NoSuchKey</Code><Message>missing</Message></Error>"
            self._send(404, missing if with_body else b"")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, path: Path, with_body: bool) -> None:
        size = path.stat().st_size
        start, stop = 0, size
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first) if first else size - int(last)
            stop = min(size, int(last) + 1) if first and last else size
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", f'"{_tag(path)}"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if not with_body:
            return
        self.wfile.flush()
        with path.open("rb") as file, suppress(ConnectionError):
            while start < stop:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)


def _tag(path: Path) -> str:
    return md5(path.name.encode()).hexdigest()


def _listing(folder: Path, prefix: str) -> bytes:
    """The files of the folder, in the form of ListObjectsV2."""
    rows = "".join(
        f"<Contents><Key>{path.name}</Key><Size>{path.stat().st_size}</Size>"
        f"<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;{_tag(path)}&quot;</ETag>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for path in sorted(folder.iterdir())
        if path.name.startswith(prefix)
    )
    return (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>bucket</Name><Prefix>{prefix}</Prefix><KeyCount>{rows.count('<Key>')}</KeyCount>"
        f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
    ).encode()


def main() -> None:
    ServedFolder.folder = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), ServedFolder).serve_forever()


if __name__ == "__main__":
    main()
