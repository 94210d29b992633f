"""Sorted tables: read and written back byte for byte as TensorFlow wrote them, and refused where
they are damaged."""

import struct
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    CheckpointError,
    CorruptCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
)
from shardvar.wire.crc import CRC32C, mask
from shardvar.wire.protobuf import encode_varint
from shardvar.wire.sstable import (
    TABLE_BLOCK_NBYTES,
    TABLE_MAGIC,
    SortedTable,
    decode_table_block,
    encode_table,
    open_table,
)
from spec_tests.helpers import paths
from spec_tests.helpers.octets import reads_of

GOLDEN = paths.GOLDEN / "tensorflow"
FOREIGN = {"hand_small_blocks", "hand_snappy_index"}
"""Tables that are valid and not as TensorFlow writes them."""
DAMAGED = {
    "bad_index_block_crc": CorruptCheckpoint,
    "bad_index_byte": CorruptCheckpoint,
    "bad_index_footer_handle_far": MalformedCheckpoint,
    "bad_index_magic": MalformedCheckpoint,
    "bad_index_trailing": MalformedCheckpoint,
    "badhand_block_restarts": MalformedCheckpoint,
    "badhand_block_shared_prefix": MalformedCheckpoint,
    "badhand_block_type": MalformedCheckpoint,
    "badhand_key_twice": InvalidCheckpoint,
    "badhand_keys_unsorted": InvalidCheckpoint,
}
INDEXES = {path.relative_to(GOLDEN).parts[0]: path for path in sorted(GOLDEN.rglob("*.index"))}

