"""Databases that TensorStore has written are read as TensorStore reads them: every key, and every
value. In a bucket they are written, read and verified as on a disk, with joined requests."""

import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    CheckpointError,
    CorruptCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    StorageError,
)
from shardvar.formats.zarr import source as source_module
from shardvar.formats.zarr.database import DatabaseValues, read_values
from shardvar.formats.zarr.files import DATABASE, Tree
from shardvar.storage.local import LocalStorage
from shardvar.storage.remote import AHEAD_NBYTES
from spec_tests.helpers.damage import flip
from spec_tests.helpers.memory_bucket import Dead, MemoryBucket, in_bucket, in_memory
from spec_tests.helpers.orbax_files import METADATA, open_database, write_database
from spec_tests.helpers.paths import GOLDEN
from spec_tests.hostile import ocdbt
from spec_tests.hostile.zarr import VALUES, orbax

tensorstore = pytest.importorskip("tensorstore", reason="tensorstore is not installed")
zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")

keys = st.binary(min_size=1, max_size=20) | st.text("ab./", min_size=1, max_size=30).map(str.encode)
changes = st.dictionaries(keys, st.none() | st.binary(max_size=300), max_size=40)
configs = st.fixed_dictionaries(
    {
        "max_inline_value_bytes": st.sampled_from([0, 20, 1024]),
        "max_decoded_node_bytes": st.sampled_from([1, 60, 300, 8 << 20]),
        "version_tree_arity_log2": st.sampled_from([1, 4]),
        "compression": st.sampled_from([None, {"id": "zstd"}, {"id": "zstd", "level": 9}]),
        "manifest_kind": st.sampled_from(["single", "numbered"]),
    }
)


def commit(database: Any, changed: Mapping[bytes, bytes | None]) -> None:
    """Write a version with all these changes; None is a removal."""
    with tensorstore.Transaction(atomic=False) as transaction:
        store = database.with_transaction(transaction)
        for key, value in changed.items():
            if value is None:
                del store[key]
            else:
                store[key] = value


def as_tensorstore_reads(path: Path) -> dict[bytes, bytes]:
    database = open_database(path)
    return {key: database[key] for key in database.list().result()}


def as_read(path: Path) -> tuple[DatabaseValues, dict[bytes, bytes]]:
    tree = Tree.of(LocalStorage(str(path)), DATABASE)
    values = read_values(tree)
    assert values.names == sorted(values.names)
    found = values.read(tree, values.names, 1 << 30)
    whole = {
        name.encode("utf-8", "surrogateescape"): octets
        for name, octets in zip(values.names, found, strict=True)
        if isinstance(octets, bytes)
    }
    assert len(whole) == len(values.names)
    return values, whole


@given(configs, st.lists(changes, min_size=1, max_size=6))
def test_every_value_of_the_newest_version_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    config: dict[str, Any],
    versions: list[dict[bytes, bytes | None]],
) -> None:
    """In trees of any height, of any settings, after versions that add, change and remove keys."""
    path = tmp_path_factory.mktemp("db")
    database = open_database(path, config)
    for changed in versions:
        commit(database, changed)
    if not (path / DATABASE).exists():  # no version was needed
        return
    assert as_read(path)[1] == as_tensorstore_reads(path)


@given(configs, configs, st.lists(changes, min_size=1, max_size=3))
def test_databases_of_processes_that_were_merged_are_one(
    tmp_path_factory: pytest.TempPathFactory,
    config: dict[str, Any],
    merged: dict[str, Any],
    written: list[dict[bytes, bytes | None]],
) -> None:
    """As Orbax merges them: the values stay in the folder of the process that wrote them."""
    path = tmp_path_factory.mktemp("db")
    context = tensorstore.Context()
    target = open_database(path, merged, context)
    with tensorstore.Transaction(atomic=False) as transaction:
        for process, changed in enumerate(written):
            own = open_database(path / f"ocdbt.process_{process}", config, context)
            commit(own, {key: value for key, value in changed.items() if value is not None})
            own.experimental_copy_range_to(target.with_transaction(transaction)).result()
    if not (path / DATABASE).exists():
        return
    values, found = as_read(path)
    assert found == as_tensorstore_reads(path)
    if merged["max_inline_value_bytes"] == config["max_inline_value_bytes"] == 0:
        assert all(file.startswith("ocdbt.process_") for file in values.files)


