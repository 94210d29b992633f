"""Buckets and remote file systems: a URL means what the path means, and costs what the disk costs
and a little more."""

import os
import pickle
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    AmbiguousPath,
    ArgumentError,
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingExtra,
    MissingFile,
    ServerError,
    StorageError,
    UnsupportedError,
)
from shardvar.storage import objects, requests, urls
from shardvar.storage.objects import ObjectClient
from shardvar.storage.remote import AHEAD_NBYTES, RemoteStorage
from shardvar.storage.requests import Head, Pace
from shardvar.storage.urls import WebClient, split_url
from spec_tests.helpers.memory_bucket import MemoryBucket
from spec_tests.helpers.range_server import RangeServer, serving

CONTENT = np.random.default_rng(1).bytes(3 << 20)
NAMES = {
    "shardvar": "model",
    "tensorflow": "model",
    "safetensors": "model.safetensors",
    "npz": "model.npz",
    "pt": "model.pt",
    "torch": "model",
}


class OneFile(MemoryBucket):
    """A bucket with the file ``run/f``, which is asked only for bytes that the file has, and may
    send more or fewer of them."""

    cut = 0

    def __init__(self, content: bytes = CONTENT) -> None:
        super().__init__({"run/f": content})

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        assert 0 <= start < start + nbytes <= len(self.files[key])
        return super().read(key, head, start, nbytes + self.cut)

    @property
    def sent(self) -> int:
        """The bytes that were read."""
        return sum(nbytes for _, nbytes in self.ranges)


sizes = st.one_of(st.integers(0, 5000), st.integers(0, 600_000))


@given(
    size=st.one_of(st.integers(0, 400_000), st.just(len(CONTENT))),
    reads=st.lists(st.tuples(st.integers(0, len(CONTENT)), sizes), max_size=40),
)
@example(len(CONTENT), [(start, 1) for start in range(0, len(CONTENT), 256 << 10)])
def test_any_reads_give_the_bytes_and_bring_little_more(
    size: int, reads: list[tuple[int, int]]
) -> None:
    """A read is a slice of the content; all together bring at most what they ask for and
    ``AHEAD_NBYTES``."""
    client = OneFile(CONTENT[:size])
    storage, asked = RemoteStorage(client, "run"), 0
    for number, (start, nbytes) in enumerate(reads):
        if number % 3 == 0:
            file = storage.open("f")  # another one of the storage, and of the same room ahead
        start = min(start, size)
        nbytes = min(nbytes, size - start)
        assert file.read(start, nbytes) == CONTENT[:size][start : start + nbytes]
        buffer = bytearray(nbytes)
        file.read_into(start, memoryview(buffer))
        assert buffer == CONTENT[:size][start : start + nbytes]
        asked += 2 * nbytes
    assert client.sent <= asked + AHEAD_NBYTES


def test_neighbours_come_with_one_request() -> None:
    """Small reads side by side: 256 KiB forwards, and the last 64 KiB of the file backwards."""
    client = OneFile()
    file = RemoteStorage(client, "run").open("f")
    for start in range(0, 256 << 10, 256):
        file.read(start, 256)
    assert client.ranges == [("run/f", 256 << 10)]
    for start in range(len(CONTENT) - 256, len(CONTENT) - (64 << 10), -256):
        file.read(start, 256)
    assert client.ranges[1:] == [("run/f", 64 << 10)]


@pytest.mark.parametrize("cut", [-1, 1])
def test_an_answer_of_another_length_is_an_error(cut: int) -> None:
    """Servers and proxies send less, or more, without an error: the length of every answer is
    compared."""
    client = OneFile()
    client.cut = cut
    file = RemoteStorage(client, "run").open("f")
    with pytest.raises(
        StorageError,
        match=r"s3://bucket/run/f: the server sent \d+ of 300000 bytes at offset 10\.",
    ):
        file.read(10, 300_000)
    with pytest.raises(StorageError, match="the server sent"):
        file.read(10, 10)


def test_ranges_outside_a_file_are_refused_without_a_request() -> None:
    file = RemoteStorage(OneFile(b"abc"), "run").open("f")
    with pytest.raises(IncompleteCheckpoint, match="ends before the 3 bytes at offset 1: it has 3"):
        file.read(1, 3)
    with pytest.raises(ArgumentError, match="invalid range"):
        file.read(-1, 1)
    with pytest.raises(UnsupportedError, match="without mmap"):
        file.map()
    file.close()
    with pytest.raises(ArgumentError, match="was closed"):
        file.read(0, 1)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb"])
