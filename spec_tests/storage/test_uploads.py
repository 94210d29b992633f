"""Writing into a bucket: whatever request fails or is lost, and whoever else writes, one whole
checkpoint is there."""

import json
import os
import re
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    CheckpointNotFound,
    LockHeld,
    MissingFile,
    StorageError,
    TargetExists,
)
from shardvar.storage import uploads
from shardvar.storage.remote import RemoteStorage
from shardvar.storage.requests import Head
from spec_tests.helpers.memory_bucket import Dead, MemoryBucket, Raced, head_of, in_bucket
from spec_tests.helpers.orbax_files import settled
from spec_tests.helpers.thoroughness import stride

OLD = {"w": np.arange(600, dtype="<f4").reshape(30, 20), "b": np.array([1, 2, 3])}
NEW = {"w": OLD["w"] + 1, "b": OLD["b"] + 1, "c": np.array([4.0])}
SMALL, LATER = {"w": OLD["w"][:3], "a/b": np.array(4)}, {"w": OLD["w"][:3] + 1, "n": np.array(5)}
MANY = sv.MaxShardSizePolicy(1000)
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("model", {"partition": 3}),
    "native of many files": ("model", {"partition": 3, "policy": MANY}),
    "tensorflow": ("model", {"format": "tensorflow", "partition": 3, "policy": MANY}),
    "safetensors": ("model.safetensors", {}),
    "safetensors set": ("model.safetensors", {"policy": sv.MaxShardSizePolicy(30)}),
    "npz": ("model.npz", {}),
    "pt": ("model.pt", {}),
    "torch": ("folder", {"format": "torch", "partition": 3, "policy": MANY}),
    "zarr": ("folder", {"format": "zarr", "partition": 3}),
    "orbax": ("folder", {"format": "orbax", "partition": 3}),
}
FOLDERS = ("zarr", "orbax")
ATOMIC = sorted(set(FORMS) - {"safetensors set", *FOLDERS})
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def failing(form: str) -> tuple[int, int]:
    """Return the first request that fails and the step to the next: each, or in a sample of a write
    with many requests each fourth, from another one in each format."""
    step = 1 if form in ("safetensors", "npz", "pt") else stride(4)
    return [*FORMS].index(form) % step, step


@pytest.fixture(autouse=True)
def no_temporary_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever happens, the temporary files of a write are removed."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert os.listdir(folder) == []


def url_of(form: str) -> str:
    return f"s3://bucket/run/{FORMS[form][0]}"


def save(bucket: MemoryBucket, form: str, tensors: dict[str, Any], **options: Any) -> None:
    with in_bucket(bucket):
        sv.save(url_of(form), tensors, **FORMS[form][1], **options)


def load(bucket: MemoryBucket, form: str) -> dict[str, Any] | None:
    """The tensors that a reader finds, None for nothing; what is there is whole."""
    with in_bucket(MemoryBucket(dict(bucket.files))):
        try:
            found = sv.load(url_of(form))
        except CheckpointNotFound:
            return None
        assert sv.verify(url_of(form)).ok
        return found


def is_same(found: dict[str, Any] | None, tensors: dict[str, Any]) -> bool:
    return (
        found is not None
        and found.keys() == tensors.keys()
        and all(np.array_equal(found[k], tensors[k]) for k in found)
    )


def in_turn(
    form: str, make: Callable[[int], MemoryBucket], write: Callable[[MemoryBucket], object]
) -> Iterator[tuple[MemoryBucket, BaseException | None]]:
    """Write into the bucket that ``make`` gives for each request in turn, until a write ends before
    that request. Yield each bucket after the write, and what the write raised."""
    (number, step), is_reached = failing(form), True
    while is_reached:
        bucket, raised = make(number), None
        try:
            write(bucket)
        except (StorageError, Dead, KeyboardInterrupt) as error:
            raised = error
        is_reached = raised is not None or len(bucket.log) > number
        yield bucket, raised
        number += step
    assert number > 1


def without_claims(bucket: MemoryBucket) -> MemoryBucket:
    """Return what a user has who has deleted the claims."""
    return MemoryBucket({key: each for key, each in bucket.files.items() if ".claim" not in key})


