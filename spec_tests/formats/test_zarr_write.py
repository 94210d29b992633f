"""Zarr and Orbax, written: grids of slices, checksums at the ends of chunks, keys as paths, and
what is refused."""

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    MissingFile,
    TargetExists,
    UnsupportedError,
)
from shardvar.formats.zarr.contents import first_checksum
from shardvar.formats.zarr.files import DATABASE
from shardvar.formats.zarr.orbax import build_tree, parse_tree
from shardvar.formats.zarr.sink import WRITTEN
from shardvar.layout.dtypes import numpy_dtype
from shardvar.planning.policies import BalancedPolicy, MaxShardSizePolicy
from shardvar.planning.slices import SliceTable, TensorTable, are_grids, pad
from shardvar.wire.crc import CRC32C
from shardvar.wire.ocdbt import INLINE_NBYTES
from shardvar.wire.zarr_metadata import NATIVE
from spec_tests.helpers.format_protocol import GOLDEN, expectation
from spec_tests.helpers.orbax_files import open_database, settled
from spec_tests.helpers.system_calls import snapshot

pytest.importorskip("tensorstore", reason="tensorstore is not installed")

FOLDERS = ["zarr", "orbax"]


@given(st.binary(max_size=70), st.binary(max_size=70))
def test_the_checksum_of_the_first_of_two_strings_follows_from_that_of_both(
    first: bytes, second: bytes
) -> None:
    both = CRC32C.compute(first + second)
    assert first_checksum(both, CRC32C.compute(second), len(second)) == CRC32C.compute(first)


def is_grid(sizes: list[list[int]]) -> bool:
    """The sizes of the parts along each axis are equal, but for a smaller last one on axis 0."""
    return all(
        len({*along[:-1], *(along[-1:] if axis else [])}) <= 1 and along[-1] <= along[0]
        for axis, along in enumerate(sizes)
    )


SIZES = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=2)


@given(SIZES, st.randoms())
def test_a_grid_has_equal_slices_but_for_the_last_on_the_first_axis(
    sizes: list[list[int]], random: Any
) -> None:
    """In whatever order the slices are listed."""
    stops = [np.cumsum(along).tolist() for along in sizes]
    regions = [
        (tuple(stop - size for stop, size in at), tuple(size for _, size in at))
        for at in np.array(np.meshgrid(*(range(len(along)) for along in sizes), indexing="ij"))
        .reshape(len(sizes), -1)
        .T.tolist()
        for at in [[(stops[axis][part], sizes[axis][part]) for axis, part in enumerate(at)]]
    ]
    random.shuffle(regions)
    table = TensorTable.of([("t", "float32", tuple(map(sum, sizes)))])
    offset, shape = (pad([region[column] for region in regions], fill=0)[1] for column in (0, 1))
    slices = SliceTable.of(table, np.zeros(len(regions), np.int64), offset, shape)
    assert are_grids(slices).tolist() == [is_grid(sizes)]