def test_a_name_leads_to_no_other_folder(name: str) -> None:
    storage = RemoteStorage(OneFile(), "run")
    for use in (
        storage.open,
        storage.stamp,
        storage.folder,
        lambda each: storage.check_names(["f", each]),
        storage.break_claim,
    ):
        with pytest.raises(InvalidCheckpoint, match="not the name of one file"):
            use(name)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://KEY:SECRET@bucket/model", "password"),
        ("s3://SECRET@bucket/model", "password"),
        ("abfs://c:SECRET@account.dfs.core.windows.net/x", "password"),
        ("https://user:SECRET@host/model.npz", "password"),
        ("s3://KEY:SECRET/with/slash@bucket/model", "password"),
        ("https://user:SECRET/with/slash@host/model.npz", "password"),
        ("zip://x::s3://KEY:SECRET@bucket/model", "another URL in it"),
        ("simplecache::s3://KEY:SECRET@bucket/model", "does not begin as a URL"),
        (" s3://KEY:SECRET@bucket/model", "does not begin as a URL"),
        ("s3:/KEY:SECRET@bucket/model", "lost a slash"),
        ("https://host/model.npz?X-Amz-Signature=SECRET", "query"),
        ("s3://bucket/model?versionId=SECRET", "query"),
        ("https://host/model%3Fsig=SECRET", "query"),
        ("s3://bucket/model%3FX-Amz-Signature%3DSECRET", "query"),
        ("https://host/model.npz#SECRET", "fragment"),
        ("s3://bucket/model#SECRET", "fragment"),
        ("gs://bucket/#SECRET", "fragment"),
        ("az://container/run#SECRET/model", "fragment"),
        ("hf://user/model#SECRET", "fragment"),
        ("s3://bucket#SECRET", "fragment"),
        ("https://host/model;sig=SECRET/x.npz", "parameters"),
        ("https://host/sv=2020&sig=SECRET/x.npz", "parameters"),
        ("https://host/model%3Bsig%3DSECRET", "parameters"),
        ("az://container/model;SharedAccessSignature=SECRET", "parameters"),
        ("az://DefaultEndpointsProtocol=https;AccountKey=SECRET/x", "parameters"),
        ("https://account.blob.core.windows.net/container/x;sig=SECRET", "parameters"),
        ("ssh://user;password=SECRET@host/model", "parameters"),
        ("sftp://user%3ASECRET@host/model", "password"),
        ("https://user%3ASECRET%40host/model.npz", "password"),
        ("http://example.com/model.npz", "Use https"),
        ("https://b.s3.us-east-1.amazonaws.com/model", "s3://bucket"),
        ("https://host/", "cannot be listed"),
        ("s3:///model", "names no bucket"),
        ("s3://bucket/a//b", "empty steps"),
        ("s3://bucket/../b", "empty steps"),
        ("local:///tmp/model", "Leave local:// out"),
        ("file://host/tmp/model", "is a file of the machine 'host'"),
        ("file:///tmp/model?sig=SECRET", "has a query"),
        (Path("s3://KEY:SECRET@bucket/model"), "as text, not as pathlib.Path"),
    ],
)  # fmt: skip
def test_urls_that_cannot_be_used_are_refused_without_a_request(url: Any, words: str) -> None:
    """The error says why, and never repeats what may be secret."""
    for call in (sv.load, lambda url: sv.save(url, {"w": np.zeros(1)})):
        with pytest.raises((ArgumentError, UnsupportedError), match=words) as caught:
            call(url)
        assert "SECRET" not in str(caught.value)


def test_a_url_of_a_file_is_its_path(tmp_path: Path) -> None:
    tensors = {"w": np.arange(3)}
    for name, word in (("model", "model"), ("a model.npz", "a%20model.npz")):
        for host in ("", "localhost"):
            sv.save(f"file://{host}{tmp_path}/{word}", tensors, force=True)
            assert np.array_equal(sv.load(tmp_path / name)["w"], tensors["w"])
        assert sv.verify(f"file://{tmp_path}/{word}").path == str(tmp_path / name)


def test_names_with_an_equals_sign_are_names() -> None:
    """Folders such as those of a step or of a search over learning rates are no parameters."""
    pytest.importorskip("fsspec")
    storage, name = split_url("memory://bucket/lr=0.1,wd=0.2/step=100;a&b/model.npz")
    assert (storage.key, name) == ("lr=0.1,wd=0.2/step=100;a&b", "model.npz")


