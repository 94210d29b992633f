"""The verbs, over every format: what is saved is loaded, what is resharded is equal, and nothing
else is touched."""

import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    PolicyError,
    ShardvarError,
    StorageError,
    TargetExists,
    UnknownKey,
    UnsupportedError,
)
from shardvar.formats.table import all_formats, format_named
from shardvar.layout import Region
from shardvar.layout.dtypes import dtype_name
from shardvar.pictures.words import count, human_size
from shardvar.planning.policies import (
    AllInOnePolicy,
    BalancedPolicy,
    MaxShardSizePolicy,
    TablePolicy,
)
from shardvar.planning.slices import Assignment, Capabilities, SliceTable
from shardvar.storage.local import LocalStorage
from shardvar.verbs.load import load, open_checkpoint
from shardvar.verbs.reshard import reshard
from shardvar.verbs.save import save
from spec_tests.helpers.damage import flip
from spec_tests.helpers.hypothesis_strategies import (
    NUMBERS,
    Array,
    arrays,
    keys,
    same,
    string_arrays,
)
from spec_tests.helpers.thoroughness import EXHAUSTIVE

FORMATS = [form.name for form in all_formats() if form.capabilities.dtypes]
GRIDS = [form.name for form in all_formats() if form.capabilities.is_grid]
"""Formats of folders of arrays: slices are of one shape, and keys are paths."""
SLICED = [
    form.name
    for form in all_formats()
    if form.capabilities.slice_dtypes and not form.capabilities.is_grid
]
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where the many small checkpoints go: every save waits for the disk, and these need none."""

FEW = settings(max_examples=max(5, settings().max_examples // 10))
SOME = settings(max_examples=max(5, settings().max_examples // 3))
"""Examples of properties that write files, over all formats and over all pairs of formats."""

ENDINGS = {"safetensors": ".safetensors", "npz": ".npz"}


def target(directory: str | Path, form: str, name: str = "model") -> str:
    return os.path.join(directory, name + ENDINGS.get(form, ""))


def home(directory: str | Path, form: str) -> str:
    """The path of a directory that means its only checkpoint: of a format of folders, the
    checkpoint itself."""
    return (
        target(directory, form) if format_named(form).capabilities.folder_index else str(directory)
    )


@contextmanager
def directory() -> Iterator[str]:
    """Hypothesis runs a test many times in one ``tmp_path``; each example gets a directory of its
    own."""
    path = tempfile.mkdtemp(dir=MEMORY)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def held(form: str) -> list[str]:
    return [name for name in NUMBERS if name in format_named(form).capabilities.dtypes]


@st.composite
def tensors_for(draw: st.DrawFn, *forms: str) -> dict[str, Array]:
    """Named arrays that all of these formats can hold."""
    numbers = [name for name in NUMBERS if all(name in held(form) for form in forms)]
    each: st.SearchStrategy[Array] = arrays(numbers, max_rank=3, max_extent=5)
    if all("string" in format_named(form).capabilities.dtypes for form in forms):
        each = st.one_of(each, each, string_arrays())
    names = keys().filter(lambda key: all(may_hold(form, key) for form in forms))
    if any(form in GRIDS for form in forms):
        names = st.from_regex("[a-zé][a-z0-9 _-]{0,8}", fullmatch=True)
    return draw(st.dictionaries(names, each, max_size=4))


def may_hold(form: str, key: str) -> bool:
    """npz refuses keys that would be files elsewhere if it were unpacked, safetensors the one word
    that it reserves."""
    if form == "npz":
        return not (key.startswith(("/", "\\")) or ".." in key or ":" in key)
    return form != "safetensors" or key != "__metadata__"


def check_same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert sorted(found) == sorted(expected)
    for key, array in expected.items():
        assert same(found[key], array), key


policies: st.SearchStrategy[TablePolicy | None] = st.one_of(
    st.none(), st.integers(1, 5).map(BalancedPolicy), st.integers(8, 200).map(MaxShardSizePolicy)
)


def policy_for(form: str, policy: TablePolicy | None) -> TablePolicy | None:
    capabilities = format_named(form).capabilities
    return policy if capabilities.many_files and not capabilities.is_separate else None


def files_of(path: str | Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file below a directory: its bytes, its time of change, its inode."""
    found = {}
    for root, _, names in os.walk(path):
        for name in names:
            file = os.path.join(root, name)
            status = os.lstat(file)
            content = (
                os.readlink(file).encode() if os.path.islink(file) else Path(file).read_bytes()
            )
            found[os.path.relpath(file, path)] = (content, status.st_mtime_ns, status.st_ino)
    return found