def load_whole(bucket: MemoryBucket, form: str) -> dict[str, Any] | None:
    """As ``load``; in folders, that may lack a file, None for what is there in part."""
    try:
        return load(bucket, form)
    except MissingFile:
        if form in ATOMIC:
            raise
        return None


@pytest.mark.parametrize("takes_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [Dead, StorageError])
@pytest.mark.parametrize("form", [*ATOMIC, *FOLDERS])
def test_whichever_request_fails_one_whole_checkpoint_is_there(
    form: str, error: Any, takes_effect: bool
) -> None:
    """Each request in turn fails or is the last, with and without effect. A save that returns has
    put the new checkpoint in place, and one that is refused leaves the old one; of folders, that
    are not replaced in one step, no reader finds a mixture. The next save leaves nothing else."""
    is_folder = form in FOLDERS
    old, new = (SMALL, LATER) if is_folder else (OLD, NEW)
    before, clean = MemoryBucket(), MemoryBucket()
    save(before, form, old)
    save(clean, form, new)
    if is_folder:
        before.files["run/folder/notes.txt"] = clean.files["run/folder/notes.txt"] = b"the user's"

    def make(number: int) -> MemoryBucket:
        faults: dict[str, Any] = {"takes_effect": takes_effect, "error": error}
        return MemoryBucket(dict(before.files), fail_at=number, **faults)

    for bucket, raised in in_turn(form, make, lambda each: save(each, form, new, force=True)):
        found = load_whole(bucket, form)
        if raised is None:
            assert is_same(found, new), bucket.log
        elif isinstance(raised, StorageError) and not is_folder:
            assert is_same(found, old), bucket.log
            assert without_claims(bucket).files.keys() == before.files.keys(), bucket.log
            continue
        assert is_same(found, old) or is_same(found, new) or (is_folder and found is None)
        again = without_claims(bucket)
        save(again, form, new, force=True)
        if is_folder:
            assert settled(again.files) == settled(clean.files), bucket.log
        else:
            assert is_same(load(again, form), new) and len(again.files) == len(clean.files)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("form", "is_shared"),
    [*[(form, False) for form in FORMS], *[(form, True) for form in FORMS if form != "orbax"]],
)
def test_a_request_that_is_answered_and_not_carried_out_is_found_out(
    form: str, is_shared: bool, tmp_path: Path
) -> None:
    """Over a checkpoint of the same names and sizes, each request in turn, by one process or with
    workers.

    A write that returns has put the new checkpoint in place, whole. One that fails leaves the old
    one, or, in formats that are not replaced in one step, none. The next write leaves nothing else.
    """
    later = {key: values + 1 for key, values in OLD.items()}
    sv.save(tmp_path / "later", later)

    def write(bucket: MemoryBucket) -> None:
        with in_bucket(bucket), ThreadPoolExecutor(2) as executor:
            options: dict[str, Any] = {**FORMS[form][1], "force": True, "executor": executor}
            sv.reshard(tmp_path / "later", url_of(form), **options)

    before, clean, found_out = MemoryBucket(), MemoryBucket(), 0
    save(before, form, OLD)
    save(clean, form, later)
    for bucket, raised in in_turn(
        form,
        lambda number: MemoryBucket(dict(before.files), fail_at=number, lies=True),
        write if is_shared else lambda each: save(each, form, later, force=True),
    ):
        found = load_whole(bucket, form)
        if raised is None:
            assert is_same(found, later), bucket.log
        else:
            found_out += 1
            words = "answers untruly|was uploaded for this|by another writer"
            if bucket.log[bucket.fail_at or 0].startswith("copy "):
                words = "after a copy of"
            assert re.search(words, str(raised)), bucket.log
            if "is in place, but its mark" in str(raised):
                assert form == "orbax" and is_same(found, later)
                continue
            assert is_same(found, OLD) or (found is None and form not in ATOMIC), bucket.log
        if not is_shared:
            again = without_claims(bucket)
            save(again, form, later, force=True)
            assert is_same(load(again, form), later), bucket.log
            assert len(again.files) == len(clean.files), bucket.log
    assert found_out