KEYS = st.binary(max_size=12) | st.lists(
    st.sampled_from([0, 1, 2, 97, 98, 254, 255]), max_size=8
).map(bytes)
ENTRIES = st.dictionaries(KEYS, st.binary(max_size=300) | st.just(b"x" * 20_000)).map(
    lambda d: sorted(d.items())
)
SIZES = [0, 10, TABLE_BLOCK_NBYTES // 2, TABLE_BLOCK_NBYTES, 2 * TABLE_BLOCK_NBYTES]
SEVERAL_BLOCKS = st.dictionaries(KEYS, st.sampled_from(SIZES), max_size=12).map(
    lambda sizes: [(key, b"v" * size) for key, size in sorted(sizes.items())]
)


def opened(data: bytes) -> SortedTable:
    return open_table(reads_of(data), len(data))


def entries_of(data: bytes) -> list[tuple[bytes, bytes]]:
    return [
        entry for keys, values in opened(data).blocks() for entry in zip(keys, values, strict=True)
    ]


def found(data: bytes, key: bytes) -> bytes | None:
    """The value of a key, as LevelDB looks it up: by the separators, in one block."""
    table = opened(data)
    number = bisect_left(table.separators, key)
    if number == len(table.separators):
        return None
    keys, values = [*table.blocks()][number]
    return dict(zip(keys, values, strict=True)).get(key)


def block(*entries: tuple[int, bytes, bytes], restarts: tuple[int, ...] = (0,)) -> bytes:
    """A block of (shared, rest of the key, value), right or wrong."""
    body = b"".join(
        encode_varint(shared) + encode_varint(len(rest)) + encode_varint(len(value)) + rest + value
        for shared, rest, value in entries
    )
    return body + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(*blocks: tuple[bytes, bytes], compression: int = 0) -> bytes:
    """A table of (separator, block), right or wrong, whose checksums are right."""
    data, handles = b"", list[bytes]()
    for _, body in blocks:
        handles.append(encode_varint(len(data)) + encode_varint(len(body)))
        data += trailed(body, compression)
    return indexed(data, *zip((separator for separator, _ in blocks), handles, strict=False))


def indexed(data: bytes, *rows: tuple[bytes, bytes]) -> bytes:
    """A table of (separator, handle), right or wrong, of blocks that are in the data."""
    index = block(*((0, separator, handle) for separator, handle in rows))
    footer = b"\0\0" + encode_varint(len(data)) + encode_varint(len(index))
    return data + trailed(index, 0) + footer.ljust(40, b"\0") + TABLE_MAGIC


def trailed(body: bytes, compression: int) -> bytes:
    stored = body + bytes([compression])
    return stored + struct.pack("<I", mask(CRC32C.compute(stored)))


@pytest.mark.parametrize("name", sorted(INDEXES.keys() - FOREIGN - DAMAGED.keys()))
def test_every_golden_index_is_written_back_as_the_same_bytes(name: str) -> None:
    data = INDEXES[name].read_bytes()
    entries = entries_of(data)
    assert encode_table(entries) == data
    # A search decodes all blocks, so some 30 keys are looked up, from the first to the last.
    some = [*entries[:: max(1, len(entries) // 30)], *entries[-1:]]
    assert all(found(data, key) == value for key, value in some)


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_tables_of_other_writers_are_read(name: str) -> None:
    data = INDEXES[name].read_bytes()
    keys = [key for key, _ in entries_of(data)]
    assert keys == sorted(keys) and keys[0] == b"" and len(keys) > 2
    assert all(found(data, key) == value for key, value in entries_of(data))


@pytest.mark.parametrize("name", sorted(DAMAGED))
def test_every_damaged_golden_index_is_refused_with_its_class(name: str) -> None:
    with pytest.raises(DAMAGED[name]) as caught:
        entries_of(INDEXES[name].read_bytes())
    assert (
        type(caught.value) is DAMAGED[name]
        and "offset" in caught.value.cause
        and caught.value.remedy
    )


@given(ENTRIES | SEVERAL_BLOCKS, KEYS)
def test_entries_round_trip_and_are_found(entries: list[tuple[bytes, bytes]], other: bytes) -> None:
    data = encode_table(entries)
    assert entries_of(data) == entries
    for key in [other, *dict(entries)]:
        assert found(data, key) == dict(entries).get(key)


def test_a_block_is_closed_before_a_very_large_entry_and_after_a_full_one() -> None:
    """TensorFlow's two rules: an entry of 2 * block_size starts a block; a block of block_size is
    closed."""
    large = encode_table([(b"a", b""), (b"b", b"x" * (2 * TABLE_BLOCK_NBYTES - 1)), (b"c", b"")])
    just_under = encode_table(
        [(b"a", b""), (b"b", b"x" * (2 * TABLE_BLOCK_NBYTES - 2)), (b"c", b"")]
    )
    assert [len(keys) for keys, _ in opened(large).blocks()] == [1, 1, 1]
    assert [len(keys) for keys, _ in opened(just_under).blocks()] == [2, 1]


def test_separators_are_the_shortest_that_leveldb_would_choose() -> None:
    full = b"x" * TABLE_BLOCK_NBYTES
    data = encode_table([(b"abcd", full), (b"abzz", full), (b"ac", full), (b"\xff\xffq", b"")])
    assert opened(data).separators == [b"abd", b"abzz", b"b", b"\xff\xffr"]
    assert opened(encode_table([(b"\xff\xff", b"")])).separators == [b"\xff\xff"]


@given(ENTRIES.filter(bool), st.data())
def test_no_flipped_bit_goes_unnoticed_but_in_what_nobody_reads(
    entries: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    """Blocks and index are under checksums; the footer's padding and the metaindex say nothing. A
    table that is cut short is malformed."""
    whole = encode_table(entries)
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert entries_of(bytes(damaged)) == entries
    except CheckpointError as error:
        assert error.cause and error.remedy
    with pytest.raises(MalformedCheckpoint):
        entries_of(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=3), st.binary(max_size=3)), max_size=5)
)
def test_a_block_that_is_read_has_rising_keys(entries: list[tuple[int, bytes, bytes]]) -> None:
    try:
        keys, values = decode_table_block(block(*entries), 0)
    except CheckpointError as error:
        assert "offset 0" in error.cause
    else:
        assert keys == sorted(set(keys)) and values == [value for _, _, value in entries]


GOOD = block((0, b"b", b"1"), (0, b"d", b"2"))
HOSTILE = {
    "an entry longer than its block": (
        b"d",
        block((0, b"b", b"1"))[:2] + b"\x70" + block((0, b"b", b"1"))[3:],
    ),
    "a length of 2**64 - 1": (b"d", b"\x00\x01" + b"\xff" * 9 + b"\x01" + b"a" + block()),
    "no restarts": (b"d", b"\x00\x01\x00b" + b"\x00\x00\x00\x00"),
    "4 billion restarts": (b"d", GOOD[:-4] + b"\xff\xff\xff\xff"),
    "a restart amid an entry": (b"d", block((0, b"b", b"1"), (0, b"d", b"2"), restarts=(0, 6))),
    "restarts that fall": (b"d", block((0, b"b", b"1"), (0, b"d", b"2"), restarts=(0, 5, 5))),
    "a restart behind the entries": (b"d", block((0, b"b", b"1"), restarts=(0, 5))),
    "a block of three bytes": (b"d", b"abc"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_block_is_malformed(name: str) -> None:
    with pytest.raises(MalformedCheckpoint, match=r"table block 0: .*offset"):
        entries_of(table(HOSTILE[name]))


def test_a_block_that_the_index_block_gives_other_keys_is_invalid() -> None:
    """A key would be listed and not found, or found in two blocks."""
    later = block((0, b"e", b"3"))
    for blocks in (
        [(b"c", GOOD)],
        [(b"d", GOOD), (b"e", GOOD)],
        [(b"d", GOOD), (b"x", later), (b"y", later)],
    ):
        with pytest.raises(InvalidCheckpoint, match=r"block [012]"):
            entries_of(table(*blocks))
    assert entries_of(table((b"d", GOOD), (b"e", later)))[-1] == (b"e", b"3")


def test_bytes_that_an_index_names_twice_do_not_multiply() -> None:
    """A small file must not make a large answer: a block comes once, and is no value of another."""
    inner = trailed(GOOD, 0)
    outer = block((0, b"a", inner))
    within = encode_varint(outer.index(inner)) + encode_varint(len(GOOD))
    whole = encode_varint(0) + encode_varint(len(outer))
    for again in (whole, within):
        data = indexed(trailed(outer, 0), (b"a", whole), (b"d", again))
        with pytest.raises(InvalidCheckpoint, match="block 1 begins at offset"):
            entries_of(data)
    assert entries_of(indexed(trailed(outer, 0), (b"d", within)))[0] == (b"b", b"1")


def test_an_index_block_far_away_is_malformed_before_it_is_read() -> None:
    handle = encode_varint(2**62) + encode_varint(2**62)
    data = bytes(100) + (b"\0\0" + handle).ljust(40, b"\0") + TABLE_MAGIC
    with pytest.raises(MalformedCheckpoint, match=f"offset {2**62}"):
        opened(data)
