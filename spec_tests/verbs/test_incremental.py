"""Incremental saves: what is unchanged lies in the files of older checkpoints, which stay as long as
any checkpoint needs them, and no longer."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    MissingFile,
    StorageError,
    UnsupportedError,
)
from shardvar.formats.native.source import find_needs, write_mark
from shardvar.storage.local import LocalStorage, split_place
from shardvar.storage.posix import reading
from shardvar.verbs.compare import claims
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.incremental_stage import (
    VALUES,
    are_equal,
    assert_whole,
    remove_all,
    save_together,
    strays,
    tensors,
    three,
)
from spec_tests.helpers.memory_bucket import (
    Dead,
    MemoryBucket,
    ended_at_each,
    in_bucket,
    raced_at_each,
)
from spec_tests.helpers.sharding_callbacks import Negating
from spec_tests.helpers.shared_saves import save_all
from spec_tests.helpers.thoroughness import EXHAUSTIVE, stride

__all__ = ["run"]

NAMES = ("a", "b", "c")


class Directory(RuleBasedStateMachine):
    """A small directory under saves, overwrites, removals and copies, beside a dict of dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(mkdtemp())
        self.model: dict[str, dict[str, Any]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.path)

    @rule(
        name=st.sampled_from(NAMES),
        base=st.sampled_from((None, *NAMES)),
        numbers=st.tuples(*[st.integers(-1, len(VALUES) - 1)] * 3),
        files=st.sampled_from((1, 2)),
    )
    def save(self, name: str, base: str | None, numbers: Any, files: int) -> None:
        new = tensors(*numbers)
        given = {"base": self.path / base} if base in self.model else {}
        sv.save(self.path / name, new, policy=sv.BalancedPolicy(files), **given)
        self.model[name] = new

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        sv.remove(self.path / name)
        del self.model[name]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), to=st.sampled_from(NAMES), parts=st.sampled_from((None, 2)))
    def reshard(self, data: st.DataObject, to: str, parts: int | None) -> None:
        """The same reshard twice has the same generation, whose files others may need by then."""
        name = data.draw(st.sampled_from(sorted(self.model)))
        if name != to:
            partition = None if parts is None else {"*": parts}
            sv.reshard(self.path / name, self.path / to, partition=partition, force=True)
            self.model[to] = self.model[name]

    @invariant()
    def every_checkpoint_is_whole(self) -> None:
        assert_whole(self.path, self.model)

    @invariant()
    def no_file_is_left_that_nobody_needs(self) -> None:
        assert strays(self.path) == set()


TestDirectory = Directory.TestCase
TestDirectory.settings = settings(
    max_examples=40 // stride(4), stateful_step_count=12, deadline=None
)


def files_of(path: Path) -> list[str]:
    with sv.open_checkpoint(path) as reader:
        return list(reader.index.files)


def test_a_reference_names_the_file_that_holds_the_bytes(tmp_path: Path) -> None:
    three(tmp_path)
    assert sorted(name[0] for name in files_of(tmp_path / "c")) == ["a", "b", "c"]
    for number in range(4, 20):
        report = sv.save(tmp_path / f"{number}", tensors(0, 2, 3), base=tmp_path / "c")
        assert (report.num_referred, report.nbytes, report.num_files) == (3, 0, 0)
        assert "3 tensors in files of older checkpoints" in report._repr_html_()
        assert sorted(name[0] for name in files_of(tmp_path / f"{number}")) == ["a", "b", "c"]


