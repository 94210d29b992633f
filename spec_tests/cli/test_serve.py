"""The server of a page: it answers this machine alone, with the token alone, and reads alone."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from io import BytesIO, TextIOWrapper
from pathlib import Path
from threading import Thread
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli import main
from shardvar.cli.serving import PageServer, answers_of
from shardvar.view.collect import choose_keys
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.damage import flip
from spec_tests.helpers.view_pages import HOSTILE_KEYS

__all__ = ["run"]  # the fixture

ARRAY = np.arange(24, dtype=np.float32).reshape(4, 6)


@contextmanager
def serving(path: Path) -> Iterator[PageServer]:
    with (
        sv.open_checkpoint(path) as reader,
        PageServer("<p>page</p>", answers_of(reader, choose_keys(reader))) as server,
    ):
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    sv.save(
        tmp_path / "model",
        {"a/w": ARRAY, "b": np.array([1.5, np.nan, np.inf]), "text": np.array([b"x"], object)},
    )
    with serving(tmp_path / "model") as server:
        yield server


def ask(
    server: PageServer, path: str, method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def answer(server: PageServer, what: str, **fields: object) -> dict[str, object]:
    response, body = ask(server, f"/{server.token}/{what}?{urlencode(fields)}")
    told: dict[str, object] = json.loads(body)
    assert (response.status == 200) == ("cause" not in told)
    return told


def test_the_address_has_the_loopback_and_a_token_of_its_own(
    server: PageServer, tmp_path: Path
) -> None:
    address = urlsplit(server.url)
    assert address.hostname == "127.0.0.1" and server.server_address[0] == "127.0.0.1"
    assert address.path == f"/{server.token}/" and len(server.token) >= 32
    with serving(tmp_path / "model") as other:
        assert other.token != server.token
    response, body = ask(server, address.path)
    assert (response.status, body) == (200, b"<p>page</p>")


OWN, HOSTS = (
    "127.0.0.1:{port}",
    ("evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}", ""),
)
METHODS = "POST PUT DELETE HEAD OPTIONS PATCH TRACE CONNECT X"
PATHS = """/ // /favicon.ico /{token} /{short}/ /{token}x/ /{token}/page.html /{token}// /{token}/../{token}/
/{token}/values/ /{token}/../../etc/passwd /\xff/ /{token}/?x * /{swapped}/ /{token}/%76alues
http://evil.example/{token}/"""
REQUESTS = [
    ("GET /{token}/ HTTP/1.1", OWN, 200),
    ("GET /{token}/values?tensor=0 HTTP/1.1", OWN, 200),
    ("GET /{token}/ HTTP/1.1", "localhost:{port}", 200),
    *((f"{word} /{{token}}/ HTTP/1.1", OWN, 501) for word in METHODS.split()),
    *((f"GET {path} HTTP/1.0", OWN, 404) for path in PATHS.split()),
    # A name that an attacker makes resolve to this machine reaches it with that name in Host.
    *(("GET /{token}/ HTTP/1.1", host, 421) for host in HOSTS),
    ("GET /" + "a" * 70_000 + " HTTP/1.1", OWN, 414),
    ("GET / HTTP/1.1\r\nX: " + "a" * 70_000, OWN, 431),
    ("GET / HTTP/1.1" + "\r\nX: y" * 200, OWN, 431),
    ("GET / HTTP/9.0", OWN, 505),
    ("GET / HTTP/x", OWN, 400),
    ("one two three four", OWN, 400),
]  # fmt: skip


@pytest.mark.parametrize(("line", "host", "status"), REQUESTS, ids=lambda each: str(each)[:40])
def test_a_request_is_refused_unless_it_has_host_token_and_method_and_no_answer_is_kept(
    line: str, host: str, status: int, server: PageServer
) -> None:
    """No answer may be framed, guessed at or passed on, errors of the protocol included."""
    token, port = server.token, server.server_port
    names = {"token": token, "short": token[:-1], "swapped": token.swapcase(), "port": port}
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
        request = f"{line}\r\nHost: {host}\r\n\r\n".format(**names)
        link.sendall(request.encode("latin-1"))
        with link.makefile("rb") as file, suppress(ConnectionError):
            while part := file.read1():
                said += part
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode() and (status == 200 or b"<" not in said)
    for header in (
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Content-Security-Policy: frame-ancestors 'none'",
        "Referrer-Policy: no-referrer",
        "Cross-Origin-Resource-Policy: same-origin",
    ):
        assert header.encode() in head
    assert b"Access-Control-Allow-Origin" not in head
    assert (not body) == line.startswith("HEAD")


def test_values_are_those_that_show_prints(server: PageServer, tmp_path: Path, run: Run) -> None:
    for index in ("", "1:3, ::2", "0, 0", "..., ::-1", "[1]"):
        told = answer(server, "values", tensor=0, index=index)
        assert (
            f"{told['heading']}\n{told['text']}\n"
            == run("show", tmp_path / "model", "a/w", index).out
        )
        assert told["note"] == ""


def test_statistics_are_those_of_numpy(server: PageServer) -> None:
    told = answer(server, "statistics", tensor=0)
    assert (told["min"], told["max"], told["elements"], told["zero"]) == (0, 23, 24, 1)
    assert told["mean"] == pytest.approx(ARRAY.mean()) and told["std"] == pytest.approx(ARRAY.std())
    assert answer(server, "statistics", tensor=1) | {"NaN": 1, "inf": 1} == answer(
        server, "statistics", tensor=1
    )


