"""Files of index blocks: what was written is read, no byte may change, and what a block or a table
cannot say is refused in words."""

import struct
from bisect import bisect_left
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    ArgumentError,
    CorruptCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    ShardvarError,
)
from shardvar.limits import MAX_BLOCK_NBYTES, MAX_TABLE_NBYTES
from shardvar.wire import block_file as codec
from shardvar.wire.block_file import (
    BlockFile,
    IndexBlock,
    decode_index_block,
    encode_block_file,
    encode_index_block,
    open_block_file,
    pack_strings,
)
from shardvar.wire.crc import CRC32C
from spec_tests.helpers.native_checkpoints import GOLDEN
from spec_tests.helpers.octets import reads_of
from spec_tests.hostile.native import u32

TINY = (GOLDEN / "tiny" / "ck.svindex").read_bytes()


def opened(index: bytes) -> BlockFile:
    return open_block_file(reads_of(index), len(index))


def contents_of(index: bytes) -> Any:
    """Everything that an index says; raises what opening and reading raise."""
    blocks = opened(index)
    return blocks.metadata.values, [blocks.block(number).values for number in range(len(blocks))]


def test_every_flipped_bit_of_an_index_is_found() -> None:
    """There is no byte that no checksum and no constant guards."""
    for bit in range(8 * len(TINY)):
        damaged = bytearray(TINY)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            contents_of(bytes(damaged))
        except (CorruptCheckpoint, MalformedCheckpoint):
            continue
        pytest.fail(f"Bit {bit % 8} of byte {bit // 8} may be flipped.")


def test_every_truncation_of_an_index_is_found() -> None:
    """At every length, from the front as from the back, and with bytes added."""
    for length in range(len(TINY)):
        for part in (TINY[:length], TINY[length + 1 :]):
            with pytest.raises(MalformedCheckpoint):
                contents_of(part)
    with pytest.raises(MalformedCheckpoint):
        contents_of(TINY + b"\0")


KEYS = st.lists(st.sampled_from([b"a", b"b", b"c", b"dd"]), max_size=4).map(sorted)


@given(
    KEYS,
    st.lists(st.binary(max_size=40), min_size=4),
    st.integers(1, 200),
    st.sampled_from([1, 3, 4]),
)
def test_blocks_are_read_back_by_number_and_found_by_key(
    keys: list[bytes], values: list[bytes], tail: int, version: int
) -> None:
    """However little of the end is read at first, and only once where it is enough."""
    blocks = [
        (key, encode_index_block({"v": value})) for key, value in zip(keys, values, strict=False)
    ]
    metadata = encode_index_block({"m": values[0]})
    index = b"".join(encode_block_file(blocks, metadata, version))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_TAIL_NBYTES", max(tail, 40))
        found = contents_of(index)
        file = opened(index)
    assert found == (
        {"m": values[0]},
        [{"v": value} for value, _ in zip(values, keys, strict=False)],
    )
    ends = [8 + sum(len(each) for _, each in blocks[:n]) for n in range(len(keys))]
    assert file.start.tolist() == ends and len(file) == len(keys)
    for key in (b"", b"a", b"ab", b"c", b"dd", b"z"):
        held = [
            n
            for n in range(len(keys))
            if keys[n] <= key and (n + 1 == len(keys) or keys[n + 1] >= key)
        ]
        assert [*file.numbers(key)] == (held or [*range(0, bisect_left(keys, key))])
    assert contents_of(b"".join(encode_block_file(blocks, metadata)))[0] == {"m": values[0]}


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_strings_are_packed_and_unpacked(strings: list[bytes]) -> None:
    block = decode_index_block(encode_index_block(pack_strings("s", strings)))
    assert block.strings("s") == block.strings("s", len(strings)) == strings
    assert block.bounds("s").tolist() == [
        sum(map(len, strings[:n])) for n in range(len(strings) + 1)
    ]
    assert block.numbers("s_nbytes", "<u4").tolist() == [*map(len, strings)]


def rewritten(**changes: Any) -> bytes:
    """A file of one block whose table or footer says something else."""
    block = encode_index_block({"v": 1})
    columns = {
        **pack_strings("first_key", [b"a"]),
        "nbytes": u32(len(block)),
        "crc": u32(CRC32C.compute(block)),
    }
    table = encode_index_block(
        columns | {name: each for name, each in changes.items() if name in columns}
    )
    metadata = encode_index_block({"m": 1})
    sizes = changes.get("metadata", len(metadata)), changes.get("table", len(table))
    crcs = (
        changes.get("metadata_crc", CRC32C.compute(metadata)),
        changes.get("table_crc", CRC32C.compute(table)),
    )
    footer = struct.pack("<QQIII", *sizes, *crcs, changes.get("version", 1))
    crc = u32(CRC32C.compute(footer) ^ changes.get("footer", 0))
    return b"".join(
        [
            codec.INDEX_HEADER,
            changes.get("block", block),
            metadata,
            table,
            footer,
            crc,
            codec.INDEX_MAGIC,
        ]
    )


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"footer": 1}, "The footer disagrees with its CRC32C."),
        ({"version": 2}, "The index has version 2; this release reads 1, 3 and 4."),
        ({"metadata": 90}, "Metadata of 90 bytes and a table of 60 are larger than the file."),
        ({"table_crc": 1}, "the table at offset 16: its CRC32C is not 00000001, as the footer says."),
        ({"metadata_crc": 1}, "the metadata at offset 12: its CRC32C is not 00000001, as the footer says."),
        ({"crc": u32(1)}, "index block 0 at offset 8: its CRC32C is not 00000001, as the table says."),
        ({"block": b""}, "the table at offset 12: The index blocks do not end at offset 8, where the metadata begins."),
        (
            {"nbytes": u32(MAX_BLOCK_NBYTES + 1)},
            f"the table at offset 16: An index block has {MAX_BLOCK_NBYTES + 1} bytes; at most {MAX_BLOCK_NBYTES} are "
            "allowed.",
        ),
        ({"crc": u32(1, 2)}, "the table at offset 16: 'crc' has 8 bytes, not 1 numbers of 4."),
        ({"nbytes": b"123"}, "the table at offset 16: 'nbytes' has 3 bytes, not whole numbers of 4."),
        ({"first_key": b"ab"}, "the table at offset 16: 'first_key' has 2 bytes; its strings have 1."),
        ({"first_key": 7}, "the table at offset 16: 'first_key' is of type int where bytes is expected."),
    ],
)  # fmt: skip
def test_each_fault_of_a_file_in_words(changes: dict[str, Any], cause: str) -> None:
    assert contents_of(rewritten()) == ({"m": 1}, [{"v": 1}])
    with pytest.raises(ShardvarError) as caught:
        contents_of(rewritten(**changes))
    assert caught.value.cause == cause


