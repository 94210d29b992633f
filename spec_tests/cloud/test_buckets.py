"""Buckets of S3, Google and Azure, as emulators have them, and behind a proxy that misbehaves
(``make cloud``)."""

import gzip
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import ml_dtypes
import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    CheckpointNotFound,
    CorruptCheckpoint,
    LockHeld,
    StorageError,
    TargetExists,
)
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage import objects, requests, settings
from shardvar.storage.objects import ObjectClient
from shardvar.storage.posix import LocalReadableFile
from shardvar.storage.remote import AHEAD_NBYTES
from shardvar.storage.requests import Pace, put_once
from spec_tests.helpers.bucket_proxy import Answer, Asked, Proxy, proxy_before
from spec_tests.helpers.bucket_servers import ACCOUNT, ACCOUNT_KEY, azurite, find_azurite, moto
from spec_tests.helpers.paths import GOLDEN

SECRET = "s3cr3t"
OLD = {"w": np.arange(600_000, dtype="<f4").reshape(3000, 200), "b": np.array([1, 2, 3])}
NEW = {"w": OLD["w"] + 1, "b": OLD["b"] + 1}
FORMATS = {
    "shardvar": "m",
    "torch": "folder",
    "tensorflow": "m",
    "safetensors": "m.safetensors",
    "npz": "m.npz",
    "pt": "m.pt",
    "zarr": "folder",
    "orbax": "folder",
}
QUICK = sv.StorageOptions(
    answer_seconds=3.0, upload_seconds=2.0, patience_seconds=10.0, broken_seconds=2.0
)
"""Less patience than users need, so that the tests end."""
BACKOFF = {
    "init_backoff": timedelta(seconds=0.01),
    "max_backoff": timedelta(seconds=0.1),
    "base": 2,
}
SERVICES = ["s3", "gs", "az"]


@pytest.fixture(scope="session")
def proxies() -> Iterator[dict[str, Proxy]]:
    """A proxy before the emulator of each service; Azure's is left out where it is not
    installed."""
    for package in ("moto", "obstore"):
        pytest.importorskip(package, reason="make cloud installs it")
    program = find_azurite()
    with (
        moto() as s3,
        moto() as gs,
        proxy_before(s3) as first,
        proxy_before(gs, is_google=True) as second,
    ):
        found = {"s3": first, "gs": second}
        if program is None:
            yield found
            return
        with azurite(program) as az, proxy_before(az) as third:
            yield {**found, "az": third}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxy(
    service: str, proxies: dict[str, Proxy], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxy]:
    """The proxy of a service, which the environment names."""
    if service not in proxies:
        pytest.skip("Azurite is not installed: it needs npm")
    state = proxies[service]
    state.clear()
    variables = {
        "s3": {
            "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": state.url, "AWS_ALLOW_HTTP": "true",
        },
        "gs": {"GOOGLE_BASE_URL": state.url, "GOOGLE_BEARER_TOKEN": SECRET},
        "az": {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": state.url, "AZURE_ALLOW_HTTP": "true",
        },
    }[service]  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(settings, "_current", [QUICK])
    monkeypatch.setitem(objects._PARTS, "backoff", BACKOFF)
    monkeypatch.setattr(requests, "PACE", Pace(patience_unknown=2))
    yield state
    state.clear()


@pytest.fixture
def prefix(service: str, request: pytest.FixtureRequest) -> str:
    """A prefix that no other test uses."""
    return f"{service}://bucket/{re.sub('[^a-z0-9]+', '-', request.node.name)}"


def is_same(url: str, tensors: dict[str, Any]) -> bool:
    found = sv.load(url)
    return sv.verify(url).ok and all(np.array_equal(found[key], tensors[key]) for key in tensors)


def keys_of(url: str) -> list[str]:
    """The names of all files below a URL."""
    scheme, _, place = url.partition("://")
    bucket, _, key = place.partition("/")
    return sorted(ObjectClient(f"{scheme}://{bucket}").walk(key))


DELTAS = {
    None: ("d", None),
    "slime": ("weight_v000007", None),
    "modelexpress": ("folder", ("six", "seven")),
    "trl": ("step_000007.safetensors", None),
    "trl-gaps": ("step_000007.safetensors", None),
}
"""The name of a delta of each dialect, and its versions; None is shardvar's own."""


