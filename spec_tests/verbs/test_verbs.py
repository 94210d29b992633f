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
from shardvar.layout.indexing import cut_steps, plan_region
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
    cuts,
    filled_shapes,
    keys,
    same,
    string_arrays,
)

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


@pytest.mark.parametrize(
    ("form", "key"),
    [("npz", "../x"), ("npz", "/x"), ("npz", "a/../../x"), ("safetensors", "__metadata__")],
)
def test_a_key_that_a_format_has_no_place_for_is_refused_by_name(
    form: str, key: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match="Rename") as caught:
        save(target(tmp_path, form), {"good": np.zeros(2), key: np.zeros(2)}, format=form)
    assert repr(key) in caught.value.cause
    assert files_of(tmp_path) == {}


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
@SOME
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
def test_scalars_lists_and_numbers_are_arrays(form: str, tmp_path: Path) -> None:
    save(
        target(tmp_path, form), {"a": 1.5, "b": [1, 2], "c": np.float32(3), "d": True}, format=form
    )
    expected = {
        "a": np.asarray(1.5),
        "b": np.asarray([1, 2]),
        "c": np.asarray(np.float32(3)),
        "d": np.asarray(True),
    }
    check_same(load(target(tmp_path, form)), expected)


@pytest.mark.parametrize(
    "form", [form for form in FORMATS if "string" in format_named(form).capabilities.dtypes]
)
def test_bytes_keep_their_nuls(form: str, tmp_path: Path) -> None:
    save(target(tmp_path, form), {"one": b"a\0", "list": [b"\0", b"", b"b\0\0"], "S": np.array([b"ab", b"c"])},
         format=form)  # fmt: skip
    found = load(target(tmp_path, form))
    assert found["one"].shape == () and found["one"][()] == b"a\0"
    assert found["list"].tolist() == [b"\0", b"", b"b\0\0"]
    assert found["S"].tolist() == [b"ab", b"c"]
    with open_checkpoint(tmp_path) as reader:
        assert reader.read("one").tolist() == reader["one"][...].tolist() == b"a\0"
        assert reader.read("list", np.s_[1:]).tolist() == [b"", b"b\0\0"]
        assert reader.read("list", 2).tolist() == b"b\0\0"


@pytest.mark.parametrize("form", FORMATS)
def test_some_keys_are_loaded_in_the_order_asked_for(form: str, tmp_path: Path) -> None:
    save(target(tmp_path, form), table(), format=form)
    wanted = ["step", "dense/bias", "step"]
    found = load(target(tmp_path, form), wanted)
    assert list(found) == ["step", "dense/bias"]
    check_same(found, {key: table()[key] for key in found})
    assert list(load(target(tmp_path, form), "step")) == ["step"]
    assert load(target(tmp_path, form), []) == {}


@pytest.mark.parametrize("form", FORMATS)
def test_a_wrong_key_is_told_the_right_one(form: str, tmp_path: Path) -> None:
    save(target(tmp_path, form), table(), format=form)
    with pytest.raises(
        UnknownKey, match=r"There is no tensor 'dense/kernl'. Did you mean 'dense/kernel'\?$"
    ):
        load(target(tmp_path, form), ["dense/kernl"])
    with open_checkpoint(target(tmp_path, form)) as reader:
        assert "dense/kernel" in reader and "dense/kernl" not in reader
        assert len(reader) == len(list(reader)) == len(reader.keys())
        for ask in (reader.read, reader.find, reader.__getitem__):
            with pytest.raises(UnknownKey):
                ask("")