@pytest.mark.parametrize(
    "form", ["native", "native of many files", "tensorflow", "safetensors set", "torch"]
)
def test_a_reshard_that_fails_removes_nothing_of_the_same_one_that_another_process_has_committed(
    form: str, tmp_path: Path
) -> None:
    """Such as one that was taken for dead and started again: whichever of its requests fails, after
    the other's end."""
    sv.save(tmp_path / "source", NEW)

    def write(bucket: MemoryBucket) -> None:
        with in_bucket(bucket):
            sv.reshard(tmp_path / "source", url_of(form), **{**FORMS[form][1], "force": True})

    def raced(number: int) -> MemoryBucket:
        bucket = Raced(dict(before.files), at=number, fail_at=None)

        def race() -> None:
            with suppress(LockHeld):
                write(MemoryBucket(bucket.files))
            bucket.fail_at = len(bucket.log)

        bucket.race = race
        return bucket

    before = MemoryBucket()
    save(before, form, OLD)
    for bucket, _ in in_turn(form, raced, write):
        found = load(bucket, form)
        assert is_same(found, NEW) or is_same(found, OLD), bucket.log


class _Keeping(MemoryBucket):
    """A bucket in which nothing can be deleted, and from some moment on nothing be committed."""

    commits = True

    def delete(self, key: str) -> None:
        raise StorageError("Deleting is not allowed.", "Ask for it.")

    def delete_all(self, keys: Any) -> None:
        self.delete(keys[0])

    def put_if(self, key: str, content: bytes, old: Any) -> Any:
        if not (self.commits or ".claim" in key):
            raise StorageError("Committing is not allowed.", "Ask for it.")
        return super().put_if(key, content, old)


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "failed"])
@pytest.mark.parametrize("form", sorted(set(FORMS) - {*FOLDERS}))
def test_what_a_bucket_does_not_delete_is_named(
    form: str, commits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the files that one warning names, the bucket has the new checkpoint alone or, after
    an error, the old."""
    before, clean = MemoryBucket(), MemoryBucket()
    save(before, form, OLD)
    save(clean, form, NEW)
    bucket = _Keeping(dict(before.files))
    bucket.commits = commits
    with nullcontext() if commits else pytest.raises(StorageError, match="not allowed"):
        save(bucket, form, NEW, force=True)
    said = "".join(
        record.getMessage()
        for record in caplog.records
        if "could not remove" in record.getMessage()
    )
    folder = "run/folder" if form == "torch" else "run"
    assert said.count("could not remove") <= 1
    for name in re.findall("'([^']+)'", said):
        del bucket.files[f"{folder}/{name}"]
    assert is_same(load(bucket, form), NEW if commits else OLD)
    assert len(bucket.files) == len(clean.files) if commits else bucket.files == before.files


@pytest.mark.parametrize(("form", "other"), [FOLDERS, FOLDERS[::-1]])
def test_a_folder_that_the_other_format_has_filled_meanwhile_is_not_cleared(
    form: str, other: str
) -> None:
    """Zarr and Orbax give different names to what is an array for both: a claim is the moment to
    look again."""
    bucket = Raced(at=0)
    bucket.race = lambda: save(MemoryBucket(bucket.files), other, OLD)
    with pytest.raises(TargetExists, match="Write into a folder that is empty or new"):
        save(bucket, form, NEW)
    assert is_same(load(bucket, form), OLD) and not any("claim" in key for key in bucket.files)


class _Unmarked(MemoryBucket):
    """A bucket that does not store the mark of Orbax, and says so or not."""

    def put(self, key: str, path: str) -> Any:
        if not key.endswith("commit_success.txt"):
            return super().put(key, path)
        if not self.lies:
            raise StorageError("Marking is not allowed.", "Ask for it.")
        return head_of(Path(path).read_bytes())


@pytest.mark.parametrize("lies", [True, False])
def test_a_mark_of_orbax_that_is_not_stored_is_said(lies: bool) -> None:
    """The new checkpoint is in place, whole, and the error says so and what Orbax does not find."""
    bucket = _Unmarked(lies=lies)
    with pytest.raises(
        StorageError, match=r"the checkpoint is in place, but its mark commit_success\.txt is not\."
    ):
        save(bucket, "orbax", NEW)
    assert is_same(load(bucket, "orbax"), NEW) and not any(
        "claim" in key or ".tmp" in key for key in bucket.files
    )


@pytest.mark.parametrize("form", FOLDERS)
def test_a_chunk_that_is_gone_from_a_bucket_is_missing(form: str) -> None:
    """It was there when the folder was listed; no other reader of chunks is asked for, which reads
    disks alone."""

    class Losing(MemoryBucket):
        def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
            if re.search(r"[/.]\d+$|/d/\w+$", key):
                raise MissingFile(f"{key} is missing.", "Find it.")
            return super().read(key, head, start, nbytes)

    before = MemoryBucket()
    save(before, form, OLD)
    with (
        in_bucket(Losing(before.files)),
        pytest.raises(MissingFile, match=r"(b/c/\d|/d/\w+) is missing"),
    ):
        sv.load(url_of(form))


@pytest.mark.parametrize("form", ATOMIC)
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "replaced"])
def test_a_commit_that_is_refused_while_nothing_has_changed_blames_no_other_writer(
    form: str, is_there: bool
) -> None:
    """Such as one that a lease of the service keeps out: a write that is tried again would be
    refused again."""

    class Leased(MemoryBucket):
        def put_if(self, key: str, content: bytes, old: Any) -> Any:
            if ".claim" in key:
                return super().put_if(key, content, old)
            raise LockHeld("A condition does not hold.", "Look.")

    before = MemoryBucket()
    if is_there:
        save(before, form, OLD)
    bucket = Leased(dict(before.files))
    with pytest.raises(StorageError, match=r"and nothing has changed\. End the lease") as caught:
        save(bucket, form, NEW, force=True)
    assert not isinstance(caught.value, LockHeld) and bucket.files == before.files


@pytest.mark.parametrize("form", FOLDERS)
def test_a_folder_in_a_bucket_has_the_files_of_one_on_a_disk(form: str, tmp_path: Path) -> None:
    """Byte for byte; Orbax's mark of a complete checkpoint beside them is the last file that goes
    up."""
    bucket = MemoryBucket()
    save(bucket, form, OLD)
    sv.save(tmp_path / "ck", OLD, **FORMS[form][1])
    files = {key.removeprefix("run/folder/"): content for key, content in bucket.files.items()}
    mark = files.pop("commit_success.txt", None)
    there = {
        str(path.relative_to(tmp_path / "ck")): path
        for path in (tmp_path / "ck").rglob("*")
        if path.is_file()
    }
    there.pop("commit_success.txt", None)
    assert settled(files) == settled(
        {name: path.read_bytes() for name, path in there.items() if not name.endswith(".lock")}
    )
    puts = [entry for entry in bucket.log if entry.startswith("put") and "claim" not in entry]
    if form == "orbax":
        assert (
            mark
            and b"s3://bucket/run/folder" in mark
            and puts[-1] == "put run/folder/commit_success.txt"
        )
        puts.pop()
    assert puts[-1].startswith("put_if run/folder/")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "replaced"])
def test_a_lost_race_is_an_error_and_changes_nothing(
    form: str, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits between the beginning of a save and its commit: the save says so, and
    leaves no file."""
    bucket = MemoryBucket()
    if is_there:
        save(bucket, form, OLD)
    # Other names: the index of a set has no values in it, and would be the same bytes as before.
    other = {"x": OLD["w"], "y": OLD["b"]}
    original, raced = uploads.Upload.create, list[dict[str, bytes]]()

    def create(self: Any, name: str) -> Any:
        if not raced:
            raced.append({})
            save(bucket, form, other, force=True)
            raced[0] = dict(bucket.files)
        return original(self, name)

    monkeypatch.setattr(uploads.Upload, "create", create)
    with pytest.raises(
        LockHeld, match="written by another writer meanwhile; nothing of this write is in place"
    ) as caught:
        save(bucket, form, NEW, force=True)
    assert str(caught.value).startswith("s3://bucket/run/")
    assert bucket.files == raced[0] and is_same(load(bucket, form), other)


@pytest.mark.parametrize("error", [StorageError, LockHeld])
def test_a_claim_of_which_the_answer_is_lost_is_the_own_one(error: Any) -> None:
    """It is read back, also where a second attempt was told that it is there; the save goes on and
    removes it."""

    class Lost(MemoryBucket):
        def put_if(self, key: str, content: bytes, old: Any) -> Any:
            answer = super().put_if(key, content, old)
            if ".claim" in key:
                raise error("No answer.", "Wait.")
            return answer

    bucket = Lost()
    save(bucket, "tensorflow", OLD)
    assert is_same(load(bucket, "tensorflow"), OLD) and not any(
        ".claim" in key for key in bucket.files
    )


class Interrupted(MemoryBucket):
    """A bucket that interrupts the main thread while one of its requests is under way."""

    seen: threading.Semaphore
    count: int
    under_way = 0

    def change(self, what: str, do: Any) -> None:
        with self.lock:
            self.under_way += 1
        try:
            self.interrupt_and_change(what, do)
        finally:
            with self.lock:
                self.under_way -= 1

    def interrupt_and_change(self, what: str, do: Any) -> None:
        if len(self.log) == self.fail_at:
            self.fail_at = None
            for _ in range(self.count):
                main = threading.main_thread().ident or 0
                signal.pthread_kill(main, signal.SIGINT)
                # A signal that comes just before the main thread waits for a lock does not end that
                # wait. Any later signal does.
                while not self.seen.acquire(timeout=1):
                    signal.pthread_kill(main, signal.SIGUSR1)
        super().change(what, do)


@pytest.fixture
def seen() -> Iterator[threading.Semaphore]:
    """Released by each interrupt of the main thread, which raises ``KeyboardInterrupt`` there."""
    count = threading.Semaphore(0)

    def interrupt(*_: object) -> None:
        count.release()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    quiet = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield count
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGUSR1, quiet)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("form", ["native of many files", "tensorflow", "npz", "zarr"])
def test_after_an_interrupt_no_request_is_under_way(
    form: str, count: int, seen: threading.Semaphore
) -> None:
    """At each request in turn, which takes effect after it: one checkpoint is whole, and no claim
    and no file stays.

    A second interrupt does not shorten the wait for what is under way, but may leave files that no
    index names.
    """

    def interrupted(number: int) -> MemoryBucket:
        bucket = Interrupted(dict(before.files), fail_at=number)
        bucket.seen, bucket.count = seen, count
        return bucket

    before = MemoryBucket()
    save(before, form, OLD)
    for bucket, _ in in_turn(form, interrupted, lambda each: save(each, form, NEW, force=True)):
        assert isinstance(bucket, Interrupted)
        asked = len(bucket.log)
        assert bucket.under_way == 0, bucket.log
        assert not any(".claim" in key for key in bucket.files), bucket.log
        found = load(bucket, form)
        assert is_same(found, OLD) or is_same(found, NEW) or (form in FOLDERS and found is None), (
            bucket.log
        )
        if is_same(found, OLD) and count == 1:
            assert set(bucket.files) == set(before.files), bucket.log
        assert len(bucket.log) == asked, bucket.log