def test_unknown_schemes_and_packages_that_are_missing_are_told_apart() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ArgumentError, match="The scheme zz:// is not known"):
        sv.load("zz://a/b")
    with (
        patch.dict(sys.modules, {"huggingface_hub": None}),
        pytest.raises(MissingExtra, match=r"the package huggingface_hub,.*Install it: .*\[hub\]"),
    ):
        sv.load("hf://a/b/model.safetensors")
    with pytest.raises(MissingExtra, match="Reading hdfs://.* Install it: pip install pyarrow"):
        sv.load("hdfs://host/a")


@pytest.fixture
def bucket() -> Iterator[Any]:
    """A folder of fsspec's file system in memory: the URL, and a function that copies a local
    folder to it."""
    fsspec = pytest.importorskip("fsspec")
    system, name = fsspec.filesystem("memory"), uuid.uuid4().hex

    def put(folder: Path) -> str:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                system.pipe_file(
                    f"/{name}/{path.relative_to(folder).as_posix()}", path.read_bytes()
                )
        return f"memory://{name}"

    yield put
    if system.exists(f"/{name}"):
        system.rm(f"/{name}", recursive=True)


@pytest.mark.parametrize("form", NAMES)
def test_a_url_is_read_as_the_path_is(form: str, bucket: Any, tmp_path: Path) -> None:
    """Load, part, verify, digest, diff and reshard of a URL answer what they answer of the path."""
    tensors = {
        "w": np.arange(60_000, dtype="<f4").reshape(300, 200),
        "b": np.array([1, 2, 3]),
        "s": np.float64(2.5),
    }
    sv.save(tmp_path / NAMES[form], tensors, format=form)
    url = f"{bucket(tmp_path)}/{NAMES[form]}"
    read = sv.load(url)
    assert read.keys() == tensors.keys() and all(
        np.array_equal(read[key], tensors[key]) for key in tensors
    )
    with sv.open_checkpoint(url) as reader:
        assert reader.path == url and np.array_equal(reader["w"][7:9, 3], tensors["w"][7:9, 3])
    assert sv.verify(url).ok and sv.digest(url).tensors == sv.digest(tmp_path / NAMES[form]).tensors
    assert sv.diff(url, tmp_path / NAMES[form]).num_equal == 3
    sv.reshard(url, tmp_path / "out" / "copy.npz")
    assert sv.diff(tmp_path / "out" / "copy.npz", url).num_equal == 3


def test_folders_names_and_steps_mean_the_same(bucket: Any, tmp_path: Path) -> None:
    """A folder of one checkpoint is that checkpoint, several are ambiguous, and the newest is found
    by its number."""
    for step in (9, 10):
        sv.save(tmp_path / f"step-{step}" / "model", {"w": [step]})
    url = bucket(tmp_path)
    for name in ("step-9", "step-9/", "step-9/model.svindex"):
        assert sv.load(f"{url}/{name}")["w"] == [9]
    assert sv.newest_checkpoint(f"{url}/step-10") == f"{url}/step-10/model"
    assert sv.newest_checkpoint(url) == f"{url}/step-10/model"
    with pytest.raises(AmbiguousPath, match="step-9"):
        sv.load(url)
    sv.save(tmp_path / "variables" / "variables", {"w": [0]}, format="tensorflow")
    assert sv.load(bucket(tmp_path))["w"] == [0]  # as of a SavedModel
    with pytest.raises(CheckpointNotFound, match=f"There is no checkpoint at {url}/step-11"):
        sv.load(f"{url}/step-11")


def test_a_url_is_not_written(bucket: Any, tmp_path: Path) -> None:
    sv.save(tmp_path / "model", {"w": [1]})
    url = bucket(tmp_path)
    with pytest.raises(UnsupportedError, match="can be read, and not written"):
        sv.save(f"{url}/other", {"w": [1]})
    with pytest.raises(UnsupportedError, match="can be read, and not written"):
        sv.reshard(f"{url}/model", f"{url}/other", dry_run=True)
    with pytest.raises(ArgumentError, match="both the source and the target"):
        sv.reshard(f"{url}/model", f"{url}/model", force=True)
    storage = RemoteStorage(urls.FilesystemClient(url), "")
    for call in (storage.create, storage.remove, storage.check_writable):
        with pytest.raises(UnsupportedError, match=f"{url}/new can be read, and not written"):
            call("new")