def test_only_equal_bytes_of_the_same_dtype_and_shape_are_unchanged(tmp_path: Path) -> None:
    """Elements with bits that they do not use are written, and keep these."""
    octets = np.array([0x01, 0xF1], np.uint8)
    base = {
        "nan": np.array([np.nan, 0.0], np.float32),
        "w": np.zeros(4, np.float32),
        "q": octets[:1].view(ml_dtypes.int4),
    }
    sv.save(tmp_path / "a", base)
    other_nan = np.array([0x7FC00001, 0], np.uint32).view(np.float32)
    for new in (
        {"nan": other_nan},
        {"nan": np.array([np.nan, -0.0], np.float32)},
        {"w": np.zeros(4, np.int32)},
        {"w": np.zeros((2, 2), np.float32)},
        {"v": np.zeros(4, np.float32)},
        {"q": octets[1:].view(ml_dtypes.int4)},
    ):
        assert sv.save(tmp_path / "b", new, base=tmp_path / "a").num_referred == 0
        ((key, array),) = new.items()
        assert sv.load(tmp_path / "b")[key].tobytes() == array.tobytes()
    assert sv.save(tmp_path / "b", base, base=tmp_path / "a").num_referred == 2


def test_a_partition_is_of_what_is_written_and_must_fit_all(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", tensors(0, 1, 2))
    cut = {"w0": 3, "w1": 2}
    report = sv.save(tmp_path / "b", tensors(0, 0, 2), base=tmp_path / "a", partition=cut)
    assert (report.num_referred, report.num_slices) == (2, 2)
    with pytest.raises(ArgumentError, match="No tensor matches 'v'"):
        sv.save(tmp_path / "b", tensors(0, 0, 2), base=tmp_path / "a", partition={"v": 2})


def test_what_is_damaged_in_the_base_is_written(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", tensors(0, 1), policy=sv.BalancedPolicy(2))
    first = next(name for name in files_of(tmp_path / "a") if "-00000-of" in name)
    os.truncate(tmp_path / first, 3)
    assert sv.save(tmp_path / "b", tensors(0, 1), base=tmp_path / "a").num_referred == 1
    assert are_equal(sv.load(tmp_path / "b"), tensors(0, 1))


def test_files_that_are_renamed_or_copied_together_keep_their_meaning(tmp_path: Path) -> None:
    """No count and no list of users is kept anywhere but in the indexes."""
    model = three(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for name in os.listdir(tmp_path / "copy"):
        if name.startswith("c."):
            os.rename(tmp_path / "copy" / name, tmp_path / "copy" / f"best{name[1:]}")
    remove_all(tmp_path / "copy")
    assert_whole(tmp_path / "copy", {"best": model["c"]})
    assert_whole(tmp_path / "run", model)


# --- Errors


def save_alone(path: Path, new: dict[str, Any], **options: Any) -> object:
    """Save by the only process of a job."""
    return save_all(path, [new], "1", **options)


@pytest.mark.parametrize("save", [sv.save, save_alone])
def test_a_base_that_cannot_be_referred_to_is_refused_before_a_byte_is_written(
    save: Callable[..., object], tmp_path: Path
) -> None:
    sv.save(tmp_path / "a", tensors(0))
    sv.save(tmp_path / "n.npz", tensors(0))
    (tmp_path / "other").mkdir()
    before = sorted(os.listdir(tmp_path))
    for target, form, base, error, words in (
        ("b", "torch", "a", ArgumentError, "has the format torch, which has no references"),
        ("b", None, "n.npz", ArgumentError, "has the format npz, which has no references"),
        ("other/b", None, "a", ArgumentError, "another directory"),
        ("b", None, "lost", CheckpointNotFound, "There is no checkpoint"),
    ):
        with pytest.raises(error, match=words):
            save(tmp_path / target, tensors(0), base=tmp_path / base, format=form)
        assert sorted(os.listdir(tmp_path)) == before


def test_values_that_are_not_known_before_they_are_written_are_refused(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"w": np.zeros(4)})
    lazy = {"w": sv.lazy((4,), "float64", lambda: np.zeros(4))}
    with pytest.raises(UnsupportedError, match="lazy array"):
        sv.save(tmp_path / "b", lazy, base=tmp_path / "a")

    with pytest.raises(UnsupportedError, match="policy changes values"):
        sv.save(tmp_path / "b", {"w": np.ones(4)}, base=tmp_path / "a", policy=Negating())
    assert not [name for name in os.listdir(tmp_path) if name.startswith("b")]


def test_verify_and_load_name_the_file_that_lacks_and_whose_it_is(tmp_path: Path) -> None:
    three(tmp_path)
    lost = next(name for name in files_of(tmp_path / "c") if name.startswith("a."))
    (tmp_path / lost).unlink()
    with pytest.raises(MissingFile, match=r"a file of 'a', to which this checkpoint refers"):
        sv.load(tmp_path / "c")
    report = sv.verify(tmp_path / "c")
    assert not report.ok and any("a file of 'a'" in each.message for each in report.damages)
    assert are_equal(sv.load(tmp_path / "c", ["w1"]), {"w1": VALUES[2]})


def test_inspect_says_what_a_checkpoint_needs(run: Run, tmp_path: Path) -> None:
    three(tmp_path)
    assert "\nRefers to 1 file of a, 1 file of b\n" in run("inspect", tmp_path / "c").out
    assert "Refers" not in run("inspect", tmp_path / "a").out
    found = json.loads(run("inspect", tmp_path / "c", "--json").out)
    assert found["refers_to"] == {"a": 1, "b": 1}


def test_files_that_stay_are_no_unfinished_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = three(tmp_path)
    sv.remove(tmp_path / "a")
    with pytest.raises(CheckpointNotFound) as caught:
        sv.load(tmp_path / "a")
    assert "but its data files exist" not in str(caught.value)
    sv.save(tmp_path / "a.npz", tensors(0))
    assert not caplog.records
    (tmp_path / "a.npz").unlink()
    sv.save(tmp_path / "a", tensors(5))
    findings = [each for each in sv.verify(tmp_path / "a").notes if "svdata" in each]
    assert len(findings) == 2 and all("is needed by 'b'" in each for each in findings)
    assert are_equal(sv.load(tmp_path / "c"), model["c"])


NEW = tensors(4, 5)
REMOVING: dict[str, Callable[[str], object]] = {
    "remove": lambda path: sv.remove(f"{path}/s-1"),
    "save": lambda path: sv.save(f"{path}/s-1", NEW),
    "save on a base": lambda path: sv.save(f"{path}/s-1", NEW, base=f"{path}/s-1"),
    "reshard": lambda path: sv.reshard(
        f"{path}/new.npz", f"{path}/s-1", format="shardvar", force=True
    ),
    "apply": lambda path: sv.apply(
        f"{path}/s-1", f"{path}/deltas/delta", f"{path}/s-1", force=True
    ),
    "save together": lambda path: sv.save_shards(
        f"{path}/s-1", NEW, process=0, num_processes=1, run="1", commit=True
    ),
    "keep the last": lambda path: sv.SavedSteps(path, name="s", keep_last=1).save(4, NEW),
    "remove all others": lambda path: [sv.remove(f"{path}/s-{number}") for number in (1, 2)],
}
"""Verbs that remove files which the checkpoint s-3 needs, by themselves or as the last user."""


def damages() -> st.SearchStrategy[Callable[[bytes], bytes]]:
    """Changes of a file: of a bit near its ends or anywhere, a cut, and contents of other files."""

    def flip(place: int, bit: int) -> Callable[[bytes], bytes]:
        def flipped(content: bytes) -> bytes:
            at = place % len(content)
            return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]

        return flipped

    places = st.integers(0, 12) | st.integers(-48, -1) | st.integers(0, 1 << 20)
    return st.one_of(
        st.builds(flip, places, st.integers(0, 7)),
        (st.integers(0, 12) | st.integers(-48, -1)).map(lambda end: lambda content: content[:end]),
        st.integers(0, 600).map(lambda count: lambda _: bytes(count)),
        st.binary(max_size=64).map(lambda octets: lambda _: octets),
        st.binary(min_size=1, max_size=9).map(lambda octets: lambda content: octets + content),
    )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps that refer to each other, a mark of a save, and what the verbs take."""
    path = tmp_path_factory.mktemp("stage")
    base: dict[str, Any] = {}
    for number, numbers in ((1, (0, 1, 2)), (2, (0, 1, 3)), (3, (0, 2, 3))):
        sv.save(path / f"s-{number}", tensors(*numbers), **base)
        base = {"base": path / f"s-{number}"}
    sv.save(path / "new.npz", tensors(1, 0, 2))
    (path / "deltas").mkdir()
    sv.delta(path / "s-1", path / "new.npz", path / "deltas" / "delta")
    storage = LocalStorage(str(path))
    write_mark(storage, "d.svneeds-1f", files_of(path / "s-3"))
    return path


@settings(
    max_examples=60 // stride(4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    verb=st.sampled_from(sorted(REMOVING)),
    damage=damages() | st.sampled_from(["folder", "refused", "failing"]),
    is_mark=st.integers(0, 3).map(lambda number: number == 0),
    is_bucket=st.booleans(),
)
def test_what_cannot_be_read_is_needed(
    stage: Path,
    caplog: pytest.LogCaptureFixture,
    verb: str,
    damage: Any,
    is_mark: bool,
    is_bucket: bool,
) -> None:
    """Whatever is wrong with an index or a mark, no verb removes a file that it may name."""
    hurt = "d.svneeds-1f" if is_mark else "s-3.svindex"
    needed = {*files_of(stage / "s-3")}
    files = {each.name: each.read_bytes() for each in stage.iterdir() if each.is_file()}
    whole = files[hurt]
    if not isinstance(damage, str):
        files[hurt] = damage(whole)
    if is_mark:  # only the mark needs the files
        del files["s-3.svindex"]
    files |= {f"deltas/{each.name}": each.read_bytes() for each in (stage / "deltas").iterdir()}
    caplog.clear()
    if is_bucket and not isinstance(damage, str):
        bucket = MemoryBucket({f"run/{name}": octets for name, octets in files.items()})
        with in_bucket(bucket):
            REMOVING[verb]("s3://bucket/run")
            left = {name.removeprefix("run/") for name in bucket.files}
            bucket.files["run/" + hurt] = whole
            if not is_mark:
                assert are_equal(sv.load("s3://bucket/run/s-3"), tensors(0, 2, 3))
    else:
        with TemporaryDirectory() as place:
            for name, octets in files.items():
                os.makedirs(os.path.dirname(os.path.join(place, name)), exist_ok=True)
                Path(place, name).write_bytes(octets)
            # A directory whose steps cannot be looked at is refused before the first byte.
            is_refused = (
                damage in ("refused", "failing") and verb == "keep the last" and not is_mark
            )
            with (
                hurting(Path(place, hurt), damage),
                LocalStorage(place).lock("d"),
                pytest.raises(StorageError) if is_refused else nullcontext(),
            ):
                REMOVING[verb](place)
            needed = set() if is_refused else needed
            left = {*os.listdir(place)}
            Path(place, hurt).write_bytes(whole)
            if not is_mark:
                assert are_equal(sv.load(Path(place, "s-3")), tensors(0, 2, 3))
    assert needed <= left
    if needed and (not is_readable(hurt, files[hurt]) or isinstance(damage, str)):
        assert f"may need them: '{hurt}'" in caplog.text


def is_readable(name: str, content: bytes) -> bool:
    """The metadata of the index, or the names of the mark, are as they were."""
    bucket = MemoryBucket({f"run/{name}": content})
    with in_bucket(bucket):
        storage = split_place("s3://bucket/run/x")[0]
        return not find_needs(storage, "").unread


@contextmanager
def hurting(path: Path, damage: Any) -> Iterator[None]:
    """A file is a folder, may not be read, or cannot be read from its disk."""
    if damage == "folder":
        path.unlink()
        path.mkdir()
        yield
        path.rmdir()
        return
    opened = LocalStorage.open

    def refuse(self: LocalStorage, name: str) -> Any:
        if name == path.name:
            code = errno.EACCES if damage == "refused" else errno.EIO
            with reading(str(path)):
                raise OSError(code, os.strerror(code))
        return opened(self, name)

    with (
        mock.patch.object(LocalStorage, "open", refuse)
        if isinstance(damage, str)
        else nullcontext()
    ):
        yield


# --- Marks


def test_a_save_whose_base_is_removed_meanwhile_fails_and_leaves_nothing(tmp_path: Path) -> None:
    model = three(tmp_path)
    compare = claims.compare_with_base

    def removed(*arguments: Any) -> Any:
        found = compare(*arguments)
        sv.remove(tmp_path / "c")
        return found

    with (
        mock.patch.object(claims, "compare_with_base", removed),
        pytest.raises(CorruptCheckpoint, match=r"c\.svindex was replaced while"),
    ):
        sv.save(tmp_path / "d", tensors(0, 2, 5), base=tmp_path / "c")
    assert_whole(tmp_path, {name: model[name] for name in "ab"})
    assert strays(tmp_path) == set()


def test_a_save_that_fails_removes_what_only_its_mark_has_kept(tmp_path: Path) -> None:
    """A removal of the base left these files to the save."""
    three(tmp_path)

    def fail(*_: Any, **__: Any) -> Any:
        for name in "abc":
            sv.remove(tmp_path / name)
        assert len(files := strays(tmp_path)) >= 3 and any(".svneeds-" in each for each in files)
        raise StorageError("The disk is full.", "Free some.")

    with (
        mock.patch("shardvar.verbs.writing.write_checkpoint", fail),
        pytest.raises(StorageError, match="The disk is full"),
    ):
        sv.save(tmp_path / "d", tensors(0, 2, 5), base=tmp_path / "c")
    assert strays(tmp_path) == set()


def test_a_mark_counts_as_long_as_its_save_runs(tmp_path: Path) -> None:
    three(tmp_path)
    storage = LocalStorage(str(tmp_path))
    (tmp_path / "d.svneeds-1f").write_text(json.dumps(files_of(tmp_path / "c")))
    with storage.lock("d"):
        assert find_needs(storage, "a").users(files_of(tmp_path / "c")[0]) == ["c", "d"]
        for name in "abc":
            sv.remove(tmp_path / name)
        assert len(strays(tmp_path) - {"d.svneeds-1f"}) == 3
    assert find_needs(storage, "").files["d"] == frozenset()


def test_marks_that_lie_harm_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a mark of a removal lists is removed only if it is a data file that nobody needs."""
    model = three(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    for number, content in enumerate(
        (
            '["notes.txt", "../x", "a.svindex", 1]',
            "{",
            "[" * 100_000,
            '["../notes.txt", "notes.txt"]',
        )
    ):
        (tmp_path / f"e{number}.svgone-1").write_text(content)
    lies = json.dumps([*files_of(tmp_path / "c"), "a.svindex", "notes.txt"])
    (tmp_path / "e9.svgone-1").write_text(lies)
    sv.save(tmp_path / "b", model["b"], base=tmp_path / "b")
    assert_whole(tmp_path, model)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_older_reader_refuses_the_version_by_its_number(tmp_path: Path) -> None:
    three(tmp_path)
    with mock.patch("shardvar.wire.block_file.REFERRING_VERSION", 5):
        with pytest.raises(UnsupportedError, match="has version 4"):
            sv.load(tmp_path / "c")
        assert are_equal(sv.load(tmp_path / "a"), tensors(0, 1, 2))


# --- In a bucket no lock keeps a save and a removal apart

RUN = "s3://bucket/run"
IN_BUCKET = ("a", "b", "c", "d", "e")
MODEL = {"a": tensors(0, 1, 2), "b": tensors(0, 1, 3), "c": tensors(0, 2, 3)}


def save_three() -> None:
    """Three checkpoints, of which each refers to the one before."""
    sv.save(f"{RUN}/a", MODEL["a"], policy=sv.BalancedPolicy(3))
    sv.save(f"{RUN}/b", MODEL["b"], base=f"{RUN}/a")
    sv.save(f"{RUN}/c", MODEL["c"], base=f"{RUN}/b")


EVENTS: dict[str, Callable[[], object]] = {
    "save": lambda: sv.save(f"{RUN}/d", tensors(0, 2, 5), base=f"{RUN}/c"),
    "overwrite": lambda: sv.save(f"{RUN}/c", tensors(4, 5)),
    "overwrite the owner": lambda: sv.save(f"{RUN}/a", tensors(4, 5)),
    "save together": lambda: save_together(f"{RUN}/e", f"{RUN}/c"),
    "remove": lambda: sv.remove(f"{RUN}/c"),
    "remove the owner": lambda: sv.remove(f"{RUN}/a"),
}


def assert_bucket_whole(files: dict[str, bytes]) -> None:
    """Every checkpoint can be read and verified."""
    with in_bucket(MemoryBucket(dict(files))):
        indexes = [key for key in files if key.endswith(".svindex") and ".svshare-" not in key]
        names = {key.split("/")[1][:-8] for key in indexes}
        for name in names:
            assert sv.verify(f"{RUN}/{name}").ok, name
        assert "b" not in names or are_equal(sv.load(f"{RUN}/b"), MODEL["b"])


def assert_nothing_stays(files: dict[str, bytes]) -> None:
    """After all is saved again and removed, nothing is left."""
    bucket = MemoryBucket(dict(files))
    with in_bucket(bucket):
        for key in files:
            if key.endswith(".claim"):
                sv.break_claim(f"s3://bucket/{key}")
        for name in IN_BUCKET:
            try:
                sv.remove(f"{RUN}/{name}")
            except CheckpointNotFound:
                sv.save(f"{RUN}/{name}", tensors(0))
                sv.remove(f"{RUN}/{name}")
    assert bucket.files == {}


def test_a_save_of_what_is_unchanged_uploads_an_index_and_a_mark() -> None:
    bucket = MemoryBucket()
    large = {f"w{number}": np.full(1 << 20, number, np.float32) for number in range(4)}
    with in_bucket(bucket):
        sv.save(f"{RUN}/1", large)
        sv.save(f"{RUN}/2", large, base=f"{RUN}/1")
        bucket.log.clear()
        bucket.ranges.clear()
        before = dict(bucket.files)
        sv.save(f"{RUN}/3", large, base=f"{RUN}/2")
        assert [each.split(" ")[0] for each in bucket.log] == ["put", "put_if", "delete"]
        new = {key: octets for key, octets in bucket.files.items() if key not in before}
        assert [key.rpartition("/")[2] for key in new] == ["3.svindex"]
        assert sum(map(len, new.values())) < 10_000
        assert sum(nbytes for _, nbytes in bucket.ranges) < 100_000
        assert are_equal(sv.load(f"{RUN}/3"), large)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_writer_that_dies_at_any_request_loses_nothing(event: str, takes_effect: bool) -> None:
    with in_bucket(start := MemoryBucket()):
        save_three()
    options = {"takes_effect": takes_effect, "error": Dead}
    for bucket in ended_at_each(start.files, EVENTS[event], **options):
        assert_bucket_whole(bucket.files)
        if bucket.is_dead:
            assert_nothing_stays(bucket.files)
    assert len(bucket.log) > 1


@pytest.mark.sample(5)
@pytest.mark.parametrize("inner", EVENTS)
@pytest.mark.parametrize("outer", EVENTS)
def test_two_at_a_time_lose_nothing(outer: str, inner: str) -> None:
    """One runs whole before any changing request of the other, or before any that reads."""
    with in_bucket(start := MemoryBucket()):
        save_three()
    done: list[str] = []

    def attempt(event: str) -> None:
        with suppress(CheckpointError, StorageError):
            EVENTS[event]()
            done.append(event)

    acts = partial(attempt, outer), partial(attempt, inner)
    buckets = raced_at_each(start.files, *acts, step=1 if EXHAUSTIVE else 2, lists=True)
    for bucket in buckets:
        assert done
        done.clear()
        assert_bucket_whole(bucket.files)
    assert bucket.at > 1