def test_a_wrong_question_gets_a_cause_and_a_remedy(server: PageServer) -> None:
    for fields in (
        {},
        {"tensor": "3"},
        {"tensor": "-1"},
        {"tensor": "x" * 3000},
        {"tensor": "٣"},
        {"tensor": 0, "index": "9"},
        {"tensor": 0, "index": "0,0,0"},
        {"tensor": 0, "index": "__import__('os')"},
    ):
        told = answer(server, "values", **fields)
        assert set(told) == {"cause", "remedy"} and told["remedy"] and len(str(told["cause"])) < 500
    assert "statistics" in str(answer(server, "statistics", tensor=2)["cause"])
    many = "&".join(f"a{n}=1" for n in range(100))
    assert ask(server, f"/{server.token}/values?{many}")[0].status == 400


def test_a_damaged_tensor_is_an_answer_and_the_others_are_still_read(tmp_path: Path) -> None:
    sv.save(tmp_path / "model", {"bad": np.ones(100), "good": np.arange(3.0)})
    (file,) = tmp_path.glob("model.svdata-*")
    flip(file, file.read_bytes().index(np.ones(100).tobytes()))
    with serving(tmp_path / "model") as server:
        for what in ("values", "statistics"):
            assert "checksum" in str(answer(server, what, tensor=0)["cause"]).lower()
        assert answer(server, "values", tensor=1)["text"] == "[0., 1., 2.]"


def test_a_slice_of_a_hundred_gibibytes_is_read_without_the_rest(tmp_path: Path) -> None:
    """The file is sparse: a server that read all of it would not end within the time of a test."""
    rows = 100 * 2**30 // 4096
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [rows, 1024], "data_offsets": [0, rows * 4096]}}
    ).encode()
    with open(tmp_path / "big.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.seek((rows - 1) * 4096, 1)
        file.write(np.arange(1024, dtype=np.float32).tobytes())
    with serving(tmp_path / "big.safetensors") as server:
        told = answer(server, "values", tensor=0, index="-1, :4")
        assert told["text"] == "[0., 1., 2., 3.]" and "not verified" in str(told["note"])
        assert "[[0." in str(answer(server, "values", tensor=0)["text"])
        # Steps leave out what lies between, also along a column.
        for index in ("::-10000000, 1", "25214399::1000000, 1", "25214399::500000, 1"):
            assert "1." in str(answer(server, "values", tensor=0, index=index)["text"])


def test_hostile_names_are_named_by_their_rows(tmp_path: Path) -> None:
    sv.save(tmp_path / "model", {key: np.full(1, float(n)) for n, key in enumerate(HOSTILE_KEYS)})
    with serving(tmp_path / "model") as server, sv.open_checkpoint(tmp_path / "model") as reader:
        for row, key in enumerate(choose_keys(reader)):
            told = answer(server, "values", tensor=row)
            assert told["text"] == f"[{float(HOSTILE_KEYS.index(key))}]".replace(".0]", ".]")
            assert str(told["heading"]).isprintable()


def test_the_command_prints_the_address_and_serves_the_page(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it serves, it writes no file."""
    sv.save(tmp_path / "model", {"a": ARRAY})
    before = sorted(tmp_path.iterdir())
    pages = []

    def once(server: PageServer) -> None:
        pages.append(server.page.decode())
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", once)
    outcome = run("view", tmp_path / "model", "--serve")
    assert outcome.code == 0 and outcome.out.startswith("serving http://127.0.0.1:")
    assert "fetch(" in pages[0] and "; connect-src 'self'\"" in pages[0]
    assert (
        run("view", tmp_path / "model", "--serve", "--json")
        .json["url"]
        .startswith("http://127.0.0.1:")
    )
    assert sorted(tmp_path.iterdir()) == before
    assert run("view", tmp_path / "model", "--serve", "-o", tmp_path / "x.html").code == 2


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_program_gets_the_address_before_the_page_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    sv.save(tmp_path / "model", {"a": ARRAY})
    pipe, told = BytesIO(), []

    def once(server: PageServer) -> None:
        told.append(server.url in pipe.getvalue().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdout", TextIOWrapper(pipe))
    monkeypatch.setattr(PageServer, "serve_forever", once)
    assert main(["view", str(tmp_path / "model"), "--serve", *words]) == 0 and told == [True]


def test_connections_that_send_nothing_are_bounded_and_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sv.save(tmp_path / "model", {"w": np.ones(1)})
    monkeypatch.setattr("shardvar.cli.serving._MOST_CONNECTIONS", 3)
    monkeypatch.setattr("shardvar.cli.serving._WAIT_SECONDS", 0.05)
    with serving(tmp_path / "model") as server, ExitStack() as links:
        slow = [
            links.enter_context(socket.create_connection(("127.0.0.1", server.server_port)))
            for _ in range(3)
        ]
        with socket.create_connection(("127.0.0.1", server.server_port)) as more:
            assert more.recv(1) == b""  # closed: there is no room
        slow[0].close()
        for _ in range(100):
            with suppress(OSError):
                assert answer(server, "values", tensor=0)["text"] == "[1.]"
                break
            time.sleep(0.01)
        else:
            pytest.fail("no room was made")


def test_more_connections_can_wait_than_are_served() -> None:
    server = PageServer("", {})
    try:
        assert server.request_queue_size == 2 * 64
    finally:
        server.server_close()