@pytest.mark.parametrize("dialect", DELTAS)
def test_a_delta_is_published_replaced_and_applied(
    dialect: str | None, proxy: Proxy, prefix: str
) -> None:
    """By each dialect, and by none; what is refused leaves nothing."""
    if dialect in ("slime", "modelexpress"):
        for package in ("zstandard", "xxhash"):
            pytest.importorskip(package, reason="the extra deltas brings it")
    old = {"w": np.zeros((300, 40), ml_dtypes.bfloat16), "b": np.ones(9, ml_dtypes.bfloat16)}
    new = {"w": old["w"].copy(), "b": old["b"]}
    new["w"][7, 5] = -2
    a, b, c = (f"{prefix}/{name}.safetensors" for name in "abc")
    name, versions = DELTAS[dialect]
    url, options = f"{prefix}/v/{name}", {"dialect": dialect, "versions": versions}
    sv.save(a, old), sv.save(b, new)
    for force in (False, True):
        report = sv.delta(a, b, url, force=force, **options)
    assert {each.key: each.num_changed for each in report.tensors} == {"b": None, "w": 1}
    assert sv.verify(url).ok
    there = keys_of(prefix)
    with pytest.raises(TargetExists):
        sv.delta(a, b, url, **options)
    sv.apply(a, url, c)
    assert sv.diff(b, c).equal
    sv.apply(a, url, a, force=True)
    assert sv.diff(a, b).equal
    assert keys_of(prefix) == sorted([*there, "c.safetensors"])
    # A name that says no versions is refused before anything is written.
    if dialect is not None:
        other = "other" if dialect in ("slime", "modelexpress") else "other.safetensors"
        with pytest.raises(ArgumentError, match="versions"):
            sv.delta(a, b, f"{prefix}/{other}", dialect=dialect)
        assert keys_of(prefix) == sorted([*there, "c.safetensors"])


@pytest.mark.parametrize("form", FORMATS)
def test_a_checkpoint_is_written_read_and_replaced(
    form: str, proxy: Proxy, prefix: str, tmp_path: Path
) -> None:
    """Save, load, part, verify, diff, reshard both ways and replacement, on every service; no claim
    stays."""
    url = f"{prefix}/{FORMATS[form]}"
    sv.save(url, OLD, format=form)
    assert is_same(url, OLD)
    sv.save(url, NEW, format=form, force=True)
    with sv.open_checkpoint(url) as reader:
        assert np.array_equal(reader["w"][5:8, 3], NEW["w"][5:8, 3])
    sv.reshard(url, tmp_path / "copy", partition=3, format="shardvar")
    sv.reshard(tmp_path / "copy", f"{prefix}/again", format="shardvar")
    assert sv.diff(f"{prefix}/again", url).num_equal == 2
    assert not any("claim" in key or key.endswith(".done") for key in keys_of(prefix))


def test_a_large_file_goes_up_in_parts(proxy: Proxy, prefix: str) -> None:
    """A file of 40 MiB takes several requests, and is whole."""
    tensors = {"w": np.random.default_rng(1).integers(0, 255, 40 << 20, "u1")}
    sv.save(f"{prefix}/m", tensors, partition=4)
    puts = [asked for asked in proxy.asked if asked.method == "PUT" and ".svdata" in asked.path]
    assert len(puts) >= 5 and is_same(f"{prefix}/m", tensors)


@pytest.mark.parametrize("form", ["shardvar", "safetensors", "tensorflow"])
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "replaced"])
def test_of_writers_at_the_same_time_one_wins(
    form: str, is_there: bool, proxy: Proxy, prefix: str
) -> None:
    """Four writers race. Those that return were in place at a time, the others got LockHeld, and
    one is there whole."""
    url = f"{prefix}/{FORMATS[form]}"
    if is_there:
        sv.save(url, OLD, format=form)
    barrier, outcomes = threading.Barrier(4), dict[int, str]()

    def write(number: int) -> None:
        barrier.wait()
        try:
            sv.save(url, {"w": OLD["w"] + number, "n": np.array(number)}, format=form, force=True)
            outcomes[number] = "done"
        except LockHeld:
            outcomes[number] = "lost"

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [0, 1, 2, 3]
    if "done" in outcomes.values():
        number = int(sv.load(url)["n"])
        assert outcomes[number] == "done" and is_same(url, {"w": OLD["w"] + number})
        assert len(keys_of(prefix)) == (1 if form == "safetensors" else 2)
    else:
        # Formats with claims: each may have met the claim of another that then saw a change.
        assert form == "tensorflow"


