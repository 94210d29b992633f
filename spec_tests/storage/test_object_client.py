"""Clients list, read, walk and remove what a real store in memory has, and nothing else."""

import itertools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardvar.errors import CorruptCheckpoint, MissingFile
from shardvar.storage import objects
from shardvar.storage.objects import ObjectClient
from shardvar.storage.requests import Fault, passing_fault
from shardvar.storage.urls import FilesystemClient
from spec_tests.helpers.range_server import serving

obstore = pytest.importorskip("obstore")

STEPS = st.sampled_from(["a", "b", "ab", "c.d"])
PATHS = st.lists(STEPS, min_size=1, max_size=3).map("/".join)


def client_of(files: dict[str, bytes]) -> ObjectClient:
    store = obstore.store.MemoryStore()
    for path, content in files.items():
        obstore.put(store, path, content)
    return ObjectClient("s3://bucket", {"reading": store})


def filesystem_of(files: dict[str, bytes]) -> FilesystemClient:
    """Return a client of fsspec with the files. A path that is also a folder is taken out of them."""
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    for path in [*files]:
        if any(other.startswith(f"{path}/") for other in files):
            del files[path]
    for path, content in files.items():
        system.pipe_file(f"/bucket/{path}", content)
    return FilesystemClient("memory://bucket")


CLIENTS = pytest.mark.parametrize("make", [client_of, filesystem_of])


@CLIENTS
@given(files=st.dictionaries(PATHS, st.binary(max_size=9), max_size=8), key=st.just("") | PATHS)
@example(files={"a/a": b"1", "a/b/a": b"12"}, key="a")
@example(files={"a/a/a": b"1"}, key="a")
@example(files={"a": b"1"}, key="a")
def test_a_folder_has_the_files_and_folders_below_it(
    make: Callable[[dict[str, bytes]], Any], files: dict[str, bytes], key: str
) -> None:
    client, start = make(files), f"{key}/" if key else ""
    below = {path.removeprefix(start): files[path] for path in files if path.startswith(start)}
    found = client.listing(key)
    assert {name: head.nbytes for name, head in found.files.items()} == {
        name: len(content) for name, content in below.items() if "/" not in name
    }
    assert found.folders == sorted({name.partition("/")[0] for name in below if "/" in name})
    assert {name: head.nbytes for name, head in client.walk(key).items()} == {
        name: len(content) for name, content in below.items()
    }


@CLIENTS
@given(files=st.dictionaries(PATHS, st.binary(min_size=1, max_size=9), min_size=1), key=PATHS)
def test_ranges_are_read_and_what_is_missing_or_replaced_is_an_error(
    make: Callable[[dict[str, bytes]], Any], files: dict[str, bytes], key: str
) -> None:
    client = make(files)
    if key not in files:
        with pytest.raises(MissingFile, match=re.escape(client.place(key))):
            client.head(key)
        return
    content, head = files[key], client.head(key)
    assert head.nbytes == len(content)
    for start in range(len(content)):
        for stop in range(start + 1, len(content) + 1):
            assert client.read(key, head, start, stop - start) == content[start:stop]
    if make is filesystem_of:
        import fsspec

        fsspec.filesystem("memory").pipe_file(f"/bucket/{key}", content)
    else:
        obstore.put(client._store("reading"), key, content)
    with pytest.raises(CorruptCheckpoint, match=re.escape(client.place(key))):
        client.read(key, head, 0, 1)


@given(files=st.dictionaries(PATHS, st.binary(max_size=3), min_size=1), data=st.data())
def test_exactly_the_files_that_are_named_are_removed(
    files: dict[str, bytes], data: st.DataObject
) -> None:
    client, paths = client_of(files), sorted(files)
    gone = data.draw(st.lists(st.sampled_from([*paths, "none"]), min_size=1, unique=True))
    client.delete_all(gone)
    assert client.walk("").keys() == {*paths} - {*gone}
    client.delete(paths[0])
    client.delete(paths[0])
    assert client.walk("").keys() == {*paths[1:]} - {*gone}