def table() -> dict[str, Array]:
    rng = np.random.default_rng(11)
    return {
        "dense/kernel": rng.normal(size=(13, 4)).astype(np.float32),
        "dense/bias": np.arange(4, dtype=np.int64),
        "step": np.int32(7).reshape(()),
        "none": np.zeros((0, 3), np.float32),
    }


# Saving and loading


@pytest.mark.parametrize("form", FORMATS)
@FEW
@given(data=st.data())
def test_what_is_saved_is_loaded(form: str, data: st.DataObject) -> None:
    """Any dtype, shape, strides, byte order, key, number of files and number of slices that the
    format has."""
    tensors = data.draw(tensors_for(form))
    partition = data.draw(st.one_of(st.none(), st.integers(1, 5))) if form in SLICED else None
    with directory() as path:
        report = save(target(path, form), tensors, format=form, partition=partition,
                      policy=policy_for(form, data.draw(policies)))  # fmt: skip
        check_same(load(target(path, form)), tensors)
        mapped = load(target(path, form), mmap=True)
        check_same(mapped, tensors)
        for array in mapped.values():
            # Mapped, not read; NumPy names what is behind the memoryview.
            assert not (isinstance(array.base, mmap.mmap) and array.flags.writeable)
        assert report.num_tensors == len(tensors)
        assert report.nbytes == sum(report.file_nbytes)
        with open_checkpoint(home(path, form)) as reader:
            assert reader.format == report.format == form
            assert sorted(reader.keys()) == sorted(tensors)
            assert dict(reader.faults) == {}
            assert isinstance(reader, Mapping) and reader.keys() == tensors.keys()
            assert reader.get("not/in/it") is None and reader == reader and {reader}
            check_same({key: each.numpy() for key, each in reader.items()}, tensors)
            for key, array in tensors.items():
                tensor = reader[key]
                assert (tensor.shape, tensor.dtype) == (array.shape, dtype_name(array.dtype))
                assert same(tensor.T, array.T)
                if array.dtype.kind in "biufc":
                    assert tensor.nbytes == array.nbytes
                    assert same(tensor.astype(array.dtype), array)
            nbytes = sum(each.nbytes for each in reader.values())
            assert f"{count(len(tensors), 'tensor')}, {human_size(nbytes)})" in repr(reader)


@pytest.mark.smoke
@pytest.mark.parametrize("form", FORMATS)
def test_scalars_lists_and_bytes_are_arrays(form: str, tmp_path: Path) -> None:
    """Bytes keep their NULs."""
    values: dict[str, Any] = {"a": 1.5, "b": [1, 2], "c": np.float32(3), "d": True}
    expected = {key: np.asarray(value) for key, value in values.items()}
    if is_strings := "string" in format_named(form).capabilities.dtypes:
        texts = {"one": b"a\0", "list": [b"\0", b"", b"b\0\0"], "S": np.array([b"ab", b"c"])}
        values |= texts
        expected |= {key: np.array(value, object) for key, value in texts.items()}
    save(target(tmp_path, form), values, format=form)
    check_same(load(target(tmp_path, form)), expected)
    with open_checkpoint(home(tmp_path, form)) as reader:
        if is_strings:
            assert reader.read("one").tolist() == reader["one"][...].tolist() == b"a\0"
            assert reader.read("list", 2).tolist() == b"b\0\0"