def test_the_claim_of_a_killed_writer_says_whose_it_is_and_how_it_is_removed() -> None:
    """Machine, process, release and time of the dead writer, and a command that removes the claim
    and nothing else."""
    bucket = MemoryBucket(fail_at=2, error=Dead)
    with pytest.raises(Dead):
        save(bucket, "tensorflow", OLD)
    again = MemoryBucket(dict(bucket.files))
    with pytest.raises(LockHeld) as caught:
        save(again, "tensorflow", NEW)
    assert again.files == bucket.files
    said = (
        r"not finished, which has left "
        r"\.model\.claim.*sv\.break_claim\('s3://bucket/run/\.model\.claim'\) and run the"
    )
    with pytest.raises((CheckpointNotFound, MissingFile), match=said):
        load(again, "tensorflow")
    who = (
        rf"made by shardvar {sv.__version__}, process {os.getpid()} on {socket.gethostname()}, at "
        rf"\d{{4}}-\d\d-\d\dT"
    )
    assert re.search(who, caught.value.cause)
    command = re.search(r"python -c '(.*)'", caught.value.remedy)
    printed: list[str] = []
    with in_bucket(again):
        exec(command[1] if command else "", {"print": printed.append})
        with pytest.raises(
            CheckpointNotFound, match=r"There is no claim s3://bucket/run/\.model\.claim"
        ):
            sv.break_claim("s3://bucket/run/.model.claim")
    assert (
        printed[0].startswith("Removed s3://bucket/run/.model.claim, made by") and len(printed) == 1
    )
    assert again.files == {
        key: value for key, value in bucket.files.items() if key != "run/.model.claim"
    }
    save(again, "tensorflow", NEW)
    assert is_same(load(again, "tensorflow"), NEW)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"[" * 5000, b'{"host": {}, "process": 1}', b"\xff"]
)
def test_a_claim_of_any_content_is_respected_and_removed(content: bytes) -> None:
    """In formats whose data files have fixed names. Nothing that is in it decides, neither a time nor
    its absence: clocks jump."""
    bucket = MemoryBucket({"run/.model.claim": content})
    unknown = r"holds s3://bucket/run/\.model\.claim, which does not say whose it is\."
    with pytest.raises(LockHeld, match=unknown):
        save(bucket, "tensorflow", OLD)
    assert bucket.files == {"run/.model.claim": content}
    save(MemoryBucket(dict(bucket.files)), "native", OLD)
    with in_bucket(bucket):
        assert "does not say whose it is" in sv.break_claim("s3://bucket/run/.model.claim")
    assert not bucket.files