# --- Web servers


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    """A server of one checkpoint, the numbers from 0 to 199,999."""
    pytest.importorskip("obstore")
    sv.save(tmp_path / "model.npz", {"w": np.arange(200_000)})
    with serving({"model.npz": (tmp_path / "model.npz").read_bytes()}) as state:
        yield state


def test_a_server_that_sends_whole_files_alone_is_said_to_be_that(server: RangeServer) -> None:
    server.knows_ranges = False
    with pytest.raises(
        StorageError, match=r"sends only whole files, .*\. Download the file, or use a server"
    ):
        sv.load(f"{server.url}/model.npz")


def test_a_web_server_that_cuts_answers_short_is_an_error(server: RangeServer) -> None:
    server.cut = 3
    server.num_requests = 0
    with pytest.raises(ServerError, match="the server sent"):
        sv.load(f"{server.url}/model.npz")
    assert (
        server.num_requests == 3
    )  # for its size, and twice for its first bytes: no other format asks again


def test_a_file_that_is_replaced_meanwhile_is_an_error(server: RangeServer) -> None:
    with sv.open_checkpoint(f"{server.url}/model.npz") as reader:
        server.files["model.npz"] += b"more"
        with pytest.raises(CorruptCheckpoint, match="was replaced while"):
            np.asarray(reader["w"])


def test_passing_failures_are_tried_again_and_refusals_are_told(server: RangeServer) -> None:
    """503 and 429 pass; 403 does not, and its error is one short line."""
    server.failures = [503, 429]
    assert sv.load(f"{server.url}/model.npz")["w"][2:4].tolist() == [2, 3]
    server.failures = [403] * 3
    with pytest.raises(StorageError, match="permission is denied") as caught:
        sv.load(f"{server.url}/model.npz")
    assert len(str(caught.value)) < 200


def test_blanks_in_a_url_are_encoded(server: RangeServer) -> None:
    server.files["a%20b/model.npz"] = server.files["model.npz"]
    with sv.open_checkpoint(f"{server.url}/a%20b/model.npz") as reader:
        assert reader.path == f"{server.url}/a%20b/model.npz" and reader["w"][2:4].tolist() == [
            2,
            3,
        ]