@pytest.mark.parametrize("form", FORMATS)
def test_keys_come_in_the_order_asked_for_and_a_wrong_one_is_told_the_right_one(
    form: str, tmp_path: Path
) -> None:
    path = target(tmp_path, form)
    save(path, table(), format=form)
    found = load(path, ["step", "dense/bias", "step"])
    assert list(found) == ["step", "dense/bias"]
    check_same(found, {key: table()[key] for key in found})
    assert list(load(path, "step")) == ["step"] and load(path, []) == {}
    told = r"There is no tensor 'dense/kernl'. Did you mean 'dense/kernel'\?$"
    with open_checkpoint(path) as reader:
        assert "dense/kernel" in reader and "dense/kernl" not in reader
        assert len(reader) == len(list(reader)) == len(reader.keys())
        asks = (reader.read, reader.find, reader.__getitem__, partial(load, path))
        for ask in asks:
            with pytest.raises(UnknownKey, match=told):
                ask("dense/kernl")
    for ask in (partial(load, path, verify="yes"), partial(reader.read, "step", verify="yes")):
        with pytest.raises(ArgumentError, match="'auto' or 'full'"):
            ask()


TWO = np.zeros(2)
UNSTORABLE: list[tuple[Any, Any, type[ShardvarError], str]] = [
    *((key, TWO, ArgumentError, "key") for key in (3, None, b"bytes", "\ud800")),
    *(("d/k", value, UnsupportedError, "'d/k'")
      for value in (["text"], np.array(["2020"], "M8[D]"), np.zeros(2, "i4,f4"), np.zeros(2, "g"))),
    ("m/k", np.ma.masked_array([1, 2], [True, False]), UnsupportedError, "'m/k' is a masked array"),
    ("o", np.array([b"a", "b"], object), ArgumentError, "'o'.*type str"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "error", "words"), UNSTORABLE)