def test_what_a_claim_says_is_not_believed_to_be_text_for_a_terminal() -> None:
    words = {"host": "\x1b[31mroot", "process": 1, "shardvar": "1\n2", "time": "now"}
    bucket = MemoryBucket({"run/.model.claim": json.dumps(words).encode()})
    with pytest.raises(LockHeld) as caught:
        save(bucket, "tensorflow", OLD)
    assert "process 1 on ??31mroot, at now" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/run/model",
        "/data/.model.claim",
        "s3://bucket/run/.claim",
        "memory://a/.b.claim",
    ],
)
def test_only_claims_are_broken(url: str) -> None:
    bucket = MemoryBucket({"run/model": b"", "run/.claim": b""})
    with in_bucket(bucket), pytest.raises(ArgumentError):
        sv.break_claim(url)
    assert len(bucket.files) == 2


def test_of_two_sets_with_equal_indexes_the_one_that_came_first_is_whole() -> None:
    """The index of a set has no values in it, so its bytes are those of the other's; the parts tell
    them apart."""
    bucket = MemoryBucket()
    save(bucket, "safetensors set", OLD)
    third = {key: value + 7 for key, value in OLD.items()}
    bucket = Raced(
        bucket.files, at=0, race=lambda: save(bucket, "safetensors set", third, force=True)
    )
    with pytest.raises(
        LockHeld, match="written by another writer meanwhile; nothing of this write is in place"
    ):
        save(bucket, "safetensors set", {key: value + 9 for key, value in OLD.items()}, force=True)
    assert is_same(load(bucket, "safetensors set"), third)