def test_the_mark_of_an_empty_folder_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles of clouds store an object ``run/`` for a folder, which lists itself as ``run``."""
    client = client_of({"run/f": b"12", "run": b""})
    real = objects.library()
    mark = real.head(client._store("reading"), "run")

    class WithMark:
        exceptions = real.exceptions

        @staticmethod
        def list_with_delimiter(store: Any, key: str) -> Any:
            found = real.list_with_delimiter(store, key)
            return found | {"objects": [mark, *found["objects"]]}

    monkeypatch.setattr(objects, "library", lambda: WithMark)
    assert list(client.listing("run").files) == ["f"]


def test_only_writes_go_through_the_client_for_writing(tmp_path: Path) -> None:
    """It repeats fewer requests by itself: a write that is repeated blindly may meet its own
    effect."""
    stores_ = {kind: obstore.store.MemoryStore() for kind in objects.CLIENTS}
    for store in stores_.values():
        obstore.put(store, "old", b"12")
    client = ObjectClient("s3://bucket", stores_)
    (tmp_path / "file").write_bytes(b"123")
    client.put("a", str(tmp_path / "file"))
    client.put_if("b", b"1234", None)
    client.copy("old", "c", is_new=True)

    def there(kind: str) -> set[str]:
        return {each["path"] for page in obstore.list(stores_[kind]) for each in page}

    first = next(kind for kind in stores_ if kind.startswith("writing"))
    assert there(first) == {"old", "a", "b", "c"}
    assert {*itertools.chain(*(there(kind) for kind in stores_ if kind != first))} == {"old"}


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_copy_leaves_a_file_that_came_first_where_the_service_can(
    scheme: str, is_new: bool
) -> None:
    """S3 cannot: its copies have no condition."""
    store = obstore.store.MemoryStore()
    client = ObjectClient(f"{scheme}://bucket", dict.fromkeys(objects.CLIENTS, store))
    for name in ("old", "new"):
        obstore.put(store, name, name.encode())
    client.copy("old", "new", is_new=is_new)
    found = bytes(client.read("new", client.head("new"), 0, 3))
    assert found == (b"new" if is_new and scheme != "s3" else b"old")


@given(content=st.binary(max_size=30), part_nbytes=st.integers(1, 12), at=st.integers(0, 29))
def test_what_is_stored_is_compared_byte_by_byte(content: bytes, part_nbytes: int, at: int) -> None:
    """An answer that was lost is found by the bytes, part by part."""
    client = client_of({"f": content})
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(objects, "nbytes_of_part", lambda _: part_nbytes)
        path = Path(folder, "file")
        path.write_bytes(content)
        assert client._stored("f", str(path)) == client.head("f")
        assert client._stored("g", str(path)) is None
        if at < len(content):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            assert client._stored("f", str(path)) is None
        path.write_bytes(content + b"0")
        assert client._stored("f", str(path)) is None


@pytest.mark.parametrize(
    ("proxies", "pause", "count"),
    [
        ({}, 7.0, 1),
        ({"https_proxy": "http://127.0.0.1:9"}, 7.0, 1),
        ({"http_proxy": "http://127.0.0.1:9"}, 0.0, 0),
        ({"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}, 7.0, 1),
    ],
)
def test_a_pause_is_asked_for_only_where_no_proxy_stands_between(
    proxies: dict[str, str], pause: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a proxy the service cannot be reached directly, and must not be."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    with serving({}) as server:
        server.failures, server.pause = [503], "7"
        assert objects.asked_pause(f"{server.url}/x", None) == pause
        assert server.num_requests == count


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("AlreadyExists", "status: 409", None),
        ("AlreadyExists", "status: 412", None),
        ("NotFound", "status: 503", None),
        ("Generic", "status: 404", None),
        ("Generic", "status: 400, <Code>RequestTimeout</Code>", "broken"),
        ("Generic", "status: 400, <Code>SlowDown</Code>", "refused"),
        ("Generic", "status: 400, <Code>Unknown</Code>", None),
        *[("Generic", f"status: {status}", "refused") for status in (429, 503)],
        *[("Generic", f"status: {status}", "broken") for status in (408, 500, 502, 504)],
        ("Generic", "an invalid list response", "odd"),
        ("Generic", "kind: Timeout", "stalled"),
        ("Generic", "kind: Timeout, ConnectError", "broken"),
        ("Generic", "kind: Body", "broken"),
        ("Generic", "a certificate", None),
    ],
)
def test_what_may_pass_is_told_by_the_answer(kind: str, text: str, expected: Any) -> None:
    kinds = obstore.exceptions
    error = getattr(kinds, f"{kind}Error")(text)
    wanted = expected and Fault(expected)
    assert passing_fault(kinds, error, conflicts_pass=False) == wanted
    passes = (kind, text) == ("AlreadyExists", "status: 409")  # of two requests for one key
    wanted = Fault("broken") if passes else wanted
    assert passing_fault(kinds, error, conflicts_pass=True) == wanted