@pytest.mark.parametrize(
    "path",
    sorted(each.parent for each in (GOLDEN / "orbax").glob("[!b]*/**/manifest.ocdbt")),
    ids=lambda path: path.relative_to(GOLDEN / "orbax").as_posix(),
)
def test_every_value_that_orbax_wrote_is_found(path: Path) -> None:
    assert as_read(path)[1] == as_tensorstore_reads(path)


def test_many_keys_in_a_tree_of_many_levels(tmp_path: Path) -> None:
    config = {"max_decoded_node_bytes": 1000, "max_inline_value_bytes": 16}
    wanted = {
        f"params.layers.{number // 7}.part.{number % 7}/0.0".encode(): struct.pack("<Q", number)
        * (number % 5)
        for number in range(5000)
    }
    commit(open_database(tmp_path, config), wanted)
    values, found = as_read(tmp_path)
    assert found == wanted and len(values.bodies) > 100


def test_nodes_become_as_much_as_they_and_the_index_have_bytes_for(tmp_path: Path) -> None:
    """Thousands of equal arrays take next to nothing in nodes; the index of Orbax names each."""
    commit(
        open_database(tmp_path, {"max_inline_value_bytes": 1 << 20}),
        {f"layer.{number:05}/0".encode(): bytes(10_000) for number in range(8000)},
    )
    with pytest.raises(InvalidCheckpoint, match="MAX_NODE_EXPANSION"):
        as_read(tmp_path)
    (tmp_path / "_METADATA").write_bytes(b" " * 150 * 8000)
    assert len(as_read(tmp_path)[1]) == 8000


def test_plain_chunks_are_mapped() -> None:
    """Without a copy, and what is in nodes is one."""
    path = GOLDEN / "orbax" / "written_here" / "ckpt"
    found, wanted = sv.load(path, mmap=True), sv.load(path)
    assert all(np.array_equal(found[key], wanted[key]) for key in wanted)
    assert not found["kernel"].flags.writeable and found["bias"].flags.writeable


@pytest.mark.parametrize("second", ["b", "c", "d", "e"])
def test_a_node_has_no_key_of_its_neighbours(second: str, tmp_path: Path) -> None:
    """Which of two leaves has a key, the branch above them says."""
    one, other = ocdbt.keyed(["a", "c"]), ocdbt.keyed([second, "f"])
    for first in "abcde":
        places = [(0, len(one)), (len(one), len(other))]
        root = ocdbt.branch(["a", first], 0, places) if first > "a" else other
        files = ocdbt.rooted(one, other, root, height=int(first > "a"))
        for name, octets in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(octets)
        if first == "a":
            assert as_read(tmp_path)[0].names == [second, "f"]
        elif "c" < first <= second:
            assert as_read(tmp_path)[0].names == ["a", "c", second, "f"]
        else:
            with pytest.raises(MalformedCheckpoint, match="neighbour"):
                as_read(tmp_path)


def test_every_changed_byte_of_nodes_is_noticed(tmp_path: Path) -> None:
    """And every cut, wherever it is."""
    commit(
        open_database(tmp_path, {"max_decoded_node_bytes": 60}), {b"a": b"1" * 90, b"b": b"2" * 200}
    )
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    whole = as_read(tmp_path)[1]
    for path in paths:
        octets = path.read_bytes()
        for at in range(len(octets)):
            for changed in (octets[:at] + bytes([octets[at] ^ 4]) + octets[at + 1 :], octets[:at]):
                path.write_bytes(changed)
                try:
                    found = as_read(tmp_path)[1]
                except (CheckpointError, AssertionError):
                    continue
                # The values in data files have no checksum.
                assert found.keys() == whole.keys() and len(changed) == len(octets)
                assert found[b"a"] == whole[b"a"]
        path.write_bytes(octets)
    assert as_read(tmp_path)[1] == whole
    name = next(path for path in paths if path.name == DATABASE)
    flip(name, -1)
    with pytest.raises(CorruptCheckpoint, match="checksum"):
        as_read(tmp_path)


URL = "s3://bucket/run/"
RNG = np.random.default_rng(0)