def test_a_file_too_large_for_one_request_is_compared_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes up in parts under a claim, and not at all if the file that it replaces is another by
    then."""
    monkeypatch.setattr(uploads, "ONE_REQUEST_NBYTES", 100)
    bucket = MemoryBucket()
    save(bucket, "safetensors", OLD)
    save(bucket, "safetensors", NEW)
    assert is_same(load(bucket, "safetensors"), NEW) and set(bucket.files) == {
        "run/model.safetensors"
    }
    assert len([line for line in bucket.log if line.startswith("put_if run/.model")]) == 2
    original = uploads.Upload.create

    def create(self: Any, name: str) -> Any:
        bucket.files["run/model.safetensors"] = b"other"
        return original(self, name)

    monkeypatch.setattr(uploads.Upload, "create", create)
    with pytest.raises(LockHeld, match="nothing of this write is in place"):
        save(bucket, "safetensors", OLD)
    assert bucket.files == {"run/model.safetensors": b"other"}


def test_a_write_is_at_work_until_it_ends_and_needs_no_files_after_its_commit() -> None:
    """A program that cleans temporary folders may remove its folder before it ends."""
    bucket = MemoryBucket()
    upload = uploads.Upload(bucket, "run", "model", {})
    upload.mark.make()
    (mark,) = upload.mark.made
    about = json.loads(bucket.files[f"run/{mark}"])
    assert uploads.is_at_work(about) and upload.folder in uploads.AT_WORK
    for other, expected in (
        ({"process": 1, "write": "another's"}, os.getpid() != 1),
        ({"process": 2**31 - 1}, False),  # no process has that number
        ({"host": "another"}, False),
    ):
        assert uploads.is_at_work(about | other) == expected, other
    os.rmdir(upload.folder)
    upload.end()
    assert not uploads.is_at_work(about) and not bucket.files
    assert upload.folder not in uploads.AT_WORK


def test_a_write_begins_with_what_is_there_and_a_write_within_it_changes_that() -> None:
    """Both see what was written before they began, and the outer one what the inner one did. Of a
    file that the outer one knows, the inner one knows as much: it does not replace another."""
    bucket = MemoryBucket({"run/old": b"1"})
    storage = RemoteStorage(bucket, "run")

    def write(content: bytes) -> None:
        with storage.lock("m"):
            assert storage.names() == sorted(key.removeprefix("run/") for key in bucket.files)
            with closing(storage.create("new")) as file:
                file.write(0, content)
            storage.rename("new", "m")
            storage.remove("old")

    assert storage.names() == ["old"]
    bucket.write("run/more", b"2")
    with storage.lock("outer"):
        assert storage.names() == ["more", "old"]
        write(b"3")
        assert storage.names() == ["m", "more"] and storage.open("m").read(0, 1) == b"3"
        bucket.write("run/m", b"another's")
        with pytest.raises(LockHeld, match="by another writer meanwhile"):
            write(b"4")
    assert bucket.files == {"run/m": b"another's", "run/more": b"2"}


def test_a_dry_run_counts_the_requests_and_moves_no_payload() -> None:
    bucket, arrays = MemoryBucket(), {"w": np.arange(50_000.0), "b": np.arange(3)}
    save(bucket, "native", arrays)
    before, nbytes = dict(bucket.files), sum(array.nbytes for array in arrays.values())
    bucket.ranges.clear()
    with in_bucket(bucket):
        report = sv.reshard(url_of("native"), url_of("npz"), dry_run=True)
    assert bucket.files == before and sum(size for _, size in bucket.ranges) < nbytes // 10
    assert report.requests and {"get", "put"} < report.requests.keys()


def test_an_outcome_that_stays_unknown_is_said_and_removes_nothing() -> None:
    """The answer to the commit is lost, and the server with it: the files stay, since they may be
    in place."""
    bucket = MemoryBucket()
    save(bucket, "native", OLD)
    old = dict(bucket.files)
    bucket.log.clear()

    class Gone(MemoryBucket):
        def head(self, key: str) -> Any:
            if any(entry.startswith("put_if") for entry in self.log):
                raise StorageError("The server is gone.", "Wait.")
            return super().head(key)

    gone = Gone(dict(old), fail_at=1, takes_effect=True)
    with pytest.raises(StorageError, match="whether the new checkpoint is in place is not known"):
        save(gone, "native", NEW, force=True)
    assert set(old) < set(gone.files)
    assert is_same(load(gone, "native"), NEW)


def test_a_killed_reshard_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Finished files are in the bucket with their journals, so a second run, on any machine,
    uploads the rest alone."""
    sv.save(tmp_path / "source", OLD)
    options: dict[str, Any] = {"partition": 6, "policy": sv.MaxShardSizePolicy(500)}
    bucket = MemoryBucket(fail_at=7, error=Dead)
    with in_bucket(bucket), pytest.raises(Dead):
        sv.reshard(tmp_path / "source", url_of("native"), **options)
    again = MemoryBucket(dict(bucket.files))
    with in_bucket(again):
        report = sv.reshard(tmp_path / "source", url_of("native"), **options)
    assert report.reused_files >= 2
    uploaded = [
        entry for entry in again.log if entry.startswith("put ") and not entry.endswith(".done")
    ]
    assert len(uploaded) == len(report.file_nbytes) - report.reused_files
    assert is_same(load(again, "native"), OLD) and not any(
        key.endswith(".done") for key in again.files
    )