def test_a_forked_child_is_refused(
    server: RangeServer, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads of obstore and fsspec are not in the child, which would wait for them for
    ever."""
    objects.library()
    with pytest.raises(CheckpointNotFound):
        sv.load("memory://none/model")
    parent = os.getpid()
    for module in (objects, urls):
        monkeypatch.setattr(module.os, "getpid", lambda: parent + 1)
    for url in ("s3://none/model", "memory://none/model"):
        with pytest.raises(UnsupportedError, match=r"forked.*spawn"):
            sv.load(url)


def test_a_client_pickles_its_url_alone(server: RangeServer) -> None:
    """A store that is pickled may have keys in it, so none is: the copy makes one from the
    environment it is in."""
    client = ObjectClient("s3://bucket")
    client._opened["reading"] = object()
    copy = pickle.loads(pickle.dumps(client))
    assert copy == client and not copy._opened and repr(copy) == "ObjectClient(root='s3://bucket')"
    web = pickle.loads(pickle.dumps(WebClient(server.url)))
    with pytest.raises(MissingFile):
        web.head("none")


@pytest.mark.parametrize("at", ["HEAD", "GET"])
@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("http://127.0.0.1:{other}/model.npz?sig=SECRET", "http://127.0.0.1:{other}"),
        ("http://localhost:{port}/model.npz?sig=SECRET", "http://localhost:{port}"),
        ("https://127.0.0.1:{port}/model.npz#SECRET", "https://127.0.0.1:{port}"),
        ("http://192.0.2.7:8099/SECRET", "http://192.0.2.7:8099"),
        ("http://user:SECRET@127.0.0.1:{port}/model.npz", "another address"),
        ("ftp://127.0.0.1/SECRET", "another address"),
        ("//example.com/SECRET", "http://example.com:80"),
        ("http://127.0.0.1:SECRET/x", "another address"),
    ],
)
def test_a_redirect_to_another_server_is_refused_and_not_asked(
    target: str, shown: str, at: str, server: RangeServer
) -> None:
    """By scheme, host or port, of the first request or of a later one. Nothing secret is
    repeated."""
    with serving(dict(server.files)) as other:
        ports = {"port": server.url.rpartition(":")[2], "other": other.url.rpartition(":")[2]}
        server.redirects = {at: target.format(**ports)}
        with pytest.raises(StorageError, match="not the server that was named") as caught:
            sv.load(f"{server.url}/model.npz")
        assert f"leads to {shown.format(**ports)}," in str(caught.value)
        assert "SECRET" not in str(caught.value) and other.num_requests == 0


def test_a_folder_of_a_web_server_is_not_listed() -> None:
    storage = RemoteStorage(WebClient("https://host"), "run")
    for call in (storage.names, storage.folders, storage.tree, lambda: storage.status("f")):
        with pytest.raises(UnsupportedError, match="https://host/run is a folder.* cannot be list"):
            call()


def test_a_redirect_within_a_server_is_followed_and_circles_end(server: RangeServer) -> None:
    server.redirected = {"here/model.npz": "/model.npz?again", "circle.npz": "/circle.npz"}
    assert sv.load(f"{server.url}/here/model.npz")["w"][-1] == 199_999
    with pytest.raises(StorageError, match="does not answer as it should: the server answers 302"):
        sv.load(f"{server.url}/circle.npz")
    missing = f"There is no checkpoint at {server.url}/none.npz"
    with pytest.raises(CheckpointNotFound, match=missing):
        sv.load(f"{server.url}/none.npz")


def test_without_the_extra_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setattr(objects, "_loaded", {})
    with pytest.raises(MissingExtra, match=r"Install it: .*\[cloud\]"):
        sv.load("s3://bucket/model")


@pytest.fixture
def in_environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set variables of the environment, for a service that refuses connections and is asked
    once."""
    pytest.importorskip("obstore")
    monkeypatch.setattr(requests, "PACE", Pace(patience=0, patience_broken=0, patience_unknown=0))

    def put(**variables: str) -> None:
        usual = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "SECRET", "AWS_REGION": "r"}
        for name, value in {**usual, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", **variables}.items():
            monkeypatch.setenv(name, value)

    return put


def test_the_address_of_a_service_is_told_without_its_secrets(in_environment: Any) -> None:
    """A user, a password, a query and parameters in an address of the environment are left out of
    errors."""
    for place in (
        "user:SECRET@127.0.0.1:9",
        "127.0.0.1:9/x;sig=SECRET",
        "127.0.0.1:9/x?sig=SECRET",
    ):
        in_environment(AWS_ENDPOINT_URL=f"http://{place}", AWS_ALLOW_HTTP="true")
        with pytest.raises(StorageError, match="http://127.0.0.1:9") as caught:
            sv.load("s3://bucket/model")
        assert "SECRET" not in str(caught.value)


def test_a_token_with_a_line_end_is_an_error_that_names_the_variable(in_environment: Any) -> None:
    """obstore panics, which is not an ``Exception``: the error names the variable and not its
    value."""
    in_environment(AWS_SESSION_TOKEN="SECRET\n", AWS_ALLOW_HTTP="true")
    with pytest.raises(
        ArgumentError, match="Look at AWS_SESSION_TOKEN in the environment"
    ) as caught:
        sv.load("s3://bucket/model")
    assert "SECRET" not in str(caught.value)


def test_a_service_without_encryption_is_said_to_need_permission(in_environment: Any) -> None:
    in_environment(AWS_ALLOW_HTTP="false")
    with pytest.raises(StorageError, match="If it is not encrypted, set AWS_ALLOW_HTTP"):
        sv.load("s3://bucket/model")


class Answered(Exception):
    """An error of a library of HTTP, with the answer at it."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.response = SimpleNamespace(status_code=status, headers=headers)


@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (Answered(429, {"Retry-After": "30"}), 30),
        (Answered(503, {}), 0),
        (Answered(500, {}), 0),
        (TimeoutError(), 0),
        (ConnectionResetError(), 0),
    ],
    ids=repr,
)
def test_failures_of_file_systems_that_pass_are_waited_for(
    error: Exception, pause: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the Hub does with 429: each request fails once. The time is simulated."""
    now = [0.0]
    pace = Pace(clock=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(requests, "PACE", pace)
    sv.save(tmp_path / "m", {"w": np.arange(10)})
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(f"{tmp_path}/m.*", "/passing/")
    failed: set[str] = set()
    for name in ("ls", "info", "cat_file"):
        original = getattr(type(memory), name)

        def fail(self: Any, path: str, *rest: Any, original: Any = original, **more: Any) -> Any:
            if original.__name__ not in failed:
                failed.add(original.__name__)
                raise error
            return original(self, path, *rest, **more)

        monkeypatch.setattr(type(memory), name, fail)
    assert sv.load("memory://passing/m")["w"].tolist() == list(range(10))
    assert {"ls", "cat_file"} <= failed and now[0] >= pause