shapes = st.tuples(st.integers(1, 4), st.integers(1, 4)).map(
    lambda pair: (4 * pair[0], 4 * pair[1])
)
drawn = st.dictionaries(
    st.sampled_from([f"{kind}.{number}" for kind in METADATA for number in range(3)]),
    shapes,
    min_size=1,
    max_size=8,
)


def said(path: str | Path) -> Any:
    report = sv.verify(path)
    return report.ok, report.outcomes, report.damages, report.unverified, report.unguarded_nbytes


@given(drawn, st.sampled_from([0, 100, 1024]), st.sampled_from([200, 8 << 20]))
def test_a_bucket_has_what_a_disk_has(
    tmp_path_factory: pytest.TempPathFactory,
    arrays: dict[str, tuple[int, int]],
    inline: int,
    node_nbytes: int,
) -> None:
    """Of every codec, in nodes and in files: whole, in parts, and what verify says of each key."""
    folder = tmp_path_factory.mktemp("db")
    values = {key: RNG.random(shape) for key, shape in arrays.items()}
    write_database(
        folder, values, max_inline_value_bytes=inline, max_decoded_node_bytes=node_nbytes
    )
    bucket = in_memory(folder)
    with in_bucket(bucket):
        for path in (folder, URL):
            found = sv.load(path)
            assert found.keys() == values.keys()
            assert all(np.array_equal(found[key], values[key]) for key in values)
            with sv.open_checkpoint(path) as reader:
                for key, wanted in values.items():
                    part = np.s_[1:3, 2:]
                    assert np.array_equal(reader.read(key, part), wanted[part])
        assert said(folder) == said(URL)


@pytest.mark.parametrize("kind", ["large", "plain"])
def test_a_database_that_is_replaced_while_it_is_read_is_found(kind: str, tmp_path: Path) -> None:
    """Its file of values is one of another checkpoint then; no value is of both."""
    keys = [f"{kind}.{number}" for number in range(3)]
    # Larger than what a read brings along.
    old = write_database(tmp_path, {key: RNG.random((256, 256)) for key in keys})
    bucket = in_memory(tmp_path)
    with in_bucket(bucket), sv.open_checkpoint(URL) as reader:
        assert np.array_equal(reader.read(keys[0]), old[keys[0]])
        for path in [path for path in bucket.files if "/d/" in path]:
            bucket.write(path, bytes(len(bucket.files[path])))
        with pytest.raises(CorruptCheckpoint, match="replaced"):
            reader.read(keys[1])


def test_a_damaged_file_is_the_fault_of_its_keys(tmp_path: Path) -> None:
    """Chunks are read together, and those of the other file are right."""
    keys = ["large.0", "large.1"]
    for process, key in enumerate(keys):
        write_database(tmp_path / f"ocdbt.process_{process}", {key: RNG.random((256, 256))})
    context = tensorstore.Context()

    for process in range(2):
        own = open_database(tmp_path / f"ocdbt.process_{process}", context=context)
        own.experimental_copy_range_to(open_database(tmp_path, context=context)).result()
    wanted = sv.load(tmp_path)
    bucket = in_memory(tmp_path)
    with in_bucket(bucket), sv.open_checkpoint(URL) as reader:
        assert sorted(reader) == keys
        for path in [path for path in bucket.files if "process_1/d/" in path]:
            bucket.write(path, bytes(len(bucket.files[path])))
        with pytest.raises(CorruptCheckpoint, match="replaced"):
            reader.read_many([(key, ...) for key in keys])
        assert np.array_equal(reader.read(keys[0]), wanted[keys[0]])
        report = sv.verify(URL)
    assert [each.key for each in report.damages if each.key] == [keys[1]]


