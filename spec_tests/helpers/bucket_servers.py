"""Servers of buckets on this machine: moto for S3 and, behind a model of Google's interface, for
Google; Azurite."""

import base64
import hashlib
import hmac
import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from spec_tests.helpers.paths import ROOT

AZURITE = (
    ROOT / "build" / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
)
"""Where ``make cloud`` installs it; ``AZURITE`` in the environment names another place."""
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The account of every Azurite, which its documentation names."""
_ATTEMPTS = 300
"""A server is waited for 30 seconds."""


def find_azurite() -> Path | None:
    """Return the program that starts Azurite, None where it or node is not installed."""
    path = Path(os.environ.get("AZURITE", AZURITE))
    return path if path.is_file() and shutil.which("node") else None


@contextmanager
def running(command: Sequence[str]) -> Iterator[int]:
    """Run a server that listens at the port in the place of ``PORT``, until the block is left;
    gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [word.replace("PORT", str(port)) for word in command]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(_ATTEMPTS):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
        assert process.poll() is None, "the server has ended"
    raise AssertionError("the server does not answer")


@contextmanager
def moto() -> Iterator[int]:
    """Run moto with the bucket ``bucket``."""
    program = "from moto.server import main; main(['-H', '127.0.0.1', '-p', 'PORT'])"
    with running([sys.executable, "-c", program]) as port:
        assert _request(port, "PUT", "/bucket", {}) == 200
        yield port


@contextmanager
def azurite(program: Path) -> Iterator[int]:
    """Run Azurite with the container ``bucket``."""
    options = (
        "--blobHost 127.0.0.1 --blobPort PORT --inMemoryPersistence --skipApiVersionCheck --silent"
    )
    with running(["node", str(program), *options.split(), "--disableTelemetry"]) as port:
        moment = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        signed = (
            f"x-ms-date:{moment}\nx-ms-version:2021-12-02\n/{ACCOUNT}/{ACCOUNT}/bucket\n"
            "restype:container"
        )
        text = "PUT" + "\n" * 12 + signed
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": moment,
            "x-ms-version": "2021-12-02",
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        }
        assert _request(port, "PUT", f"/{ACCOUNT}/bucket?restype=container", headers) == 201
        yield port


def _request(port: int, method: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers={**headers, "Content-Length": "0"})
        return connection.getresponse().status
    finally:
        connection.close()