def test_journals_that_another_process_removes_stop_no_commit(tmp_path: Path) -> None:
    """Before any request: it may have the same plan, and clean up after its own commit."""
    sv.save(tmp_path / "source", OLD)
    number, found, ended = 0, 0, False
    while not ended:
        bucket = Raced(at=number)

        def race(bucket: Raced = bucket) -> None:
            nonlocal found
            journals = [key for key in bucket.files if key.endswith(".done")]
            found += len(journals)
            for key in journals:
                del bucket.files[key]

        bucket.race = race
        form = "native of many files"
        with in_bucket(bucket):
            sv.reshard(tmp_path / "source", url_of(form), **FORMS[form][1])
        assert is_same(load(bucket, form), OLD)
        ended, number = bucket.race is not None, number + 1
    assert found


def test_refusals_come_before_the_first_request_that_writes() -> None:
    bucket = MemoryBucket()
    save(bucket, "safetensors set", OLD)
    save(bucket, "zarr", OLD)
    bucket.log.clear()
    with pytest.raises(TargetExists, match="cannot do in one step"):
        save(bucket, "zarr", NEW)
    with in_bucket(bucket):
        assert sv.reshard(
            url_of("safetensors set"), "s3://bucket/run/new", format="shardvar", dry_run=True
        ).dry_run
    assert bucket.log == []


