"""Native indexes that are damaged or lie: always an error of the tree, soon, and never a wrong
answer."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    InconsistentTensor,
    InvalidCheckpoint,
    ShardvarError,
)
from shardvar.formats.native import FORMAT
from shardvar.formats.native.index import Overview
from shardvar.formats.native.source import NativeSource
from shardvar.limits import MAX_NAMES
from shardvar.planning.index import Metadata
from shardvar.storage.local import LocalStorage
from shardvar.wire.block_file import (
    decode_index_block,
    encode_index_block,
    open_block_file,
    pack_strings,
)
from spec_tests.helpers.native_checkpoints import hand_made, place
from spec_tests.hostile.native import u32, u64


def opened(directory: Path) -> NativeSource:
    return FORMAT.open(LocalStorage(str(directory)), "ck")


@given(data=st.data())
def test_changed_values_with_right_checksums_never_escape_the_tree(
    tmp_path_factory: Any, data: st.DataObject
) -> None:
    """Whatever a block says, it is read, or refused with an error of the tree, in bounded
    memory."""
    directory = tmp_path_factory.mktemp("h")
    name = data.draw(st.sampled_from(sorted(decode_index_block(hand_block()).values)))
    value = data.draw(
        st.none()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.text(max_size=3)
        | st.binary(max_size=40)
        | st.lists(
            st.sampled_from([0, 1, 2, 4, 255, 1 << 31, 1 << 62, (1 << 64) - 1]), max_size=3
        ).map(lambda n: u64(*n))
    )
    place(directory, hand_made({name: value}))
    try:
        source = opened(directory)
        for table in source.index.scan():
            for row in range(len(table)):
                buffer = bytearray(
                    int(table.slices.nbytes[row]) if table.slices.nbytes[row] < 100 else 0
                )
                source.read_into(table, row, 0, memoryview(buffer))
        dict(source.index.faults)
    except ShardvarError:
        pass


def hand_block() -> bytes:
    index = hand_made()
    blocks = open_block_file(lambda start, nbytes: index[start : start + nbytes], len(index))
    return blocks.read(int(blocks.start[0]), int(blocks.nbytes[0]))


HUGE = 1 << 60
COLUMNS = "key key_nbytes dtype rank shape count offset extent file start nbytes crc"
LIES: dict[str, dict[str, Any]] = {
    "no entries": dict.fromkeys(COLUMNS.split(), b""),
    "a key longer than the keys": {"key_nbytes": u32(1 << 31)},
    "lengths that are no numbers": {"key_nbytes": b"\1\0\0"},
    "more dtypes than names": {"dtype": b"\1"},
    "more axes than NumPy has": {"rank": b"\x41"},
    "another rank than extents": {"rank": b"\2"},
    "more entries than rows": {"count": u32(2)},
    "billions of entries": {"count": u32(0xFFFFFFFF)},
    "none of its own": {"count": u32(0)},
    "a column that is too short": {"crc": b""},
    "a column that is missing": {"start": None},
    "a column that is a text": {"start": "12345678"},
    "runs that are not there": {"nbytes": u64(HUGE)},
    "runs whose number overflows": {"nbytes": u64((1 << 64) - 1)},
    "runs too many": {"run_crc": u32(1, 2)},
    "digests of another number": {"digest": bytes(64)},
    "a digest that is too short": {"digest": bytes(31)},
    "a digest that is a text": {"digest": "0" * 32},
}


@pytest.mark.parametrize("lie", LIES)
def test_columns_that_disagree_are_invalid(tmp_path: Path, lie: str) -> None:
    place(tmp_path, hand_made(LIES[lie]))
    source = opened(tmp_path)
    for ask in (
        lambda: source.index.find("t"),
        lambda: list(source.index.scan()),
        lambda: dict(source.index.faults),
    ):
        with pytest.raises(InvalidCheckpoint, match="ck.svindex: index block 0 at offset 8"):
            ask()


def test_keys_must_rise(tmp_path: Path) -> None:
    """Twice the same, falling, or in the order of characters where that of bytes differs."""
    one = decode_index_block(hand_block()).values
    two = {name: 2 * one[name] for name in COLUMNS.split()[2:]}
    for keys in (
        [b"b", b"a"],
        [b"a", b"a"],
        [b"\xf0\x90\x80\x80", b"\xff"],
        [b"\xff", b"\xf0\x90\x80\x80"],
    ):
        place(tmp_path, hand_made(two | pack_strings("key", keys)))
        if keys == sorted(set(keys)):
            assert len(next(opened(tmp_path).index.scan())) == 2
            continue
        with pytest.raises(InvalidCheckpoint, match="do not rise"):
            list(opened(tmp_path).index.scan())


def named(dtype: str) -> dict[str, Any]:
    return pack_strings("dtype_name", [dtype.encode()])


@pytest.mark.parametrize(
    "changes",
    [
        named("int64") | {"shape": u64(HUGE), "extent": u64(HUGE)},
        {"shape": u64(1 << 63)},
        {"extent": u64(1 << 63)},
        {"offset": u64((1 << 64) - 1)},
        {
            "rank": b"\3",
            "shape": u64(*[1 << 31] * 3),
            "offset": u64(0, 0, 0),
            "extent": u64(1, 2, 2),
        },
        named("string") | {"shape": u64(HUGE), "extent": u64(HUGE)},
        named("string") | {"shape": u64(5)},
        named("qint32"),
        {"start": u64((1 << 64) - 4)},
        {"file": u32(0xFFFFFFFF)},
        {"dtype_name": b"\xff\0'x"},
    ],
    ids="+".join,
)
def test_a_tensor_that_makes_no_sense_is_that_tensors_fault(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """It is in no table, reading it raises, and nothing is allocated for what it claims."""
    place(tmp_path, hand_made(changes))
    tracemalloc.start()
    source = opened(tmp_path)
    assert list(source.index.scan()) == []
    assert list(source.index.faults) == ["t"] and isinstance(
        source.index.faults["t"], InvalidCheckpoint
    )
    with pytest.raises(InvalidCheckpoint, match="'t'"):
        source.index.find("t")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def blocks_of(*changes: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    base = decode_index_block(hand_block()).values
    return [
        (block["key"], encode_index_block(block))
        for block in ({**base, **change} for change in changes)
    ]


def two_keys(first: bytes, last: bytes) -> bytes:
    """A block of two tensors without elements, with these keys."""
    zeros, ones = u64(0, 0), u32(1, 1)
    columns = {**pack_strings("key", [first, last]), "count": ones, "file": u32(0, 0)}
    columns |= dict.fromkeys(("shape", "offset", "extent", "start", "nbytes"), zeros)
    columns |= {"dtype": np.zeros(2, "u1"), "rank": np.ones(2, "u1"), "crc": u32(0, 0)}
    return encode_index_block({**decode_index_block(hand_block()).values, **columns})


def test_blocks_must_be_as_the_table_says(tmp_path: Path) -> None:
    """First keys that fall, that are not the blocks', or a block that reaches into the next one's
    keys."""
    a, b, c = blocks_of({"key": b"a"}, {"key": b"b"}, {"key": b"c"})
    for blocks, message in (
        ([b, a], "do not rise"),
        ([a, (b"b", c[1])], "not the keys in the table"),
        ([a, (b"a", b[1])], "not the keys in the table"),
        ([(b"a", b[1]), b], "not the keys in the table"),
        # The first key is right, and the last one would never be found: it is beyond the next
        # block's first key.
        ([(b"a", two_keys(b"a", b"c")), b], "not the keys in the table"),
    ):
        place(tmp_path, hand_made(blocks=blocks))
        with pytest.raises(InvalidCheckpoint, match=message):
            list(opened(tmp_path).index.scan())


def test_a_tensor_over_two_blocks_must_be_one_tensor(tmp_path: Path) -> None:
    place(tmp_path, hand_made(blocks=blocks_of({"extent": u64(4)}, {"shape": u64(9)})))
    index = opened(tmp_path).index
    for ask in (lambda: index.find("t"), lambda: list(index.scan())):
        with pytest.raises(InconsistentTensor):
            ask()
    assert isinstance(index.faults["t"], InconsistentTensor)


def test_large_blocks_hold_one_entry(tmp_path: Path) -> None:
    """A mebibyte of tiny rows of rank 64 would be a hundred times that in memory: it is refused by
    its size."""
    place(tmp_path, hand_made(blocks=blocks_of({"padding": bytes(1 << 20)})))
    assert len(opened(tmp_path).index.find("t")) == 1
    place(tmp_path, hand_made(blocks=blocks_of({"padding": bytes(1 << 20), "file": u32(0, 0)})))
    with pytest.raises(InvalidCheckpoint, match="2 entries share a block"):
        opened(tmp_path).index.find("t")


def test_names_that_nobody_knows_are_ignored(tmp_path: Path) -> None:
    """A later writer of this version may say more, up to 64 names."""
    more = {
        f"more{number}": number
        for number in range(MAX_NAMES - len(decode_index_block(hand_block()).values))
    }
    place(tmp_path, hand_made(more))
    assert len(opened(tmp_path).index.find("t")) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": ""},
        {"generation": "../../x"},
        {"generation": "a\0"},
        {"generation": "x" * 65},
        {"generation": "a\n"},
        {"generation": b"g1"},
        {"run_nbytes": 0},
        {"run_nbytes": -1},
        {"run_nbytes": 1 << 31},
        {"file_nbytes": u64((1 << 64) - 1)},
        {"file_nbytes": b"1234567"},
        {"file_nbytes": bytes(8 * 100_000)},
        {"user_name_nbytes": u32(1)},
        {"user_name": b"a", "user_name_nbytes": u32(1)},
        {"description": None},
    ],
    ids=lambda changes: "=".join(str(part)[:12] for part in next(iter(changes.items()))),
)
def test_metadata_that_makes_no_sense_is_invalid(tmp_path: Path, changes: dict[str, Any]) -> None:
    base = decode_index_block(Overview(Metadata(), "g1", np.array([4])).encode()).values
    values = {name: value for name, value in {**base, **changes}.items() if value is not None}
    place(tmp_path, hand_made(metadata=encode_index_block(values)))
    with pytest.raises(InvalidCheckpoint, match="ck.svindex"):
        opened(tmp_path)