def test_values_that_cannot_be_stored_are_refused_by_key(tmp_path: Path) -> None:
    for value in (
        ["text"],
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, "i4,f4"),
        np.zeros(2, np.longdouble),
    ):
        with pytest.raises(UnsupportedError, match="'dense/kernel'"):
            save(tmp_path / "m", {"dense/kernel": value})
    with pytest.raises(UnsupportedError, match="'m/k' is a masked array"):
        save(tmp_path / "m", {"m/k": np.ma.masked_array([1, 2], [True, False])})
    with pytest.raises(ArgumentError, match="'o'.*type str"):
        save(tmp_path / "m", {"o": np.array([b"a", "b"], object)})
    for key in (3, None, b"bytes", "\ud800"):
        with pytest.raises(ArgumentError, match="key"):
            save(tmp_path / "m", {key: np.zeros(2)})  # type: ignore[dict-item]
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize("form", FORMATS)
def test_what_a_format_cannot_hold_is_refused_and_nothing_is_written(
    form: str, tmp_path: Path
) -> None:
    dtypes = format_named(form).capabilities.dtypes
    samples = {"bfloat16": np.zeros(2, ml_dtypes.bfloat16), "string": np.array([b"a"], object),
               "complex128": np.zeros(2, np.complex128)}  # fmt: skip
    for name, array in samples.items():
        if name not in dtypes:
            with pytest.raises(UnsupportedError) as caught:
                save(target(tmp_path, form), {"good": np.zeros(2), "w/b": array}, format=form)
            assert (
                f"'w/b' ({name})" in str(caught.value)
                and form in str(caught.value)
                and caught.value.remedy
            )
    if form not in SLICED and form not in GRIDS:
        with pytest.raises(ArgumentError, match=form):
            save(target(tmp_path, form), table(), format=form, partition=2)
    assert files_of(tmp_path) == {}