def test_a_chunk_with_inner_ones_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though some rows of it are decoded at a time."""
    monkeypatch.setattr(source_module, "_BAND_NBYTES", 1 << 10)
    values = write_database(tmp_path, {"inner.0": RNG.random((256, 128))})
    bucket = in_memory(tmp_path)
    with in_bucket(bucket):
        assert np.array_equal(sv.load(URL)["inner.0"], values["inner.0"])
    assert sum(nbytes for _, nbytes in bucket.ranges) < AHEAD_NBYTES + 1.1 * sum(
        map(len, bucket.files.values())
    )


def test_a_large_chunk_is_read_by_many_requests_at_once(tmp_path: Path) -> None:
    """One for each 4 MiB, and no byte twice."""
    METADATA["whole"] = {"driver": "zarr", "metadata": {"compressor": {"id": "zstd"}}}
    values = write_database(tmp_path, {"whole.0": RNG.integers(0, 1 << 62, 1 << 20)})
    bucket = in_memory(tmp_path)
    size = sum(map(len, bucket.files.values()))
    with in_bucket(bucket):
        assert np.array_equal(sv.load(URL)["whole.0"], values["whole.0"])
    assert len(bucket.ranges) <= 5 + size / (4 << 20)
    assert sum(nbytes for _, nbytes in bucket.ranges) <= size + AHEAD_NBYTES


def test_values_that_repeat_the_same_bytes_are_bounded(tmp_path: Path) -> None:
    """A few bytes for each key are any number of arrays otherwise."""
    keys = [f"t{number:04}" for number in range(2000)]
    spans = dict.fromkeys(keys, (0, 1 << 12))
    node = ocdbt.leaf(spans, ("", "d/" + "a" * 32))
    files = orbax(use_ocdbt=True) | ocdbt.rooted(node) | {"d/" + "a" * 32: VALUES * 256}
    bucket = MemoryBucket({f"run/{name}": octets for name, octets in files.items()})
    with in_bucket(bucket), pytest.raises(InvalidCheckpoint, match="MAX_PAYLOAD_EXPANSION"):
        sv.load(URL)


MANY = {f"layer.{number}": RNG.random((64, 32)) for number in range(100)}
"""Each of two slices of 8 KiB."""
SMALL = {"w": RNG.random((30, 20)), "b": np.arange(3)}


def replaced(before: MemoryBucket, tensors: Mapping[str, Any], **faults: Any) -> MemoryBucket:
    """Save over a checkpoint with a fault, and return the bucket."""
    bucket = MemoryBucket(dict(before.files), **faults)
    with in_bucket(bucket), suppress(Dead, StorageError):
        sv.save(URL, tensors, format="orbax", force=True)
    return bucket


def test_a_database_is_written_and_read_with_requests_by_files() -> None:
    """Three files for each tensor were 304 requests that write."""
    source = MemoryBucket()
    with in_bucket(source):
        sv.save("s3://bucket/from/m", MANY, partition=2)
        source.log.clear()
        source.ranges.clear()
        sv.reshard("s3://bucket/from/m", URL, format="orbax")
        assert len(source.log) <= 12 and len(source.ranges) <= 6
        source.ranges.clear()
        found = sv.load(URL)
        assert len(source.ranges) <= 6 and sv.verify(URL).ok
    assert all(np.array_equal(found[key], MANY[key]) for key in MANY)
    names = [key.removeprefix("run/") for key in source.files if key.startswith("run/")]
    assert len(names) == 6 and not any("chunk" in name or "claim" in name for name in names)


@pytest.mark.parametrize("takes_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [Dead, StorageError])
def test_a_database_of_the_same_keys_is_replaced_in_one_step(
    error: Any, takes_effect: bool
) -> None:
    """Killed or refused at any request: all values are the old ones or the new ones, and the next
    save leaves only what it wrote."""
    new = {key: values + 1 for key, values in SMALL.items()}
    before = replaced(MemoryBucket(), SMALL)
    count = len(replaced(before, new).files)
    number, seen = 0, set()
    while True:
        bucket = replaced(before, new, fail_at=number, takes_effect=takes_effect, error=error)
        with in_bucket(MemoryBucket(dict(bucket.files))):
            found = sv.load(URL)
            assert sv.verify(URL).ok
        which = [
            kind
            for kind, values in (("old", SMALL), ("new", new))
            if all(np.array_equal(found[key], values[key]) for key in values)
        ]
        assert len(which) == 1
        seen.update(which)
        after = MemoryBucket(dict(bucket.files))
        for key in [key for key in after.files if "claim" in key]:
            del after.files[key]
        again = replaced(after, SMALL)
        assert len(again.files) == count and len(before.files) == count
        if len(bucket.log) <= number:
            break
        number += 1
    assert seen == {"old", "new"} and number > 5
