"""A database that is written is one for TensorStore, whatever its size, and whatever its nodes'."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import MalformedCheckpoint, ShardvarError
from shardvar.wire.crc import CRC32C
from shardvar.wire.ocdbt import (
    INLINE_NBYTES,
    DatabaseHead,
    LeafNode,
    NodePlace,
    NodeRoom,
    ValueRange,
    build_database,
    parse_manifest,
    parse_node,
)
from spec_tests.helpers.paths import GOLDEN
from spec_tests.hostile import ocdbt as by_hand

tensorstore = pytest.importorskip("tensorstore", reason="tensorstore is not installed")

FILES = ["ocdbt.process_0/d/" + "a" * 32, "d/" + "b" * 32, "ocdbt.process_1/d/" + "c" * 32]
OWN = "d/" + "0" * 32
CONTENT = bytes(range(256)) * 4

keys = st.binary(min_size=1, max_size=40) | st.text("ab./", min_size=1).map(str.encode)
spans = st.builds(ValueRange, st.integers(0, 2), st.integers(0, 500), st.integers(0, 500))
databases = st.dictionaries(keys, st.binary(max_size=60) | spans, max_size=60)


def lay_out(path: Path, manifest: bytes, nodes: bytes) -> Any:
    """Write the files of a database; return how TensorStore opens it."""
    files = {"manifest.ocdbt": manifest, OWN: nodes, **dict.fromkeys(FILES, CONTENT)}
    for name, octets in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(octets)
    return {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}


def contents(place: Any) -> dict[bytes, bytes]:
    """Return what TensorStore finds."""
    database = tensorstore.KvStore.open(place, context=tensorstore.Context()).result()
    return {key: database[key] for key in database.list().result()}


def expected(values: Mapping[bytes, bytes | ValueRange]) -> dict[bytes, bytes]:
    return {
        key: CONTENT[value.start : value.start + value.nbytes]
        if isinstance(value, ValueRange)
        else value
        for key, value in values.items()
    }


@given(databases, st.sampled_from([1, 40, 200, 1 << 20]), st.binary(min_size=16, max_size=16))
def test_tensorstore_finds_every_value_in_trees_of_any_height(
    tmp_path_factory: pytest.TempPathFactory,
    values: dict[bytes, bytes | ValueRange],
    node_nbytes: int,
    uuid: bytes,
) -> None:
    """And the settings, the time and the totals that the manifest says. What is written is read in
    the order of keys."""
    path = tmp_path_factory.mktemp("db")
    manifest, nodes = build_database(values, FILES, OWN, uuid, 12345, node_nbytes)
    found = walked(manifest, nodes, NodeRoom())
    assert found == (uuid, values) and list(found[1]) == sorted(values)
    place = lay_out(path, manifest, nodes)
    assert contents(place) == expected(values)
    base = tensorstore.KvStore.open(place["base"]).result()
    said = tensorstore.ocdbt.dump(base).result()
    assert said["config"] == {
        "uuid": uuid.hex(),
        "compression": None,
        "max_decoded_node_bytes": node_nbytes,
        "max_inline_value_bytes": 1024,
        "version_tree_arity_log2": 4,
    }
    [version] = said["versions"]
    assert (version["generation_number"], version["commit_time"]) == (1, 12345)
    assert version["root"]["statistics"] == {
        "num_keys": len(values),
        "num_tree_bytes": len(nodes),
        "num_indirect_value_bytes": sum(
            value.nbytes for value in values.values() if isinstance(value, ValueRange)
        ),
    }


def unpack(octets: bytes, nbytes: int) -> bytes:
    raise AssertionError("Nodes that are written here are not compressed.")


def leaves(head: DatabaseHead, nodes: bytes, room: NodeRoom) -> Iterator[LeafNode]:
    """Yield the nodes with values that this reader finds, in their order."""
    left = [head.root] if head.root else list[NodePlace]()
    while left:
        place = left.pop(0)
        assert (place.folder, place.file) == ("", OWN)
        node = parse_node(nodes[place.start : place.start + place.nbytes], place, unpack, room)
        if isinstance(node, LeafNode):
            yield node
        else:
            left = [*node, *left]


def walked(
    manifest: bytes, nodes: bytes, room: NodeRoom
) -> tuple[bytes, dict[bytes, bytes | ValueRange]]:
    """What this reader finds, and the uuid."""
    head = parse_manifest(manifest, unpack, room)
    assert not head.is_numbered
    found = dict[bytes, bytes | ValueRange]()
    for node in leaves(head, nodes, room):
        rows = zip(
            node.keys, node.file.tolist(), node.start.tolist(), node.nbytes.tolist(), strict=True
        )
        for key, file, start, nbytes in rows:
            held = node.body[start : start + nbytes]
            found[key] = (
                held if file < 0 else ValueRange(FILES.index(node.files[file]), start, nbytes)
            )
    return head.uuid, found


@pytest.mark.parametrize("node_nbytes", range(1, 200, 7))
def test_nodes_are_filled_equally(node_nbytes: int) -> None:
    """All leaves but the last hold the same number of entries if these have one size."""
    values = {bytes([65 + number]): b"v" for number in range(9)}
    manifest, nodes = build_database(values, FILES, OWN, bytes(16), 0, node_nbytes)
    head = parse_manifest(manifest, unpack, NodeRoom())
    first, *more = [len(leaf.keys) for leaf in leaves(head, nodes, NodeRoom())]
    assert {*more[:-1]} <= {first} and all(0 < count <= first for count in more[-1:])


def test_values_whose_sum_no_number_holds_are_malformed() -> None:
    body = bytes([0]) + by_hand.paths() + bytes([4]) + bytes(3) + by_hand.column(1, 1, 1, 1)
    body += b"abcd" + by_hand.column(*[2**62] * 4) + bytes(4)
    octets = by_hand.frame(by_hand.NODE, body)
    with pytest.raises(MalformedCheckpoint, match=f"A value has {2**62} bytes, and the node 0"):
        parse_node(octets, NodePlace(OWN, "", 0, len(octets), 0), unpack, NodeRoom())


@given(databases.filter(bool), st.sampled_from([1, 200]), st.data())
def test_a_file_of_another_length_is_malformed_however_right_its_checksum(
    values: dict[bytes, bytes | ValueRange], node_nbytes: int, data: st.DataObject
) -> None:
    """Cut anywhere, or with a byte more; a byte that is another is read, or refused."""
    manifest, nodes = build_database(values, FILES, OWN, bytes(16), 0, node_nbytes)
    root = parse_manifest(manifest, unpack, NodeRoom()).root
    assert root is not None

    def framed(octets: bytes, content: bytes) -> bytes:
        octets = octets[:4] + (16 + len(content)).to_bytes(8, "little") + content
        return octets + CRC32C.compute(octets).to_bytes(4, "little")

    node = nodes[root.start : root.start + root.nbytes]
    for octets, parse in (
        (manifest, lambda octets: parse_manifest(octets, unpack, NodeRoom())),
        (node, lambda octets: parse_node(octets, root, unpack, NodeRoom())),
    ):
        content = octets[12:-4]
        assert framed(octets, content) == octets
        parse(octets)
        cut = data.draw(st.integers(0, len(content) - 1))
        for wrong in (
            octets[:-1],
            octets + b"x",
            framed(octets, content[:cut]),
            framed(octets, content + b"\0"),
        ):
            with pytest.raises(MalformedCheckpoint):
                parse(wrong)
        changed = bytearray(content)
        changed[data.draw(st.integers(2, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        with suppress(ShardvarError):
            parse(framed(octets, bytes(changed)))


def test_a_database_that_orbax_wrote_has_the_same_settings() -> None:
    """Of the golden ones: values up to 1024 bytes in nodes, and 16 versions a node."""
    path = GOLDEN / "orbax" / "standard" / "ckpt"
    base = tensorstore.KvStore.open({"driver": "file", "path": f"{path}/"}).result()
    said = tensorstore.ocdbt.dump(base).result()["config"]
    assert said["max_inline_value_bytes"] == INLINE_NBYTES
    assert said["version_tree_arity_log2"] == 4


@given(
    st.dictionaries(
        st.text("ab./", min_size=1),
        st.binary(max_size=200) | st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
        min_size=1,
    )
)
def test_a_node_is_byte_for_byte_the_one_that_is_made_by_hand(
    values: dict[str, bytes | tuple[int, int]],
) -> None:
    """``spec_tests/hostile`` builds nodes by the published layout, without this writer."""
    wanted = by_hand.leaf(values, ("ocdbt.process_0/", "d/" + "a" * 32))
    written: dict[bytes, bytes | ValueRange] = {
        key.encode(): ValueRange(0, *value) if isinstance(value, tuple) else value
        for key, value in values.items()
    }
    assert build_database(written, FILES, OWN, bytes(16), 0)[1] == wanted


def test_the_writer_writes_what_it_wrote() -> None:
    """The golden folder was written by this writer, and Orbax 0.12.8 has read it. From what
    TensorStore finds in it, the same bytes are made: a release that changes them changes what
    readers of other releases have been tried with."""
    path = GOLDEN / "orbax" / "written_here" / "ckpt"
    place = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}
    said = tensorstore.ocdbt.dump(tensorstore.KvStore.open(place["base"]).result()).result()
    [version] = said["versions"]
    (own,) = (f"d/{each.name}" for each in (path / "d").iterdir())
    files = sorted(f"ocdbt.process_0/d/{each.name}" for each in path.glob("ocdbt.process_0/d/*"))
    data = [(path / each).read_bytes() for each in files]
    values: dict[bytes, bytes | ValueRange] = {}
    for key, value in contents(place).items():
        (found,) = [
            ValueRange(number, octets.index(value), len(value))
            for number, octets in enumerate(data)
            if len(value) > INLINE_NBYTES and value in octets
        ] or [value]
        values[key] = found
    uuid = bytes.fromhex(said["config"]["uuid"])
    written = build_database(values, files, own, uuid, version["commit_time"])
    assert written == ((path / "manifest.ocdbt").read_bytes(), (path / own).read_bytes())
