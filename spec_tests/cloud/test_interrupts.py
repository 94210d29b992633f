"""Ctrl-C while a command waits for a server that never answers (``make cloud``)."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv

pytest.importorskip("obstore", reason="make cloud installs it")

LIMIT_SECONDS = 30
"""A command ends within two seconds of the interrupt; without, it would wait for minutes."""

PROGRAM = """
import signal, sys
from shardvar.cli import main

# Whoever runs the tests may ignore interrupts, and hand that down.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.fixture
def silent() -> Iterator[tuple[int, threading.Event]]:
    """A server that accepts connections and never answers: its port, and an event that is set by a
    connection."""
    connected, kept = threading.Event(), []

    def accept() -> None:
        while True:
            try:
                kept.append(server.accept()[0])
            except OSError:
                return
            connected.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1], connected
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


@pytest.mark.parametrize("interrupts", [1, 2])
@pytest.mark.parametrize(
    "command", ["inspect", "verify", "digest", "diff", "reshard from", "reshard to"]
)
def test_a_server_that_never_answers_is_not_waited_for(
    command: str, interrupts: int, silent: tuple[int, threading.Event], tmp_path: Path
) -> None:
    """The command exits with 130 and says that it was interrupted; the directory is as it was
    before."""
    port, connected = silent
    source, url, copy = str(tmp_path / "source"), "s3://bucket/m", str(tmp_path / "copy")
    sv.save(source, {"w": np.arange(1000)})
    before = sorted(os.listdir(tmp_path))
    words = {
        "diff": ["diff", source, url],
        "reshard from": ["reshard", url, copy],
        "reshard to": ["reshard", source, url],
    }.get(command, [command, url])
    aws = {
        "ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "ALLOW_HTTP": "1",
        "ACCESS_KEY_ID": "x",
        "SECRET_ACCESS_KEY": "x",
        "REGION": "r",
    }
    environment = os.environ | {f"AWS_{name}": value for name, value in aws.items()}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert connected.wait(120)
            for _ in range(interrupts):
                process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGINT, said
    assert interrupts == 2 or said.startswith("interrupted")
    if interrupts == 1 and command.startswith("reshard"):
        assert "the same command continues" in said
    assert sorted(os.listdir(tmp_path)) == before