@pytest.mark.parametrize("form", FOLDERS)
@given(rows=st.integers(0, 13), step=st.integers(1, 5), name=st.sampled_from(sorted(WRITTEN)))
def test_what_is_written_in_equal_slices_is_read_in_them(
    tmp_path_factory: pytest.TempPathFactory, form: str, rows: int, step: int, name: str
) -> None:
    """Any number of rows in slices of any size; bit for bit, and every bit verified where the
    format guards it."""
    table = (np.arange(rows * 3).reshape(rows, 3) % 2).astype(numpy_dtype(name))
    sizes = [step] * (rows // step) + [rows % step] * (rows % step > 0)
    path = tmp_path_factory.mktemp("ck") / "ck"
    partition = sv.PartitionSpec(splits=[sizes]) if sizes else None
    report = sv.save(path, {"t": table}, format=form, partition=partition)
    assert report.num_slices == max(len(sizes), 1)
    loaded = sv.load(path)["t"]
    assert loaded.dtype == table.dtype and loaded.tobytes() == table.tobytes()
    verified = sv.verify(path)
    assert verified.ok and (form == "orbax" or not verified.unverified)


@pytest.mark.parametrize("form", FOLDERS)
def test_a_partition_that_cuts_unequally_is_refused_and_stored_slices_are_joined(
    form: str, tmp_path: Path
) -> None:
    """13 rows in 5 parts by div are 3, 3, 3, 2 and 2. A tensor that the partition does not name is
    joined as well."""
    table = {"t": np.arange(26).reshape(13, 2), "u": np.arange(4)}
    with pytest.raises(ArgumentError, match="'t' of \\[13, 2\\] unequally"):
        sv.save(tmp_path / "ck", table, format=form, partition=5)
    assert not (tmp_path / "ck").exists()
    sv.save(tmp_path / "source", table, partition=5)
    for partition, count in ((None, 1 + 4), ({"u": 2}, 1 + 2)):
        report = sv.reshard(
            tmp_path / "source", tmp_path / "ck", format=form, partition=partition, force=True
        )
        assert report.num_slices == count
        assert np.array_equal(sv.load(tmp_path / "ck")["t"], table["t"])


KEYS = ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "zarr.json", "a/zarr.json", "__a", "a\\b"]
REFUSED: list[tuple[list[str], str]] = [
    *(([key, "good"], "cannot hold the key") for key in (*KEYS, "x" * 256)),
    (["in/t\udcff", "good"], "not UTF-8"),
    (["a", "a/b"], "'a' together"),
]
"""Keys, and what is said of them."""


@pytest.mark.parametrize("form", FOLDERS)
def test_keys_that_are_not_paths_of_folders_are_refused_by_name(form: str, tmp_path: Path) -> None:
    """Nor is one that leads through another, which keys of Orbax do by dots too."""
    for keys, words in [*REFUSED, *[(["a.b", "a"], "'a' together")] * (form == "orbax")]:
        with pytest.raises(UnsupportedError, match=words):
            sv.save(tmp_path / "run" / "ck", {key: np.arange(3) for key in keys}, format=form)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_database_without_an_index_is_not_replaced(tmp_path: Path) -> None:
    """It may be another program's."""
    (tmp_path / "manifest.ocdbt").write_bytes(b"a database")
    with pytest.raises(TargetExists, match="no _METADATA, but arrays: manifest.ocdbt"):
        sv.save(tmp_path, {"t": np.arange(3)}, format="orbax", force=True)


@pytest.mark.parametrize("form", ["orbax", "orbax-plain"])
def test_a_checkpoint_that_orbax_wrote_is_replaced_with_all_its_files(
    form: str, tmp_path: Path
) -> None:
    """And files of the user's stay."""
    shutil.copytree(GOLDEN / "orbax" / "standard" / "ckpt", tmp_path / "ck")
    (tmp_path / "ck" / "d" / "notes.txt").write_bytes(b"mine")
    sv.save(tmp_path / "ck", {"t": np.arange(3)}, format=form, force=True)
    sv.save(tmp_path / "new", {"t": np.arange(3)}, format=form)
    mine = {"d/notes.txt": b"mine"}
    found = settled(snapshot(tmp_path / "ck"))
    assert found == settled(snapshot(tmp_path / "new")) | mine
    assert sv.load(tmp_path / "ck")["t"].tolist() == [0, 1, 2]


LAYOUTS = st.lists(
    st.tuples(st.sampled_from([1, 64, 65, 200]), st.sampled_from([7, 64, 65])).map(
        lambda each: (each[0], min(each))
    ),
    max_size=6,
)