def test_what_needs_a_disk_is_refused_for_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call takes a URL for a path of this machine, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    bucket, objects = MemoryBucket(), sv.Checkpoint(w=sv.Variable([1.0]))
    with in_bucket(bucket), pytest.raises(ArgumentError, match="local disk"):
        sv.export(objects, "s3://bucket/run/model", format="tensorflow")
    assert os.listdir(tmp_path) == ["temporary"] and not bucket.files


@pytest.mark.parametrize(
    ("form", "is_lent"), [("shardvar", False), ("torch", True), ("safetensors", False)]
)
def test_what_a_killed_upload_may_have_left_is_named_by_the_next_write(
    form: str,
    is_lent: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A writer is killed at each request of a write with a file in parts. Either it had begun no
    such file, or the next write of that checkpoint names the keys, once; no other write does, and
    no mark stays."""
    monkeypatch.setattr(uploads, "ONE_PUT_NBYTES", 1000)
    sv.save(tmp_path / "m", {"w": np.arange(1000.0), "b": np.arange(300)})
    url = {"shardvar": "run/m", "safetensors": "run/m.safetensors", "torch": "run/m"}[form]
    named = 0
    for number in range(0, 60, stride(2)):
        bucket = MemoryBucket(fail_at=number, error=Dead)

        def write(url: str = url) -> None:
            with ThreadPoolExecutor(1) as executor:
                options: dict[str, Any] = {"executor": executor} if is_lent else {}
                options["policy"] = sv.MaxShardSizePolicy(6000)  # two files
                sv.reshard(tmp_path / "m", f"s3://bucket/{url}", format=form, force=True, **options)

        with in_bucket(bucket):
            with suppress(Dead):
                write()
            is_done = not bucket.is_dead
            large = [
                what for what in bucket.log if re.search("put .*(svdata|safetensors|dist)", what)
            ]
            bucket.fail_at, bucket.is_dead = None, False
            caplog.clear()
            write("run/other")
            assert "unfinished uploads" not in caplog.text
            for claim in [key for key in bucket.files if key.endswith(".claim")]:
                del bucket.files[claim]
            marks = [key for key in bucket.files if key.endswith(".uploads")]
            assert marks or not large or is_done
            caplog.clear()
            write()
            said = [each.message for each in caplog.records if "unfinished uploads" in each.message]
            assert len(said) == len(marks) <= 1
            named += len(said)
            assert all("under keys that begin with 'run/" in text for text in said)
            assert not any(key.endswith(".uploads") for key in bucket.files)
        if is_done:
            assert named >= 1
            return
    pytest.fail("the write does not come to its end")