REFUSED: dict[str, dict[str, Any]] = {
    "npz": {"../x": np.zeros(2)},
    "safetensors": {"__metadata__": np.zeros(2)},
    "zarr": {"a": np.zeros(2), "a/b": np.zeros(2)},
    "orbax": {"x" * 300: np.zeros(2)},
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_refused_leaves_no_new_folder(form: str, tmp_path: Path) -> None:
    """Of the format, or those above it; by a save and by a reshard."""
    save(tmp_path / "source", REFUSED[form])
    path = target(tmp_path / "new" / "folder", form)
    for write in (partial(save, path, REFUSED[form]), partial(reshard, tmp_path / "source", path)):
        with pytest.raises(UnsupportedError):
            write(format=form)
        assert not (tmp_path / "new").exists()
    (tmp_path / "new" / "folder").mkdir(parents=True)
    with pytest.raises(UnsupportedError):
        save(path, REFUSED[form], format=form)
    assert [*(tmp_path / "new").rglob("*")] == [tmp_path / "new" / "folder"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_leaves_no_new_folder(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "free_nbytes", lambda _: 3)
    with pytest.raises(StorageError, match=r"has 3 B free\. Free .* there\."):
        save(target(tmp_path / "new", form), table(), format=form)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_saving_again_replaces_atomically_and_leaves_nothing_of_the_old(
    form: str, tmp_path: Path
) -> None:
    save(target(tmp_path, form), table(), format=form)
    once = set(files_of(tmp_path))
    save(target(tmp_path, form), {"other": np.ones(5)}, format=form, force=form in GRIDS)
    check_same(load(target(tmp_path, form)), {"other": np.ones(5)})
    # Of Zarr an array is a description and a chunk; Orbax has a database and says more of it.
    assert len(files_of(tmp_path)) == {"zarr": 3, "orbax": 5}.get(form, len(once))


def test_the_same_input_is_the_same_bytes(tmp_path: Path) -> None:
    for form in FORMATS:
        for name in "ab":
            (tmp_path / form / name).mkdir(parents=True)
            save(target(tmp_path / form / name, form), table(), format=form)
        a, b = (
            sorted(content for content, _, _ in files_of(tmp_path / form / name).values())
            for name in "ab"
        )
        if form not in ("shardvar", "orbax"):
            assert a == b
        else:
            # The index holds the name of the generation, and nothing else differs; of Orbax the time
            # and the path.
            assert [len(content) for content in a] == [len(content) for content in b]


# Reading parts


def basic_indexes(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Any basic index of NumPy's that fits: integers, slices with any step, an ellipsis, new
    axes."""

    def along(extent: int) -> st.SearchStrategy[Any]:
        bound = st.one_of(st.none(), st.integers(-extent - 2, extent + 2))
        step = st.one_of(st.none(), st.integers(-3, 3).filter(bool))
        slices = st.builds(slice, bound, bound, step)
        return (
            st.one_of(slices, slices, st.integers(-extent, extent - 1), st.just(np.int64(0)))
            if extent
            else slices
        )

    @st.composite
    def index(draw: st.DrawFn) -> Any:
        items = [draw(along(extent)) for extent in shape]
        items = items[: draw(st.integers(0, len(items)))]
        if draw(st.booleans()):
            items.insert(draw(st.integers(0, len(items))), None)
        if len([item for item in items if item is not None]) == len(shape) and draw(st.booleans()):
            items.insert(draw(st.integers(0, len(items))), Ellipsis)
        if len(items) == 1 and draw(st.booleans()):
            return items[0]
        return tuple(items)

    return index()


@given(filled_shapes(max_rank=3, max_extent=9), st.integers(1, 40), st.data())
def test_cutting_along_a_step_changes_nothing(
    shape: tuple[int, ...], most: int, data: st.DataObject
) -> None:
    """What steps leave out is read a bounded number of elements at a time, or not at all."""
    array, index = np.arange(np.prod(shape)).reshape(shape), data.draw(basic_indexes(shape))
    region, pick = plan_region((None,) if index is None else index, shape)
    parts, axis = cut_steps(region, pick, most)
    picked = [np.asarray(array[part.slices][(*pick, ...)]) for part, pick in parts]
    assert same(
        picked[0] if len(parts) == 1 else np.concatenate(picked, axis), np.asarray(array[index])
    )
    assert len(parts) == 1 or all(part.size <= most or 1 in part.shape for part, _ in parts)


@pytest.mark.parametrize("form", FORMATS)
@SOME
@given(data=st.data())
def test_a_part_is_what_numpy_indexes(form: str, data: st.DataObject) -> None:
    array = data.draw(arrays(held(form), max_extent=6))
    with directory() as path:
        partition = data.draw(cuts(array.shape)) if form in SLICED else None
        save(target(path, form), {"t": array}, format=form, partition=partition)
        with pytest.MonkeyPatch.context() as patch, open_checkpoint(home(path, form)) as reader:
            # The bytes above which what lies between long steps is left out.
            patch.setattr(
                "shardvar.engine.read.BLOCK_NBYTES", data.draw(st.sampled_from([8, 64, 1 << 22]))
            )
            for _ in range(3):
                index = data.draw(basic_indexes(array.shape))
                expected = np.asarray(array[index])
                for verify in ("auto", "full"):
                    found = reader.read("t", (None,) if index is None else index, verify=verify)
                    assert same(found, expected)
                assert same(reader["t"][index], expected)
            assert same(np.asarray(reader["t"]), array)


@pytest.mark.parametrize(
    ("index", "error"),
    [(13, IndexError), (-14, IndexError), ((0, 0, 0), IndexError), ((..., ...), IndexError), ([1, 13], IndexError),
     (np.array([-14]), IndexError), (np.array([True] * 12), IndexError), (([1, 2], [1, 2, 3]), IndexError),
     (np.array([1.0]), ArgumentError), ("a", ArgumentError), (1.5, ArgumentError), (slice("a", "b"), ArgumentError),
     (slice(0, 3, 0), ArgumentError), (slice(0.5, 3), ArgumentError), (Region((10, 0), (4, 4)), ArgumentError),
     (Region((0,), (4,)), ArgumentError)],
)  # fmt: skip
def test_what_is_no_index_is_refused(index: Any, error: type[Exception], tmp_path: Path) -> None:
    save(tmp_path / "m", table())
    with open_checkpoint(tmp_path / "m") as reader, pytest.raises(error):
        reader.read("dense/kernel", index)


def test_regions_are_parts_and_other_ways_to_verify_are_mistakes(tmp_path: Path) -> None:
    save(tmp_path / "m", table(), partition=3)
    with open_checkpoint(tmp_path / "m") as reader:
        found = reader.read("dense/kernel", Region((4, 1), (5, 2)))
        assert same(found, table()["dense/kernel"][4:9, 1:3])
        assert reader["dense/kernel"][None].shape == (1, 13, 4)
        with pytest.raises(ArgumentError, match="'auto' or 'full'"):
            reader.read("step", verify="yes")
    with pytest.raises(ArgumentError, match="'auto' or 'full'"):
        load(tmp_path / "m", verify="yes")


@pytest.mark.parametrize("form", FORMATS)
def test_a_part_whose_checksum_was_not_compared_is_noted(form: str, tmp_path: Path) -> None:
    array = np.arange(40_000, dtype=np.float64).reshape(1000, 40)
    save(target(tmp_path, form), {"t": array}, format=form)
    with open_checkpoint(target(tmp_path, form)) as reader:
        entries = reader.find("t")
        np.testing.assert_array_equal(reader.read("t", np.s_[3:7]), array[3:7])
        guarded = bool((entries.checksum >= 0).any())
        expected = [("t", Region((3, 0), (4, 40)))] if guarded and entries.runs is None else []
        assert reader.unverified == expected
        np.testing.assert_array_equal(reader.read("t", np.s_[3:7], verify="full"), array[3:7])
        np.testing.assert_array_equal(reader.read("t"), array)
        assert reader.unverified == expected


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in ("safetensors", "orbax")])
def test_a_flipped_byte_is_never_returned_unless_it_was_noted(form: str, tmp_path: Path) -> None:
    """R-DAMAGE-1: safetensors and Orbax keep no checksums."""
    array = np.random.default_rng(2).integers(0, 255, (100, 30), np.uint8)
    save(target(tmp_path, form), {"t": array}, format=form)
    (name,) = [
        name for name, (content, _, _) in files_of(tmp_path).items() if array.tobytes() in content
    ]
    file = tmp_path / name
    flip(file, file.read_bytes().index(array.tobytes()) + 1515)  # row 50
    with pytest.raises(CorruptCheckpoint):
        load(target(tmp_path, form))
    with open_checkpoint(target(tmp_path, form)) as reader:
        for part in (np.s_[:], np.s_[50:51], np.s_[49:52, 10:20]):
            with pytest.raises(CorruptCheckpoint):
                reader.read("t", part, verify="full")
            try:
                reader.read("t", part)
            except CorruptCheckpoint:
                assert reader.unverified == []
            else:
                assert reader.unverified[-1][0] == "t"
    with pytest.raises(CorruptCheckpoint):
        reshard(target(tmp_path, form), tmp_path / "elsewhere" / "m", format="shardvar")
    assert files_of(tmp_path / "elsewhere") == {}


# Memory maps


# What lies in a database is not mapped.
@pytest.mark.parametrize("form", [form.replace("orbax", "orbax-plain") for form in FORMATS])
def test_a_large_array_is_mapped_and_outlives_its_reader(form: str, tmp_path: Path) -> None:
    array = np.arange(5000, dtype=np.int32).reshape(50, 100)
    save(target(tmp_path, form), {"t": array, "b": np.ones(9, np.bool)}, format=form)
    mapped = load(target(tmp_path, form), mmap=True)
    np.testing.assert_array_equal(mapped["t"], array)
    with pytest.raises(ValueError, match="read-only"):
        mapped["t"][0, 0] = 1
    assert mapped["t"].flags.c_contiguous


# Resharding


@pytest.mark.sample(3)
@pytest.mark.parametrize("other", FORMATS)
@pytest.mark.parametrize("form", FORMATS)
@FEW
@given(data=st.data())
def test_there_and_back_is_where_it_began(form: str, other: str, data: st.DataObject) -> None:
    """A -> B -> A, between all pairs of formats, in any number of slices and files."""
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
    tensors = dict(
        sorted(data.draw(tensors_for("shardvar")).items(), key=lambda item: item[0].encode())
    )
    with directory() as path:
        a, b, c, d, e = (os.path.join(path, name, "m") for name in "abcde")
        save(a, tensors, partition=data.draw(st.integers(1, 4)))
        reshard(a, b, partition=data.draw(st.integers(1, 4)), policy=data.draw(policies))
        last: dict[str, Any] = {
            "partition": data.draw(st.integers(1, 4)),
            "policy": data.draw(policies),
        }
        reshard(b, c, **last)
        reshard(a, d, **last)
        reshard(a, e)
        found = {
            each: [
                content
                for name, (content, _, _) in sorted(files_of(os.path.dirname(each)).items())
                if "svdata" in name
            ]
            for each in (a, c, d, e)
        }
        assert found[c] == found[d] and found[e] == found[a]


def test_metadata_is_carried_and_the_policy_described(tmp_path: Path) -> None:
    save(tmp_path / "a", table(), metadata={"epoch": "3", "é": "\0"})
    reshard(tmp_path / "a", tmp_path / "b", policy=BalancedPolicy(2))
    with open_checkpoint(tmp_path / "b") as reader:
        assert dict(reader.metadata.user) == {"epoch": "3", "é": "\0"}
        assert reader.metadata.description == "Balances payload bytes over 2 files."
        assert reader.metadata.writer.startswith("shardvar ")


@pytest.mark.parametrize("filter", ["dense/*", ["dense/*"], ["dense/kernel", "*/bias"], "d*e/*"])
def test_a_filter_takes_what_matches(filter: Any, tmp_path: Path) -> None:
    save(tmp_path / "a", table())
    report = reshard(tmp_path / "a", tmp_path / "b", filter=filter)
    assert report.num_tensors == 2
    check_same(
        load(tmp_path / "b"),
        {key: value for key, value in table().items() if key.startswith("dense/")},
    )


def test_names_are_changed_exactly_or_by_globs(tmp_path: Path) -> None:
    save(tmp_path / "a", table())
    reshard(
        tmp_path / "a", tmp_path / "b", rename={"dense/*": "layers/*/0", "step": "zz", "none": "a"}
    )
    check_same(
        load(tmp_path / "b"),
        {"layers/kernel/0": table()["dense/kernel"], "layers/bias/0": table()["dense/bias"], "zz": table()["step"],
         "a": table()["none"]},
    )  # fmt: skip
    for form in FORMATS:
        reshard(
            tmp_path / "a",
            target(tmp_path / "c", form, form),
            format=form,
            rename={"step": "a", "none": "zz"},
        )
        assert sorted(load(target(tmp_path / "c", form, form))) == [
            "a",
            "dense/bias",
            "dense/kernel",
            "zz",
        ]
    reshard(tmp_path / "a", tmp_path / "d", rename={"step": "none", "none": "step"})
    check_same(
        load(tmp_path / "d", ["none", "step"]), {"none": table()["step"], "step": table()["none"]}
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"filter": "x*"}, ArgumentError, "No tensor matches x\\*"),
        ({"filter": []}, ArgumentError, "No tensor matches"),
        ({"rename": {"step": "none"}}, ArgumentError, "2 tensors would be named 'none'"),
        ({"rename": {"step": "\ud800"}}, ArgumentError, "no file can hold"),
        (
            {"cast": {"x*": "float64"}},
            ArgumentError,
            "No tensor matches 'x\\*', so none is cast to float64",
        ),
        ({"cast": {"step": "float33"}}, UnsupportedError, "'float33' is not known"),
        (
            {"cast": {"dense/kernel": "int8"}},
            UnsupportedError,
            "'dense/kernel' has no place in int8",
        ),
        ({"partition": 0}, ArgumentError, "'dense/bias'|'dense/kernel'|'none'"),
        ({"partition": {"x": 3}}, ArgumentError, "No tensor matches 'x'"),
        (
            {"format": "pickle"},
            ArgumentError,
            "Unknown format 'pickle'. The formats are shardvar, tensorflow",
        ),
    ],
)
def test_what_cannot_be_meant_is_said_and_leaves_nothing(
    arguments: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    save(tmp_path / "a", table())
    before = files_of(tmp_path)
    with pytest.raises(error, match=message) as caught:
        reshard(tmp_path / "a", tmp_path / "b", **arguments)
    assert isinstance(caught.value, ShardvarError)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("form", FORMATS)
def test_a_source_is_never_touched(form: str, tmp_path: Path) -> None:
    """Neither its bytes nor its times, by reading, mapping, resharding or failing."""
    source = tmp_path / "source"
    save(target(source, form), table(), format=form)
    before = files_of(source)
    load(target(source, form))
    load(target(source, form), mmap=True)
    with open_checkpoint(home(source, form)) as reader:
        reader.read("dense/kernel", np.s_[2])
    for other in FORMATS:
        reshard(target(source, form), target(tmp_path / other, other), format=other)
    with pytest.raises(UnsupportedError):
        reshard(
            target(source, form), tmp_path / "bad", format="shardvar", cast={"dense/kernel": "int8"}
        )
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
        for linked in (tmp_path / "link" / name,):
            with pytest.raises(ArgumentError, match="both the source and the target"):
                reshard(linked, target(source, form), format=form, force=force)
    assert files_of(source) == before


def test_a_file_is_no_target_for_its_own_content_in_another_format(tmp_path: Path) -> None:
    save(tmp_path / "m.npz", table())
    os.rename(tmp_path / "m.npz", tmp_path / "m")
    before = files_of(tmp_path)
    for form in ("npz", "safetensors"):
        with pytest.raises((ArgumentError, TargetExists)):
            reshard(tmp_path / "m", tmp_path / "m", format=form, force=True)
    assert files_of(tmp_path) == before


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
    reshard(tmp_path / "source", target(tmp_path / "there", form), format=form, force=True)
    check_same(load(target(tmp_path / "there", form)), table())


def test_a_remedy_that_is_not_atomic_says_so(tmp_path: Path) -> None:
    """A set in the place of a file is two steps, and only there the remedy warns of a crash in
    between."""
    save(tmp_path / "source", table())
    save(tmp_path / "whole", table())
    save(tmp_path / "mixed.safetensors", table(), format="safetensors")
    with pytest.raises(TargetExists) as whole:
        reshard(tmp_path / "source", tmp_path / "whole")
    with pytest.raises(TargetExists) as mixed:
        several = MaxShardSizePolicy(64)
        reshard(
            tmp_path / "source",
            tmp_path / "mixed.safetensors",
            format="safetensors",
            policy=several,
        )
    assert (
        "crash" not in whole.value.remedy
        and "a crash in between leaves both of them, whole" in mixed.value.remedy
    )


@pytest.mark.parametrize("form", FORMATS)
def test_a_dry_run_touches_nothing_and_tells_what_would_be(form: str, tmp_path: Path) -> None:
    save(tmp_path / "a", table(), partition=2)
    before = files_of(tmp_path)
    told = reshard(
        tmp_path / "a", target(tmp_path / "new" / "deep", form), format=form, dry_run=True
    )
    assert files_of(tmp_path) == before and not (tmp_path / "new").exists()
    done = reshard(tmp_path / "a", target(tmp_path / "new" / "deep", form), format=form)
    assert told.dry_run and not done.dry_run
    for name in (
        "path",
        "format",
        "num_tensors",
        "num_slices",
        "nbytes",
        "file_nbytes",
        "num_copies",
        "read_nbytes",
    ):
        assert getattr(told, name) == getattr(done, name)
    assert done.nbytes == sum(array.nbytes for array in table().values())
    assert told.to_json()["schema"] == 1 and told.to_json()["num_files"] == told.num_files


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no", tmp_path / "no" / "such"):
        with pytest.raises(CheckpointNotFound) as caught:
            load(path)
        assert str(path) in str(caught.value)
        with pytest.raises(CheckpointNotFound):
            reshard(path, tmp_path / "b")
    assert files_of(tmp_path) == {}


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


def _doubled_for_lost(slices: SliceTable, file: Any) -> Any:
    rows = np.arange(len(slices))
    rows[1] = 0  # of the same size
    return slices.take(rows), file


def _cut_string(slices: SliceTable, file: Any) -> Any:
    row = [slices.dtype(row) for row in range(len(slices))].index("string")
    rows = np.sort(np.append(np.arange(len(slices)), row))
    table = slices.take(rows)
    shape, offset = table.shape.copy(), table.offset.copy()
    shape[row, 0], shape[row + 1, 0], offset[row + 1, 0] = 1, 1, 1
    return SliceTable(table.tensors, table.tensor, offset, shape, table.nbytes), np.zeros(
        len(rows), np.int64
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda slices, file: (slices.take(np.arange(1, len(slices))), file[1:]), "'a' lacks|lost"),
        (
            lambda slices, file: (
                slices.take(np.append(np.arange(len(slices)), 0)),
                np.append(file, 0),
            ),
            "overlap",
        ),
        (_doubled_for_lost, "overlap"),
        (lambda slices, file: (slices, file + 1), "files"),
        (lambda slices, file: (slices, file - 1), "files"),
        (lambda slices, file: (slices, file[1:]), "files"),
        (_cut_string, "'s'"),
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
            assert reader.read(next(iter(reader.keys()))) is not None
            if error is not None:
                raise error
        with pytest.raises(ArgumentError):
            reader.read(next(iter(reader.keys())))