def test_what_cannot_be_stored_is_refused_by_key(
    key: Any, value: Any, error: type[ShardvarError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        save(tmp_path / "m", {key: value})
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize(
    ("form", "key"),
    [("npz", "../x"), ("npz", "/x"), ("npz", "a/../../x"), ("safetensors", "__metadata__"),
     ("zarr", "good/b"), ("orbax", "x" * 300)],
)  # fmt: skip
def test_a_key_that_a_format_has_no_place_for_leaves_no_new_folder(
    form: str, key: str, tmp_path: Path
) -> None:
    """Of the format, or those above it; by a save and by a reshard. The key is named."""
    tensors = {"good": TWO, key: TWO}
    save(tmp_path / "source", tensors)
    path = target(tmp_path / "new" / "folder", form)
    for write in (partial(save, path, tensors), partial(reshard, tmp_path / "source", path)):
        with pytest.raises(UnsupportedError) as caught:
            write(format=form)
        assert not (tmp_path / "new").exists()
    assert form in GRIDS or (repr(key) in caught.value.cause and "Rename" in caught.value.remedy)
    (tmp_path / "new" / "folder").mkdir(parents=True)
    with pytest.raises(UnsupportedError):
        save(path, tensors, format=form)
    assert [*(tmp_path / "new").rglob("*")] == [tmp_path / "new" / "folder"]


@pytest.mark.parametrize("form", FORMATS)
def test_what_a_format_cannot_hold_is_refused_and_nothing_is_written(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what a disk has no room for, which leaves no new folder."""
    samples = {"bfloat16": np.zeros(2, ml_dtypes.bfloat16), "string": np.array([b"a"], object),
               "complex128": np.zeros(2, np.complex128)}  # fmt: skip
    for name in samples.keys() - format_named(form).capabilities.dtypes:
        with pytest.raises(UnsupportedError) as caught:
            save(target(tmp_path, form), {"good": TWO, "w/b": samples[name]}, format=form)
        assert f"'w/b' ({name})" in str(caught.value) and form in str(caught.value)
        assert caught.value.remedy
    if form not in SLICED and form not in GRIDS:
        with pytest.raises(ArgumentError, match=form):
            save(target(tmp_path, form), table(), format=form, partition=2)
    assert files_of(tmp_path) == {}
    monkeypatch.setattr(LocalStorage, "free_nbytes", lambda _: 3)
    with pytest.raises(StorageError, match=r"has 3 B free\. Free .* there\."):
        save(target(tmp_path / "new", form), table(), format=form)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_a_flipped_byte_is_never_returned_unless_it_was_noted(form: str, tmp_path: Path) -> None:
    """R-DAMAGE-1: safetensors and Orbax keep no checksums. Of a part it is noted that its checksum
    was not compared."""
    path = target(tmp_path, form)
    array = np.random.default_rng(2).integers(0, 255, (1000, 30), np.uint8)
    save(path, {"t": array}, format=form)
    with open_checkpoint(path) as reader:
        entries = reader.find("t")
        assert same(reader.read("t", np.s_[3:7]), array[3:7])
        is_guarded = bool((entries.checksum >= 0).any())
        expected = [("t", Region((3, 0), (4, 30)))] if is_guarded and entries.runs is None else []
        assert reader.unverified == expected
        for part in (np.s_[3:7], np.s_[:]):
            assert same(reader.read("t", part, verify="full"), array[part])
        assert same(reader.read("t"), array) and reader.unverified == expected
    if form in ("safetensors", "orbax"):
        return
    (name,) = [
        name for name, (content, _, _) in files_of(tmp_path).items() if array.tobytes() in content
    ]
    file = tmp_path / name
    flip(file, file.read_bytes().index(array.tobytes()) + 1515)  # row 50
    with pytest.raises(CorruptCheckpoint):
        load(path)
    with open_checkpoint(path) as reader:
        with pytest.raises(CorruptCheckpoint, match="'t'"):
            # A part of a tensor that is also wanted whole is compared.
            reader.read_many([("t", [50, 3]), ("t", None)])
        reader.unverified.clear()
        for part in (np.s_[:], np.s_[50:51], np.s_[49:52, 10:20]):
            for read in (partial(reader.read, "t", part), partial(reader.read_many, [("t", part)])):
                with pytest.raises(CorruptCheckpoint, match="'t'"):
                    read(verify="full")
            try:
                reader.read("t", part)
            except CorruptCheckpoint:
                assert reader.unverified == []
            else:
                assert reader.unverified[-1][0] == "t"
    with pytest.raises(CorruptCheckpoint):
        reshard(path, tmp_path / "elsewhere" / "m", format="shardvar")
    assert files_of(tmp_path / "elsewhere") == {}


# Memory maps


# What lies in a database is not mapped.


# Resharding


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=max(5, settings().max_examples // 6))
@given(data=st.data())
def test_there_and_back_is_where_it_began(form: str, data: st.DataObject) -> None:
    """A -> B -> A, between all pairs of formats, in any number of slices and files."""
    other = data.draw(st.sampled_from(FORMATS))
    tensors = data.draw(tensors_for(form, other))
    with directory() as path:
        a, b, c = (os.path.join(path, name) for name in "abc")
        save(target(a, form), tensors, format=form, policy=policy_for(form, data.draw(policies)))
        cut = data.draw(st.one_of(st.none(), st.integers(1, 4))) if other in SLICED else None
        reshard(target(a, form), target(b, other), format=other, partition=cut,
                policy=policy_for(other, data.draw(policies)))  # fmt: skip
        check_same(load(target(b, other)), tensors)
        reshard(target(b, other), target(c, form), format=form)
        check_same(load(target(c, form)), tensors)


@SOME
@given(data=st.data())
def test_by_way_of_anything_is_the_same_as_directly(data: st.DataObject) -> None:
    """A -> B -> C has the payloads of A -> C, byte by byte; and A -> A, to its own layout, those of
    A."""
    drawn = data.draw(tensors_for("shardvar"))
    tensors = dict(sorted(drawn.items(), key=lambda item: item[0].encode()))
    with directory() as path:
        a, b, c, d, e = (os.path.join(path, name, "m") for name in "abcde")
        save(a, tensors, partition=data.draw(st.integers(1, 4)))
        options = [
            {"partition": data.draw(st.integers(1, 4)), "policy": data.draw(policies)}
            for _ in range(2)
        ]
        for source, to, more in (
            (a, b, options[0]),
            (b, c, options[1]),
            (a, d, options[1]),
            (a, e, {}),
        ):
            reshard(source, to, **more)
        found = {}
        for each in (a, c, d, e):
            files = sorted(files_of(os.path.dirname(each)).items())
            found[each] = [content for name, (content, _, _) in files if "svdata" in name]
        assert found[c] == found[d] and found[e] == found[a]


A, B, STEP, NONE = "dense/kernel", "dense/bias", "step", "none"
CHOICES: list[tuple[dict[str, Any], dict[str, str]]] = [
    *(({"filter": each}, {A: A, B: B}) for each in ("dense/*", ["dense/*"], [A, "*/bias"], "d*e/*")),
    ({"rename": {"dense/*": "layers/*/0", STEP: "zz", NONE: "a"}},
     {A: "layers/kernel/0", B: "layers/bias/0", STEP: "zz", NONE: "a"}),
    ({"rename": {STEP: NONE, NONE: STEP}}, {A: A, B: B, STEP: NONE, NONE: STEP}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "names"), CHOICES)
def test_tensors_are_chosen_and_renamed_and_metadata_carried(
    options: dict[str, Any], names: dict[str, str], tmp_path: Path
) -> None:
    """Exactly or by globs, into every format."""
    save(tmp_path / "a", table(), metadata={"epoch": "3", "é": "\0"})
    for form in FORMATS:
        path = target(tmp_path / "b", form, form)
        report = reshard(tmp_path / "a", path, format=form, **options)
        assert report.num_tensors == len(names)
        check_same(load(path), {new: table()[old] for old, new in names.items()})
    with open_checkpoint(target(tmp_path / "b", "shardvar", "shardvar")) as reader:
        assert dict(reader.metadata.user) == {"epoch": "3", "é": "\0"}
        assert reader.metadata.writer.startswith("shardvar ")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"filter": "x*"}, ArgumentError, "No tensor matches x\\*"),
        ({"filter": []}, ArgumentError, "No tensor matches"),
        ({"rename": {"step": "none"}}, ArgumentError, "2 tensors would be named 'none'"),
        ({"rename": {"step": "\ud800"}}, ArgumentError, "no file can hold"),
        ({"cast": {"x*": "float64"}}, ArgumentError, "No tensor matches 'x\\*', so none is cast to float64"),
        ({"cast": {"step": "float33"}}, UnsupportedError, "'float33' is not known"),
        ({"cast": {"dense/kernel": "int8"}}, UnsupportedError, "'dense/kernel' has no place in int8"),
        ({"partition": 0}, ArgumentError, "'dense/bias'|'dense/kernel'|'none'"),
        ({"partition": {"x": 3}}, ArgumentError, "No tensor matches 'x'"),
        ({"format": "pickle"}, ArgumentError, "Unknown format 'pickle'. The formats are shardvar, tensorflow"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_said_and_leaves_nothing(
    arguments: Any, error: type[ShardvarError], message: str, tmp_path: Path
) -> None:
    save(tmp_path / "a", table())
    before = files_of(tmp_path)
    with pytest.raises(error, match=message):
        reshard(tmp_path / "a", tmp_path / "b", **arguments)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("number", range(len(FORMATS)), ids=FORMATS)
def test_a_source_is_never_touched(number: int, tmp_path: Path) -> None:
    """Neither its bytes nor its times, by reading, mapping, resharding or failing."""
    form, source = FORMATS[number], tmp_path / "source"
    path = target(source, form)
    save(path, table(), format=form)
    before = files_of(source)
    load(path)
    load(path, mmap=True)
    with open_checkpoint(home(source, form)) as reader:
        reader.read("dense/kernel", np.s_[2])
    for other in FORMATS if EXHAUSTIVE else (FORMATS[number - 1], FORMATS[number - 3]):
        reshard(path, target(tmp_path / other, other), format=other)
    with pytest.raises(UnsupportedError):
        reshard(path, tmp_path / "bad", format="shardvar", cast={"dense/kernel": "int8"})
    assert files_of(source) == before


@pytest.mark.parametrize("form", FORMATS)
def test_source_and_target_are_never_the_same(form: str, tmp_path: Path) -> None:
    """Under no spelling, through no link, and with no force."""
    source = tmp_path / "source"
    save(target(source, form), table(), format=form)
    (tmp_path / "link").symlink_to(source)
    before = files_of(source)
    name = os.path.basename(target(source, form))
    spellings = [source / name, os.path.join(source, ".", name), os.path.join(source, "..", "source", name),
                 tmp_path / "link" / name]  # fmt: skip
    spellings += [source / file for file in before if not file.startswith(f"{name}.svdata")]
    for force in (False, True):
        for spelling in spellings:
            with pytest.raises((ArgumentError, TargetExists)):
                reshard(target(source, form), spelling, format=form, force=force)
        with pytest.raises(ArgumentError, match="both the source and the target"):
            reshard(tmp_path / "link" / name, target(source, form), format=form, force=force)
    if form == "npz":  # nor is a file for its own content in another format
        os.rename(source / name, source / "m")
        before = files_of(source)
        for other in ("npz", "safetensors"):
            with pytest.raises((ArgumentError, TargetExists)):
                reshard(source / "m", source / "m", format=other, force=True)
    assert files_of(source) == before


@pytest.mark.smoke
@pytest.mark.parametrize("form", FORMATS)
def test_what_exists_is_not_replaced_unless_forced(form: str, tmp_path: Path) -> None:
    save(tmp_path / "source", table())
    save(target(tmp_path / "there", form), {"old": np.ones(3)}, format=form)
    before = files_of(tmp_path)
    for dry_run in (False, True):
        with pytest.raises(TargetExists) as caught:
            reshard(
                tmp_path / "source", target(tmp_path / "there", form), format=form, dry_run=dry_run
            )
        assert (
            target(tmp_path / "there", form) in str(caught.value) and "force" in caught.value.remedy
        )
    assert files_of(tmp_path) == before
    for name in ("there", "clean"):  # nothing of the old is left
        reshard(tmp_path / "source", target(tmp_path / name, form), format=form, force=True)
        check_same(load(target(tmp_path / name, form)), table())
    assert len(files_of(tmp_path / "there")) == len(files_of(tmp_path / "clean"))
    if form == "safetensors":
        # A set in the place of a file is two steps, and only there the remedy warns of a crash.
        assert "crash" not in caught.value.remedy
        with pytest.raises(TargetExists) as mixed:
            reshard(tmp_path / "source", target(tmp_path / "there", form), format=form,
                    policy=MaxShardSizePolicy(64))  # fmt: skip
        assert "a crash in between leaves both of them, whole" in mixed.value.remedy


@pytest.mark.parametrize("form", FORMATS)
def test_a_dry_run_touches_nothing_and_tells_what_would_be(form: str, tmp_path: Path) -> None:
    save(tmp_path / "a", table(), partition=2)
    before, path = files_of(tmp_path), target(tmp_path / "new" / "deep", form)
    told = reshard(tmp_path / "a", path, format=form, dry_run=True)
    assert files_of(tmp_path) == before and not (tmp_path / "new").exists()
    done = reshard(tmp_path / "a", path, format=form)
    assert told.dry_run and not done.dry_run
    names = "path format num_tensors num_slices nbytes file_nbytes num_copies read_nbytes".split()
    assert all(getattr(told, name) == getattr(done, name) for name in names)
    assert done.nbytes == sum(array.nbytes for array in table().values())
    assert told.to_json()["schema"] == 1 and told.to_json()["num_files"] == told.num_files


@pytest.mark.parametrize("format", ["shardvar", "tensorflow", "npz", "torch"])
def test_an_empty_folder_means_a_checkpoint_in_it(tmp_path: Path, format: str) -> None:
    """It is replaced, renamed and removed with its folder; a folder with other files is refused."""
    folder, moved = tmp_path / "step-1", tmp_path / "step-2"
    folder.mkdir()
    (folder / ".hidden").touch()
    for _ in range(2):
        save(folder, table(), format=format, force=True)
        (folder / "config.json").write_text("{}")
    folder.rename(moved)
    assert load(moved)["dense/kernel"].tolist() == table()["dense/kernel"].tolist()
    assert sv.verify(moved).ok
    (moved / "config.json").unlink()
    (moved / ".hidden").unlink()
    sv.remove(moved)
    assert not moved.exists()
    with pytest.raises(CheckpointNotFound):
        load(moved)
    (tmp_path / "other.txt").touch()
    for place in (tmp_path, f"{tmp_path}/"):
        with pytest.raises((ArgumentError, TargetExists), match="not empty|exists"):
            save(place, table(), format="npz")


# Damage


def test_a_key_whose_file_is_gone_does_not_keep_the_others(tmp_path: Path) -> None:
    """R-DAMAGE-1."""
    tensors = {name: np.full((8,), number, np.float32) for number, name in enumerate("abc")}
    forms = [form for form in FORMATS if format_named(form).capabilities.many_files]
    # The chunks of a database have no files of their own.
    for form in [form.replace("orbax", "orbax-plain") for form in forms]:
        source = tmp_path / form
        save(target(source, form), tensors, format=form, policy=policy_for(form, BalancedPolicy(3)))
        data = re.compile(r"0000[12]-of-00003|__1_0-|/b/(c/)?0$")
        lost = next(filter(data.search, sorted(files_of(source))))
        os.remove(source / lost)
        path = home(source, form)
        with open_checkpoint(path) as reader:
            assert sorted(reader.keys()) == ["a", "b", "c"]
            whole = []
            for key in "abc":
                try:
                    assert same(reader.read(key), tensors[key])
                    whole.append(key)
                except IncompleteCheckpoint as error:
                    is_chunk = format_named(form).capabilities.is_separate
                    assert (lost.partition("/b/")[2] if is_chunk else lost) in str(error)
        assert len(whole) == 2
        check_same(load(path, whole), {key: tensors[key] for key in whole})
        with pytest.raises(IncompleteCheckpoint):
            load(path)
        with pytest.raises(IncompleteCheckpoint):
            reshard(path, tmp_path / "all" / form / "m", format="shardvar")
        assert files_of(tmp_path / "all" / form) == {}
        reshard(path, tmp_path / "some" / form / "m", format="shardvar", filter=whole)
        check_same(load(tmp_path / "some" / form / "m"), {key: tensors[key] for key in whole})


# Policies


class Answering:
    """A policy that answers with something else than it was given."""

    description = "answers oddly"

    def __init__(self, change: Any) -> None:
        self.change = change

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        answer = AllInOnePolicy().assign(slices, capabilities)
        slices, file = self.change(answer.slices, answer.file)
        return Assignment(slices, file, 1, self.description)


def rows(change: Any) -> Any:
    """A change of the rows of the table, all of which are in the first file."""

    def answer(slices: SliceTable, file: Any) -> Any:
        chosen = change([*range(len(slices))])
        return slices.take(np.array(chosen)), np.zeros(len(chosen), np.int64)

    return answer


def cut_string(slices: SliceTable, file: Any) -> Any:
    row = [slices.dtype(row) for row in range(len(slices))].index("string")
    table = slices.take(np.sort(np.append(np.arange(len(slices)), row)))
    shape, offset = table.shape.copy(), table.offset.copy()
    shape[row, 0], shape[row + 1, 0], offset[row + 1, 0] = 1, 1, 1
    return SliceTable(table.tensors, table.tensor, offset, shape, table.nbytes), np.append(file, 0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (rows(lambda rows: rows[1:]), "'a' lacks|lost"),
        (rows(lambda rows: [*rows, 0]), "overlap"),
        (rows(lambda rows: [0, 0, *rows[2:]]), "overlap"),  # of the same size
        (lambda slices, file: (slices, file + 1), "files"),
        (lambda slices, file: (slices, file - 1), "files"),
        (lambda slices, file: (slices, file[1:]), "files"),
        (cut_string, "'s'"),
    ],
)
def test_a_policy_that_breaks_a_restriction_is_named_and_nothing_is_written(
    change: Any, complaint: str, tmp_path: Path
) -> None:
    """R-POLICY-1, R-POLICY-9 (RFC 001): "perform validation checks"."""
    tensors = {"a": np.arange(8), "s": np.array([b"x", b"y"], object)}
    with pytest.raises(PolicyError, match=complaint) as caught:
        save(tmp_path / "m", tensors, partition={"a": 2}, policy=Answering(change))
    assert "answers oddly" in str(caught.value)
    assert files_of(tmp_path) == {}


def test_a_reader_gives_its_files_back_at_the_end_of_its_block(tmp_path: Path) -> None:
    """Also after an error; what is asked of it later is an error of the caller."""
    save(tmp_path / "a", table())
    for error in (None, ZeroDivisionError):
        with suppress(ZeroDivisionError), open_checkpoint(tmp_path / "a") as reader:
            assert reader.read("step") is not None
            if error is not None:
                raise error
        with pytest.raises(ArgumentError):
            reader.read("step")