def commits(asked: Asked) -> bool:
    """Return True for the request that puts an index in place."""
    return asked.method == "PUT" and ".svindex" in asked.path


def test_a_commit_of_which_the_answer_is_lost_is_found_out(proxy: Proxy, prefix: str) -> None:
    """The index was put, and no answer came: the save ends well. (If it was not put: ``STALLS``.)"""
    url = f"{prefix}/m"
    sv.save(url, OLD)
    lost: list[Asked] = []

    def rule(asked: Asked) -> str | None:
        if commits(asked) and not lost:
            lost.append(asked)
            return "lose"
        return None

    proxy.rule = rule
    sv.save(url, NEW)
    assert is_same(url, NEW) and len(lost) == 1 and len(keys_of(prefix)) == 2


@pytest.mark.parametrize("fate", [503, "dead", 403])
def test_a_service_that_refuses_the_commit_leaves_the_old_checkpoint(
    fate: Any, proxy: Proxy, prefix: str
) -> None:
    """One clear error without secrets; what was uploaded is removed."""
    url = f"{prefix}/m"
    sv.save(url, OLD)
    before = keys_of(prefix)
    proxy.rule = lambda asked: fate if commits(asked) else None
    with pytest.raises(StorageError) as caught:
        sv.save(url, NEW)
    text = str(caught.value)
    assert len(text) < 600 and SECRET not in text and ACCOUNT_KEY not in text and "\n" not in text
    proxy.clear()
    assert keys_of(prefix) == before and is_same(url, OLD)


def test_a_refusal_before_the_commit_is_no_lost_answer(proxy: Proxy, prefix: str) -> None:
    """The file to be replaced cannot be looked at, so nothing was committed: what was uploaded is
    removed."""
    url = f"{prefix}/m"
    sv.save(url, OLD)
    before = keys_of(prefix)
    looks: list[Asked] = []

    def rule(asked: Asked) -> int | None:
        if asked.method == "HEAD" and ".svindex" in asked.path:
            looks.append(asked)
            return 403 if len(looks) == 1 else None
        return None

    proxy.rule = rule
    with pytest.raises(StorageError, match=r"svindex: permission is denied to \w+\."):
        sv.save(url, NEW)
    proxy.clear()
    assert keys_of(prefix) == before and is_same(url, OLD)