@given(LAYOUTS, st.sampled_from([None, BalancedPolicy(2), MaxShardSizePolicy(2000)]))
def test_a_database_holds_small_chunks_in_nodes_and_others_in_the_files_of_the_policy(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], policy: Any
) -> None:
    """TensorStore finds every chunk, whole, with its zeros; nodes have checksums."""
    path = tmp_path_factory.mktemp("ck") / "ck"
    tensors, cuts, wanted = dict[str, Any](), dict[str, Any](), dict[bytes, bytes]()
    for row, (rows, step) in enumerate(sizes):
        array = tensors[f"t{row}"] = np.random.default_rng(row).standard_normal((rows, 2))
        parts = [step] * (rows // step) + [rows % step] * (rows % step > 0)
        cuts[f"t{row}"] = sv.PartitionSpec(splits=[parts, [2]])
        padded = np.zeros((-(-rows // step) * step, 2))
        padded[:rows] = array
        for number, chunk in enumerate(np.split(padded, len(padded) // step)):
            wanted[f"t{row}/{number}.0".encode()] = chunk.tobytes()
    sv.save(path, tensors, format="orbax", partition=cuts or None, policy=policy)
    database = open_database(path)
    found = {key: database[key] for key in database.list().result()}
    assert {key: value for key, value in found.items() if not key.endswith(b"/.zarray")} == wanted
    loaded = sv.load(path)
    assert all(np.array_equal(loaded[key], array) for key, array in tensors.items())
    is_large = any(len(chunk) > INLINE_NBYTES for chunk in wanted.values())
    assert bool(sv.verify(path).unverified) == is_large
    assert (path / "ocdbt.process_0").exists() == is_large


def test_a_database_that_lost_or_cut_a_file_is_damage(tmp_path: Path) -> None:
    """Wherever it is cut; a pipe in its place is an error at once."""
    tensors = {"small": np.arange(3), "large": np.arange(300.0)}
    sv.save(tmp_path / "ck", tensors, format="orbax")
    names = [name for name in snapshot(tmp_path / "ck") if name == DATABASE or "d/" in name]
    assert len(names) == 3
    for name in names:
        whole = (tmp_path / "ck" / name).read_bytes()
        cuts = [b"", whole[: len(whole) // 2], whole[:-1], None]
        for content in cuts:
            (tmp_path / "ck" / name).unlink()
            if content is not None:
                (tmp_path / "ck" / name).write_bytes(content)
            with pytest.raises(CheckpointError):
                sv.load(tmp_path / "ck")
            try:
                assert not sv.verify(tmp_path / "ck").ok
            except CheckpointError:
                assert "ocdbt.process_0" not in name
            if content is None:
                os.mkfifo(tmp_path / "ck" / name)
                with pytest.raises(CheckpointError, match="fifo"):
                    sv.load(tmp_path / "ck")
                (tmp_path / "ck" / name).unlink()
            (tmp_path / "ck" / name).write_bytes(whole)
    assert sv.verify(tmp_path / "ck").ok


def test_what_orbax_says_of_a_step_is_said_of_every_checkpoint(tmp_path: Path) -> None:
    for form in ("orbax", "orbax-plain"):
        before = time.time_ns()
        sv.save(tmp_path / form, {"t": np.arange(3)}, format=form)
        step = json.loads((tmp_path / form / "_CHECKPOINT_METADATA").read_bytes())
        begun, done = step["init_timestamp_nsecs"], step["commit_timestamp_nsecs"]
        assert before <= begun <= done <= time.time_ns()
        said = (tmp_path / form / "commit_success.txt").read_text()
        assert said == f"Checkpoint commit was successful to {tmp_path / form}"


def test_an_interrupted_folder_is_an_error_and_not_the_arrays_in_it(tmp_path: Path) -> None:
    sv.save(tmp_path / "ck", {"t": np.arange(3)}, format="zarr")
    (tmp_path / "ck" / "zarr.json").rename(tmp_path / "ck" / "zarr.json.1f.tmp")
    with pytest.raises(MissingFile, match="interrupted"):
        sv.load(tmp_path / "ck")


NAMES = st.lists(st.sampled_from(["a", "b", "c0", "0", "1", "é", " "]), min_size=1, max_size=3).map(
    tuple
)


@given(st.sets(NAMES, max_size=6))
def test_an_index_of_orbax_lists_the_keys_that_it_was_made_of(names: set[tuple[str, ...]]) -> None:
    """With the steps of lists and dicts, and with the user's metadata; refused where one leads
    through another."""
    paths = {
        ".".join(steps): tuple(int(step) if step in "01" else step for step in steps)
        for steps in names
    }
    if any(other != key and other.startswith(f"{key}.") for key in paths for other in paths):
        with pytest.raises(UnsupportedError):
            build_tree([*paths], paths, {})
        return
    tree = parse_tree(build_tree([*paths], paths, {"k": "v"}))
    assert {*tree.arrays} == {*paths} and tree.custom == {"k": "v"}
    assert tree.is_ocdbt is False and not tree.faults
    assert tree.paths == paths | {key: tree.paths[key] for key in tree.empty}
    # Orbax counts the items of lists: those that no key leads through are None.
    steps = {path[: count + 1] for path in tree.paths.values() for count in range(len(path))}
    assert all((*path[:-1], path[-1] - 1) in steps for path in steps if path[-1] == 1)
    assert all(kind == "None" for kind in tree.empty.values())
    assert {tree.paths[key][-1] for key in tree.empty} <= {0}


def test_empty_leaves_of_orbax_are_kept_by_a_copy_of_all_keys(tmp_path: Path) -> None:
    """A copy that leaves keys out has None in the lists, and an index of a long list is refused."""
    source = GOLDEN / "orbax" / "named_tuples_and_none" / "ckpt"
    before = parse_tree((source / "_METADATA").read_bytes())
    assert before.empty == {"empty_dict": "Dict", "opt.1": "None"}
    for form in ("orbax", "orbax-plain"):
        sv.reshard(source, tmp_path / form, format=form)
        after = parse_tree((tmp_path / form / "_METADATA").read_bytes())
        assert (after.empty, after.paths) == (before.empty, before.paths)
    sv.reshard(source, tmp_path / "part", format="orbax", exclude=["opt.0.mu.*"])
    assert parse_tree((tmp_path / "part" / "_METADATA").read_bytes()).empty == {}
    paths = {"a.2": ("a", 2), "a.0.w": ("a", 0, "w"), "b": ("b",)}
    tree = parse_tree(
        build_tree([*paths], paths, {}, empty={"c.d": "List", "a.0": "Dict", "b.x": "Dict"})
    )
    assert tree.empty == {"a.1": "None", "c.d": "List"} and {*tree.arrays} == {*paths}
    with pytest.raises(UnsupportedError, match="lists that lack more than 65536 items"):
        build_tree(["a.999999999"], {"a.999999999": ("a", 999_999_999)}, {})


def test_strings_go_to_the_file_in_which_orbax_keeps_them(tmp_path: Path) -> None:
    """Those of Orbax, and texts among the objects of torch; all objects are in the metadata."""
    source = GOLDEN / "orbax" / "strings" / expectation("orbax", "strings")["open"]
    sv.reshard(source, tmp_path / "a", format="orbax")
    assert sv.diff(source, tmp_path / "a").equal and sv.verify(tmp_path / "a").ok
    objects = GOLDEN / "torch_dcp" / "nested_and_objects" / "ckpt"
    sv.reshard(objects, tmp_path / "b", format="orbax", filter=["epoch", "name", "model.*"])
    assert json.loads((tmp_path / "b" / "_strings.json").read_bytes())["name"] == "naïve ✓"
    with sv.open_checkpoint(tmp_path / "b") as reader:
        assert reader.read("name")[()] == "'naïve ✓'".encode() and reader.read("epoch")[()] == b"3"
        assert not reader.faults and not reader.metadata.user
    # A checkpoint without strings that replaces one with them has no file of strings.
    sv.save(tmp_path / "b", {"t": np.arange(3)}, format="orbax", force=True)
    assert not (tmp_path / "b" / "_strings.json").exists() and sv.verify(tmp_path / "b").ok
    with pytest.raises(UnsupportedError, match="cannot hold 'name'"):
        sv.reshard(source, tmp_path / "c", format="orbax", rename={"w": "name.w"})


@pytest.mark.parametrize("form", [*FOLDERS, "orbax-plain"])
def test_workers_write_the_same_chunks(form: str, tmp_path: Path) -> None:
    """Tensors of different numbers of rows, of which each worker has one: byte for byte as without
    workers."""
    tensors = {"a": np.arange(3), "w": np.arange(130.0).reshape(13, 10), "z": np.float32(1)}
    sv.save(tmp_path / "m", tensors)
    options: dict[str, Any] = {
        "format": form,
        "partition": {"w": sv.PartitionSpec(splits=[[3, 3, 3, 3, 1], [10]])},
    }
    sv.reshard(tmp_path / "m", tmp_path / "alone", **options)
    with ThreadPoolExecutor(2) as executor:
        sv.reshard(tmp_path / "m", tmp_path / "by workers", executor=executor, **options)
    alone, workers = (settled(snapshot(tmp_path / each)) for each in ("alone", "by workers"))
    assert len(alone) >= 5 and alone == workers
    assert sv.diff(tmp_path / "m", tmp_path / "by workers").equal


def test_an_array_that_a_written_group_lost_whole_is_named(tmp_path: Path) -> None:
    """The consolidated metadata that shardvar writes describe it, or its attribute lists it; all
    others are read. No file tells it from one that was removed on purpose: the error says what to
    do then."""
    keys = ["t", "in/u", "in/empty", "in/ä\U0001f600"]
    for dtype, remedy in (("float64", "consolidate"), ("bfloat16", "also remove it from the list")):
        tensors = {key: np.zeros(0 if "empty" in key else 3, numpy_dtype(dtype)) for key in keys}
        for number, lost in enumerate(keys):
            path = tmp_path / f"{dtype}{number}"
            sv.save(path, tensors, format="zarr")
            report = sv.verify(path)
            assert report.ok and all("no elements" in note for note in report.notes)
            shutil.rmtree(path / lost)
            assert [damage.key for damage in sv.verify(path).damages] == [lost]
            with pytest.raises(MissingFile, match=remedy):
                sv.load(path)
            with sv.open_checkpoint(path) as reader:
                assert type(reader.faults[lost]) is MissingFile and {*reader.keys()} == {*keys}
                assert all(len(reader[key]) in (0, 3) for key in keys if key != lost)
    index = json.loads((path / "zarr.json").read_text())
    index["attributes"]["shardvar_arrays"].remove(lost)
    (path / "zarr.json").write_text(json.dumps(index))
    assert sv.verify(path).ok


def test_metadata_under_the_name_of_the_attribute_that_lists_arrays_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(UnsupportedError, match="'shardvar_arrays'"):
        sv.save(
            tmp_path / "ck", {"t": np.zeros(3)}, format="zarr", metadata={"shardvar_arrays": "mine"}
        )


def test_a_group_with_a_dtype_that_numpy_lacks_has_no_consolidated_metadata(tmp_path: Path) -> None:
    """zarr-python would refuse to open any array of such a group, since it parses all descriptions
    at once. It has an attribute instead. And every group is described."""
    for dtype in sorted(WRITTEN):
        path = tmp_path / dtype
        sv.save(path, {"a/t": np.zeros(3, numpy_dtype(dtype)), "u": np.zeros(3)}, format="zarr")
        described, inner = (
            json.loads((path / folder / "zarr.json").read_text()) for folder in ("", "a")
        )
        assert inner["node_type"] == described["node_type"] == "group"
        assert ("consolidated_metadata" in described) == (dtype in NATIVE)
        assert described["attributes"] == (
            {} if dtype in NATIVE else {"shardvar_arrays": ["a/t", "u"]}
        )
        consolidated = described.get("consolidated_metadata", {}).get("metadata", {})
        for node, repeated in consolidated.items():
            assert repeated == json.loads((path / node / "zarr.json").read_text())
