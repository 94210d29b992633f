"""Databases that TensorStore has written are read as TensorStore reads them: every key, and every value."""

import struct
from collections.abc import Mapping
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
)
from shardvar.formats.zarr.database import DatabaseValues, read_values
from shardvar.formats.zarr.files import DATABASE, Tree
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.damage import flip
from spec_tests.helpers.orbax_files import open_database
from spec_tests.helpers.paths import GOLDEN
from spec_tests.hostile import ocdbt

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