@pytest.mark.parametrize("kind", ["upload", "deletion"])
def test_a_lease_on_a_file_is_no_damage_of_a_checkpoint(
    kind: str, proxy: Proxy, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is answered with 412: a failed upload leaves the old checkpoint, a deletion the new one
    and a warning."""
    url = f"{prefix}/m"
    sv.save(url, OLD)
    before = keys_of(prefix)

    def rule(asked: Asked) -> int | None:
        is_deletion = asked.method == "DELETE" or re.search(r"\?delete|comp=batch", asked.path)
        is_upload = asked.method == "PUT" and ".svdata" in asked.path
        return 412 if (is_deletion if kind == "deletion" else is_upload) else None

    proxy.rule = rule
    if kind == "deletion":
        sv.save(url, NEW)
        assert "could not remove" in caplog.text and before[0] in caplog.text
    else:
        with pytest.raises(StorageError, match=r"does not hold\. End the lease"):
            sv.save(url, NEW)
    proxy.clear()
    assert is_same(url, NEW if kind == "deletion" else OLD) and set(before) <= set(keys_of(prefix))


@pytest.mark.parametrize(
    ("form", "fate"),
    [*[(form, 400) for form in [*FORMATS, "safetensors set"]], ("safetensors set", "lie")],
)
def test_an_old_file_is_never_taken_for_a_new_one_of_the_same_size(
    form: str, fate: Any, proxy: Proxy, prefix: str
) -> None:
    """A checkpoint of the same shapes is replaced, and each of its files in turn is refused, while
    all others go up.

    Or the service answers that it has stored the file, and has not. The save fails then. It leaves
    the old checkpoint, the new one, or, in formats that are not replaced in one step, none, but
    never a mixture.
    """
    bare, _, is_set = form.partition(" ")
    url = f"{prefix}/{'m' if is_set else FORMATS[bare]}"
    options: dict[str, Any] = {
        "format": bare,
        "policy": BalancedPolicy(2) if is_set else None,
        "force": True,
    }
    old, new = ({"w": np.full(60, fill), "b": np.full(7, fill)} for fill in (1.0, 2.0))
    sv.save(url, old, **options)
    for number in range(20):
        uploads: list[str] = []

        def rule(asked: Asked, uploads: list[str] = uploads, number: int = number) -> Any:
            path, _, query = asked.path.partition("?")
            is_upload = asked.method == "PUT" or (asked.method == "POST" and "upload" in query)
            if not is_upload or "claim" in path:
                return None
            if path not in uploads:
                uploads.append(path)
            return fate if uploads.index(path) == number else None

        proxy.rule = rule
        try:
            sv.save(url, new, **options)
        except StorageError:
            proxy.clear()
            with suppress(CheckpointNotFound):
                assert (
                    len({float(value) for values in sv.load(url).values() for value in values}) == 1
                )
            sv.save(url, old, **options)
        else:
            assert is_same(url, new) and len(uploads) == number >= 1
            return
    pytest.fail("the save does not come to its end")


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "replaced"])
def test_an_upload_in_parts_of_which_the_last_answer_is_lost_is_found_out(
    is_there: bool, proxy: Proxy, prefix: str, service: str
) -> None:
    """The service has the whole file, and knows the upload no more when it is asked again: the save
    ends well."""
    if service != "s3":
        pytest.skip("only there another request is answered with 404")
    url, tensors = f"{prefix}/m", {key: np.arange(5 << 20, dtype="<u4") for key in "ab"}
    options: dict[str, Any] = {"format": "safetensors", "policy": BalancedPolicy(2), "force": True}
    if is_there:
        sv.save(url, {key: value + 1 for key, value in tensors.items()}, **options)
    ends: list[Asked] = []

    def rule(asked: Asked) -> str | int | None:
        if asked.method != "POST" or "uploadId" not in asked.path:
            return None
        ends.append(asked)
        return "lose" if len(ends) == 1 else None

    proxy.rule = rule
    sv.save(url, tensors, **options)
    assert is_same(url, tensors) and len(ends) >= 3


@pytest.mark.parametrize("fate", [None, "lose", 403])
def test_a_file_that_s3_does_not_copy_in_one_request_goes_up_again(
    fate: str | int | None,
    proxy: Proxy,
    prefix: str,
    service: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As those of more than 5 GiB that a worker has written, over an old file of the same size:
    whole or not at all."""
    if service != "s3":
        pytest.skip("the others copy files of any size")
    monkeypatch.setattr(objects, "MOST_COPIED_NBYTES", 1 << 20)
    url, tensors = f"{prefix}/m", {key: np.arange(3 << 20, dtype="<u4") for key in "ab"}
    options: dict[str, Any] = {"format": "safetensors", "policy": BalancedPolicy(2), "force": True}
    sv.save(url, {key: value + 1 for key, value in tensors.items()}, **options)
    sv.save(tmp_path / "m", tensors)
    ends: list[Asked] = []

    def rule(asked: Asked) -> str | int | None:
        if asked.method != "POST" or "uploadId" not in asked.path or ".tmp" in asked.path:
            return None
        ends.append(asked)
        return fate if len(ends) == 1 else None

    proxy.rule = rule
    with ThreadPoolExecutor(2) as executor:
        if fate == 403:
            with pytest.raises(StorageError, match="permission is denied.*unfinished uploads"):
                sv.reshard(tmp_path / "m", url, executor=executor, **options)
        else:
            sv.reshard(tmp_path / "m", url, executor=executor, **options)
            assert is_same(url, tensors)
    assert len(ends) >= 2 and not any("claim" in key or ".tmp" in key for key in keys_of(prefix))


def test_an_upload_that_the_service_has_ended_is_said(
    proxy: Proxy, prefix: str, service: str
) -> None:
    """By a rule of the bucket, or with the bucket: nothing tells to copy a file again, and nothing
    is in place."""
    proxy.rule = lambda asked: 404 if asked.method in ("PUT", "POST") else None
    with pytest.raises(
        StorageError, match=r"bucket or the upload is gone\. Look at the bucket, and"
    ) as caught:
        sv.save(f"{prefix}/m", {"w": np.zeros(10 << 20, "u1")})
    assert "copy" not in str(caught.value).lower()
    proxy.clear()
    assert keys_of(prefix) == []


@pytest.mark.parametrize("form", ["tensorflow", "zarr"])
def test_a_bucket_that_vanishes_is_said(form: str, proxy: Proxy, prefix: str) -> None:
    """From each request of a save on, all are answered with 404: the error blames no other writer
    and no reader."""
    tensors = {"w": np.zeros(3)}
    for number in range(40):
        proxy.clear()
        url = f"{prefix}/{number}/{FORMATS[form]}"
        sv.save(url, tensors, format=form)
        proxy.clear()
        proxy.rule = lambda asked, number=number: 404 if asked.number >= number else None  # type: ignore[misc]
        try:
            sv.save(url, tensors, format=form, force=True)
        except StorageError as error:
            assert not re.search("which holds|refuses the commit|Copy the file again", str(error))
        if len(proxy.asked) <= number:
            return
    pytest.fail("the save does not come to its end")


STALLS = {
    "head": r"^HEAD .*svindex",
    "get": r"^GET .*svdata",
    "index": r"^GET .*svindex",
    "list": r"^GET \S*\?(.*&)?(delimiter|comp=list)",
    "put": r"^PUT .*svdata",
    "begin": r"^POST .*svdata.*uploads",
    "part": r"^PUT .*svdata.*(partNumber=2|blockid)",
    "complete": r"^POST .*svdata.*uploadId|^PUT .*svdata.*comp=blocklist",
    "commit": r"^PUT .*svindex",
    "delete": r"^DELETE |^POST .*([?&]delete|comp=batch)",
}
"""Requests, each by a pattern of its method and path."""


@pytest.mark.parametrize("kind", STALLS)
def test_a_request_that_stalls_is_made_again(
    kind: str, proxy: Proxy, prefix: str, service: str
) -> None:
    """One request of each kind gets no answer; everything ends well. Google's deletions and Azure's
    uploads begin otherwise."""
    url, tensors = f"{prefix}/m", {"w": np.arange(5 << 20, dtype="<u4")}
    new = tensors if kind in ("begin", "part", "complete") else NEW
    sv.save(url, OLD)
    stalled: list[Asked] = []

    def rule(asked: Asked) -> str | None:
        if not stalled and re.search(STALLS[kind], f"{asked.method} {asked.path}"):
            stalled.append(asked)
            return "hang"
        return None

    proxy.rule = rule
    sv.save(url, new)
    assert is_same(url, new) and (stalled or (service, kind) == ("az", "begin"))
    assert len(keys_of(prefix)) == 2


@pytest.mark.parametrize("status", [503, 429])
def test_a_service_that_is_throttling_is_left_alone_until_it_recovers(
    status: int, proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For some seconds everything is refused, from the first upload and from the commit on: few
    requests are made meanwhile, and the save ends well."""
    monkeypatch.setattr(requests, "PACE", Pace(patience=20))
    tensors = {f"t{number:02}": np.full(8, number) for number in range(40)}
    for start in ("svdata", "svindex"):
        begun: list[float] = []
        refused: list[Asked] = []

        def rule(
            asked: Asked,
            start: str = start,
            begun: list[float] = begun,
            refused: list[Asked] = refused,
        ) -> int | None:
            if asked.method == "PUT" and start in asked.path and not begun:
                begun.append(time.monotonic())
            if begun and time.monotonic() < begun[0] + 2.5:
                refused.append(asked)
                return status
            return None

        proxy.rule = rule
        sv.save(f"{prefix}/{start}", tensors, policy=BalancedPolicy(40))
        # At first as many as are under way, then half as many, and so on.
        assert 1 <= len(refused) <= 2 * 40 + 8
        assert is_same(f"{prefix}/{start}", tensors)


def test_a_pause_that_a_service_asks_for_is_kept(
    proxy: Proxy, prefix: str, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``Retry-After``: after the first refusals and the look at the header, nothing is sent for
    so long."""
    if service == "gs":
        pytest.skip("obstore signs only with the key of a service account")
    monkeypatch.setattr(requests, "PACE", Pace(patience=20))
    begun: list[float] = []
    times: list[float] = []

    def rule(asked: Asked) -> Callable[[Answer], Answer] | None:
        now = time.monotonic()
        if asked.method == "PUT" and "svdata" in asked.path and not begun:
            begun.append(now)
        if not begun:
            return None
        times.append(now - begun[0])
        return (lambda _answer: (503, {"Retry-After": "4"}, b"")) if now < begun[0] + 3 else None

    proxy.rule = rule
    sv.save(f"{prefix}/m", OLD, partition=4)
    assert is_same(f"{prefix}/m", OLD)
    assert len([each for each in times if each < 3.5]) <= 2


@pytest.mark.parametrize("mebibytes", [8, 16])
def test_a_file_of_one_request_is_one_put_and_leaves_nothing(
    mebibytes: int, proxy: Proxy, prefix: str, tmp_path: Path
) -> None:
    """No upload is begun that a killed process could leave."""
    size = (mebibytes << 20) - 4096  # of a file with its padding
    tensors = {f"w{number}": np.full(size, number, "u1") for number in range(3)}
    sv.save(tmp_path / "m", tensors)
    sv.reshard(tmp_path / "m", f"{prefix}/m", policy=BalancedPolicy(3))
    writes = [asked for asked in proxy.asked if asked.method in ("PUT", "POST")]
    data = [asked for asked in writes if ".svdata" in asked.path and ".done" not in asked.path]
    # A slow machine may need a second attempt.
    assert len({asked.path for asked in data}) == 3 and not any(
        re.search("upload|comp=block", asked.path) for asked in writes
    )


def test_what_a_killed_upload_has_left_is_named_by_the_next_write(
    proxy: Proxy, prefix: str, service: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The process is killed within the parts of a file: the service has an unfinished upload, under
    a key that the next write names."""
    if service != "s3":
        pytest.skip("moto behind the others is the same, and Azure ends them itself")
    url, key = f"{prefix}/m", f"{prefix.partition('bucket/')[2]}/m"
    sv.save(tmp_path / "m", {"w": np.arange(10 << 20, dtype="<u4")})
    is_reached, is_killed = threading.Event(), threading.Event()

    def stop(asked: Asked) -> None:
        if "partNumber=4" in asked.path and not is_killed.is_set():
            is_reached.set()
            is_killed.wait(60)

    proxy.gate = stop
    words = [sys.executable, "-m", "shardvar", "reshard", str(tmp_path / "m"), url]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        assert is_reached.wait(60)
        process.kill()
    is_killed.set()
    for _ in range(2):
        caplog.clear()
        sv.reshard(tmp_path / "m", url, force=True)
        assert sv.diff(tmp_path / "m", url).equal
        said = [each.message for each in caplog.records if "unfinished uploads" in each.message]
        if is_killed.is_set():
            assert len(said) == 1 and f"begin with {key!r}" in said[0]
            is_killed.clear()
            proxy.gate = lambda _asked: None
        else:
            assert not said
    with urlopen(f"{proxy.url}/bucket?uploads") as answer:
        keys = re.findall("<Key>(.*?)</Key>", answer.read().decode())
    assert [each for each in keys if each.startswith(key)]


def cut_listing(answer: Answer) -> Answer:
    """Send half of a listing, with an agreeing length."""
    status, headers, content = answer
    kept = {name: text for name, text in headers.items() if name.lower() != "content-length"}
    return status, kept, content[: len(content) // 2]


@pytest.mark.parametrize("kind", ["list", "get"])
def test_an_answer_that_is_cut_once_is_asked_for_once_more(
    kind: str, proxy: Proxy, prefix: str
) -> None:
    url = f"{prefix}/m"
    sv.save(url, OLD)
    cut: list[Asked] = []

    def rule(asked: Asked) -> Callable[[Answer], Answer] | None:
        if not cut and re.search(STALLS[kind], f"{asked.method} {asked.path}"):
            cut.append(asked)
            return cut_listing
        return None

    proxy.rule = rule
    assert np.array_equal(sv.load(url)["w"], OLD["w"]) and len(cut) == 1


def wrong_total(answer: Answer) -> Answer:
    """Say that the file has another size."""
    status, headers, content = answer
    return (
        status,
        {name: re.sub(r"/(\d+)$", r"/9\1", text) for name, text in headers.items()},
        content,
    )


def other_range(answer: Answer) -> Answer:
    """Send another range than was asked for, and say so."""
    status, headers, content = answer
    moved = {
        name: re.sub(
            r"(\d+)-(\d+)/", lambda found: f"{int(found[1]) + 1}-{int(found[2]) + 1}/", text
        )
        for name, text in headers.items()
    }
    return status, moved, content[1:] + b"?"


def whole_file(answer: Answer) -> Answer:
    """Say that the range is the whole file."""
    return (
        200,
        {name: text for name, text in answer[1].items() if name.lower() != "content-range"},
        answer[2],
    )


def compressed(answer: Answer) -> Answer:
    """Compress what was asked for, as proxies do that do not know ranges."""
    return answer[0], {**answer[1], "Content-Encoding": "gzip"}, gzip.compress(answer[2])


def replaced(answer: Answer) -> Answer:
    """Send a file of another version, as if no version had been asked for."""
    others = {name: '"00"' if name.lower() == "etag" else text for name, text in answer[1].items()}
    return answer[0], others, bytes(len(answer[2]))


@pytest.mark.parametrize("lie", [wrong_total, other_range, whole_file, compressed, replaced])
@pytest.mark.parametrize("form", ["shardvar", "safetensors"])
def test_a_service_that_lies_is_an_error_and_never_another_value(
    form: str, lie: Callable[[Answer], Answer], proxy: Proxy, prefix: str
) -> None:
    """From the first read of a file on, and from the second on: one short error, which no other
    format is tried after.

    safetensors has no checksums that would notice.
    """
    url = f"{prefix}/{FORMATS[form]}"
    sv.save(url, OLD, format=form)
    for start in (1, 2):
        proxy.clear()
        reads: list[Asked] = []

        def rule(
            asked: Asked, start: int = start, reads: list[Asked] = reads
        ) -> Callable[[Answer], Answer] | None:
            if asked.method != "GET" or not {"range", "x-ms-range"} & asked.headers.keys():
                return None
            reads.append(asked)
            return lie if len(reads) >= start else None

        proxy.rule = rule
        with pytest.raises((StorageError, CorruptCheckpoint)) as caught:
            sv.load(url)
        assert len(str(caught.value)) < 500 and len(reads) >= start
        assert lie is replaced or len(reads) <= start + 3  # each once more, at most


def test_a_missing_bucket_and_missing_rights_are_told_apart(proxy: Proxy, service: str) -> None:
    with pytest.raises(
        (StorageError, CheckpointNotFound), match="does not exist|There is no checkpoint"
    ):
        sv.load(f"{service}://no-such-bucket/m")
    proxy.rule = lambda asked: 403
    with pytest.raises(StorageError, match=r"permission is denied to \w+\. Check the credentials"):
        sv.load(f"{service}://bucket/m")
    proxy.rule = lambda asked: (
        lambda answer: (403, {}, b"<Error><Code>RequestTimeTooSkewed</Code></Error>")
    )
    with pytest.raises(
        StorageError,
        match=r"permission is denied to \w+ \(RequestTimeTooSkewed\).*clock of this machine",
    ):
        sv.load(f"{service}://bucket/m")


def test_a_slice_transfers_what_the_disk_reads_and_little_more(
    proxy: Proxy, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open, list and one slice, counted in bodies of answers, listings included: at most 2 MiB
    more."""
    tensors = {f"t{i}": np.full((1000, 500), i, "<f4") for i in range(8)}
    sv.save(tmp_path / "m", tensors, partition=4)
    sv.save(f"{prefix}/m", tensors, partition=4)
    local = 0
    for method in ("read", "read_into"):
        original = getattr(LocalReadableFile, method)

        def counted(self: Any, start: int, last: Any, original: Any = original) -> Any:
            nonlocal local
            local += last if isinstance(last, int) else len(last)
            return original(self, start, last)

        monkeypatch.setattr(LocalReadableFile, method, counted)
    proxy.clear()
    for place in (tmp_path / "m", f"{prefix}/m"):
        with sv.open_checkpoint(place) as reader:
            assert len(reader.keys()) == 8 and reader["t3"][10:20].sum() == 3 * 5000
    assert proxy.sent_nbytes <= local + AHEAD_NBYTES + (1 << 19)
    assert len(proxy.asked) <= 12


def test_a_failed_upload_leaves_no_unfinished_parts(
    proxy: Proxy, prefix: str, service: str
) -> None:
    """S3 charges for the parts of an upload that was not ended: an upload that fails is aborted."""
    if service != "s3":
        pytest.skip("only S3 keeps them")
    proxy.rule = lambda asked: 400 if "partNumber=3" in asked.path else None
    with pytest.raises(StorageError, match="unfinished uploads"):
        sv.save(f"{prefix}/m", {"w": np.zeros(40 << 20, "u1")})
    assert any(asked.method == "DELETE" and "uploadId" in asked.path for asked in proxy.asked)
    assert keys_of(prefix) == []


def save_share(url: str, form: str, run: str, process: int) -> None:
    """Save what one process of three holds of ``OLD``; one of them all of it, in a format without
    slices."""
    start, stop = sv.div(len(OLD["w"]), 3)[process]
    share: dict[str, Any] = {"b": OLD["b"], f"x{process}": OLD["b"]}
    if form != "safetensors":
        share["w"] = sv.LocalShard(OLD["w"][start:stop], (start, 0), OLD["w"].shape)
    elif process == 1:
        share["w"] = OLD["w"]
    names: dict[str, Any] = {"process": process, "num_processes": 3, "run": run}
    sv.save_shards(url, share, format=form, force=True, timeout=60, **names)


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "torch", "safetensors"])
def test_spawned_processes_save_one_checkpoint(form: str, proxy: Proxy, prefix: str) -> None:
    """All of them commit; twice, and nothing else stays."""
    url = f"{prefix}/{FORMATS[form]}"
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as executor:
        for run in ("1", "2"):
            list(executor.map(save_share, [url] * 3, [form] * 3, [run] * 3, range(3)))
            assert is_same(url, OLD) and len(keys_of(prefix)) == 4


def test_workers_of_a_cluster_write_a_bucket_and_one_that_is_killed_loses_nothing(
    proxy: Proxy, prefix: str, service: str
) -> None:
    """Two processes of Dask, source and target in the bucket; one is killed in the middle."""
    if service != "s3":
        pytest.skip("the same for each service")
    distributed = pytest.importorskip("distributed", reason="make cloud installs it")
    model = {
        f"w{number}": np.random.default_rng(number).standard_normal((300, 200))
        for number in range(12)
    }
    sv.save(f"{prefix}/m", model, partition=3)
    done: list[int] = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = list(client.run(os.getpid).values())

        def kill_one(nbytes: int) -> None:
            if not done:
                os.kill(pids[0], signal.SIGKILL)
            done.append(nbytes)

        executor = client.get_executor(pure=False)
        options: dict[str, Any] = {"policy": BalancedPolicy(8), "executor": executor}
        report = sv.reshard(f"{prefix}/m", f"{prefix}/out", progress=kill_one, **options)
        assert len(done) == report.num_files == 8
        assert sv.diff(f"{prefix}/m", f"{prefix}/out", executor=executor).equal
    assert len([key for key in keys_of(prefix) if key.startswith("out.")]) == 9


def test_a_database_of_orbax_is_read_from_a_bucket(prefix: str, proxy: Proxy) -> None:
    """It takes as many requests as its tree has levels, two listings and its index."""
    folder = GOLDEN / "orbax" / "written_here" / "ckpt"
    scheme, _, place = prefix.partition("://")
    bucket, _, key = place.partition("/")
    client: Any = ObjectClient(f"{scheme}://{bucket}")
    for path in folder.rglob("*"):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            assert put_once(client, f"{key}/{name}", path.read_bytes())
    proxy.asked.clear()
    with sv.open_checkpoint(prefix) as reader:
        assert sorted(reader) == sorted(sv.load(folder))
    # The index is of a few bytes, and so are the manifest, the root and all nodes below it.
    assert len(proxy.asked) <= 8
    found, wanted = sv.load(prefix), sv.load(folder)
    assert all(np.array_equal(found[key], wanted[key]) for key in wanted)
    there, here = sv.verify(prefix), sv.verify(folder)
    assert (there.ok, there.damages) == (here.ok, here.damages)
    assert [each.key for each in there.unverified] == [each.key for each in here.unverified]