def test_sections_are_bounded_and_first_keys_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    block = encode_index_block({"v": 1})
    index = b"".join(encode_block_file([(b"b", block), (b"a", block)], encode_index_block({})))
    with pytest.raises(InvalidCheckpoint, match="first keys do not rise"):
        opened(index)
    for name, most, size in (("TABLE", MAX_TABLE_NBYTES, 60), ("BLOCK", MAX_BLOCK_NBYTES, 4)):
        monkeypatch.setattr(codec, f"MAX_{name}_NBYTES", size)
        opened(rewritten())
        monkeypatch.setattr(codec, f"MAX_{name}_NBYTES", size - 1)
        with pytest.raises(
            InvalidCheckpoint, match=f"it has {size} bytes; at most {size - 1} are allowed"
        ):
            opened(rewritten())
        monkeypatch.setattr(codec, f"MAX_{name}_NBYTES", most)
    with pytest.raises(
        MalformedCheckpoint, match="It was cut short: it ends at offset 9, before its footer"
    ):
        opened(TINY[:9])
    with pytest.raises(ArgumentError, match="The index cannot be encoded"):
        encode_index_block({"v": "\ud800"})


@given(octets=st.binary(max_size=60) | st.binary(max_size=20).map(lambda tail: b"\x81\xa1a" + tail))
def test_any_bytes_are_a_block_or_malformed(octets: bytes) -> None:
    with suppress(MalformedCheckpoint, InvalidCheckpoint):
        assert isinstance(decode_index_block(octets), IndexBlock)


@pytest.mark.parametrize(
    "octets",
    [
        b"\x81\xa1a" * 1_000_000 + b"\xc0",
        b"\x91" * 1_000_000 + b"\xc0",
        b"\xdf\xff\xff\xff\xff",
        b"\xde\x00\x41" + b"".join(b"\xa1" + bytes([33 + n]) + b"\x00" for n in range(65)),
        b"\x81\xa1a\xdd\xff\xff\xff\xff",
        b"\x81\xa1a\x91\x01",
        b"\x81\xa1a\xc6\xff\xff\xff\xff",
        b"\x81\xa1a\xd6\xff\x00\x00\x00\x00",
        b"\x81\x01\x02",
        b"\x81\xa1\xff\x02",
        b"\x80\x80",
        b"\x90",
        b"\xc0",
        b"\xc1",
        b"",
    ],
    ids=lambda octets: octets[:6].hex() or "empty",
)
def test_msgpack_that_is_no_flat_map_is_malformed(octets: bytes) -> None:
    """Nested a million deep, longer than it is, with arrays, extensions, other keys, twice, or none
    at all."""
    with pytest.raises(MalformedCheckpoint):
        decode_index_block(octets)


def test_a_name_twice_is_invalid() -> None:
    """Which of two values another reader takes cannot be known."""
    with pytest.raises(InvalidCheckpoint, match="twice"):
        decode_index_block(b"\x82\xa1a\x01\xa1a\x02")


def test_values_are_of_the_type_that_is_asked_for() -> None:
    block = decode_index_block(
        encode_index_block({"i": 5, "t": "x", "b": b"12345", "s": b"abc", "s_nbytes": u32(1, 1)})
    )
    assert block.integer("i", 5) == 5 and block.text("t") == "x" and block.octets("b") == b"12345"
    for wrong in (
        lambda: block.integer("i", 4),
        lambda: block.integer("t", 5),
        lambda: block.text("b"),
        lambda: block.octets("t"),
        lambda: block.octets("absent"),
        lambda: block.numbers("b", "<u4"),
        lambda: block.numbers("b", "u1", 4),
        lambda: block.strings("s"),
        lambda: block.strings("t"),
    ):
        with pytest.raises(InvalidCheckpoint):
            wrong()
    for flag in (b"\xc3", b"\xff", b"\xcb" + bytes(8)):  # true, -1, a float
        with pytest.raises(InvalidCheckpoint):
            decode_index_block(b"\x81\xa1i" + flag).integer("i", 5)
