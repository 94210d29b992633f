"""The native format: what goes in comes out, lies where the page says, and is found by reading
little. An index that is damaged or lies is always an error of the tree, soon, and never a wrong answer."""

import itertools
import os
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    ArgumentError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InconsistentTensor,
    InvalidCheckpoint,
    ShardvarError,
    UnsupportedError,
)
from shardvar.formats.native import FORMAT, PAYLOAD_ALIGNMENT
from shardvar.formats.native.index import RUN_NBYTES, Overview
from shardvar.formats.native.source import NativeSource
from shardvar.formats.protocol import FileChecksums
from shardvar.layout.dtypes import NAMES, STRING, numpy_dtype
from shardvar.layout.region import Region
from shardvar.limits import MAX_NAMES
from shardvar.planning.index import EntryTable, Metadata
from shardvar.storage.local import LocalStorage
from shardvar.storage.posix import LocalReadableFile
from shardvar.wire.block_file import (
    decode_index_block,
    encode_index_block,
    open_block_file,
    pack_strings,
)
from shardvar.wire.crc import CRC32C
from spec_tests.helpers import native_checkpoints
from spec_tests.helpers.damage import flip
from spec_tests.helpers.format_protocol import read_payload
from spec_tests.helpers.native_checkpoints import (
    Piece,
    assignment_of,
    hand_made,
    place,
    whole,
    write,
)
from spec_tests.hostile.native import u32, u64

FIXED = NAMES[: NAMES.index(STRING)]
KEYS = st.text(
    st.characters(codec="utf-8") | st.sampled_from("/\0é\U0001f600\ue000"), max_size=6
) | st.binary(max_size=4).map(lambda octets: octets.decode("utf-8", "surrogateescape"))


@st.composite
def cuts(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Region]:
    """Regions that tile a shape as a grid, in any order; some may have no element."""
    axes = []
    for extent in shape:
        points = sorted(draw(st.lists(st.integers(0, extent), max_size=2)))
        axes.append(list(itertools.pairwise([0, *points, extent])))
    cells = [
        Region([a for a, _ in cell], [b - a for a, b in cell]) for cell in itertools.product(*axes)
    ]
    return draw(st.permutations(cells))


@st.composite
def tensors(draw: st.DrawFn, key: str) -> list[Piece]:
    """The slices of one tensor, whose elements are any bytes."""
    dtype = draw(st.sampled_from([*FIXED, STRING]))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    count = int(np.prod(shape, dtype=np.int64))
    file = st.integers(0, 2)
    if dtype == STRING:
        elements = draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
        array = np.empty(count, object)
        array[:] = elements
        return [whole(key, array.reshape(shape), STRING, draw(file))]
    size = numpy_dtype(dtype).itemsize
    octets = draw(st.binary(min_size=count * size, max_size=count * size))
    array = np.frombuffer(octets, np.dtype((np.void, size))).reshape(shape)
    return [
        Piece(key, dtype, shape, region, array[region.slices].tobytes(), draw(file))
        for region in draw(cuts(shape))
    ]


@st.composite
def checkpoints(draw: st.DrawFn) -> list[Piece]:
    """All slices of some tensors, in any order."""
    keys = draw(st.lists(KEYS, unique=True, max_size=5))
    return draw(st.permutations([piece for key in keys for piece in draw(tensors(key))]))


def pieces_of(source: NativeSource, entries: EntryTable) -> Iterator[Piece]:
    """The entries with their payloads, each checked against its checksum and those of its runs."""
    for row in range(len(entries)):
        each, payload = entries.slices[row], read_payload(source, entries, row)
        about = each.key, each.dtype, each.full_shape, each.region
        yield Piece(*about, payload, int(entries.file[row]))


def stored_order(pieces: list[Piece]) -> list[Piece]:
    def order(piece: Piece) -> Any:
        return piece.key.encode("utf-8", "surrogateescape"), piece.region.offset, piece.region.shape

    return sorted(pieces, key=order)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("native")


@given(pieces=checkpoints())
def test_what_was_written_is_read(scratch: Path, pieces: list[Piece]) -> None:
    """Scanned, found key by key, or read by the book: the same slices, in the order of keys and
    offsets."""
    write(scratch, "ck", pieces, files=3)
    source = FORMAT.open(LocalStorage(str(scratch)), "ck")
    expected = stored_order(pieces)
    found = [piece for table in source.index.scan() for piece in pieces_of(source, table)]
    assert found == expected
    for key in {piece.key for piece in pieces}:
        wanted = [piece for piece in expected if piece.key == key]
        assert list(pieces_of(source, source.index.find(key))) == wanted
        assert key not in source.index.faults
    assert not source.index.faults and not source.findings()
    by_the_book = [
        (key, dtype, shape, Region(*region), payload)
        for key, (dtype, shape, slices) in native_checkpoints.book()["read"](scratch / "ck").items()
        for *region, payload in slices
    ]
    assert by_the_book == [(p.key, p.dtype, p.shape, p.region, p.payload) for p in expected]
    source.close()


def test_metadata_is_kept(tmp_path: Path) -> None:
    user = {"": "empty", "naïve": "\U0001f600", "bytes \udcff": "x" * 100_000}
    write(tmp_path, "ck", [], metadata=Metadata("a policy", "a writer", user))
    write(tmp_path, "policy", [], metadata=Metadata())
    found, other = (
        FORMAT.open(LocalStorage(str(tmp_path)), name).index.metadata for name in ("ck", "policy")
    )
    assert found == Metadata("a policy", "a writer", dict(sorted(user.items())), generation="g1")
    assert other.description == "by hand"


def long_key(number: int) -> str:
    return f"{number:05d}" + "x" * 2000


@pytest.mark.parametrize(
    "counts", [[1, 20_000, 1], [20_000], [5_000, 5_000, 5_000, 5_000], [1] * 3 + [9_000] + [1] * 3]
)
def test_tensors_go_on_over_blocks(tmp_path: Path, counts: list[int]) -> None:
    """However many entries a tensor has, one table has all of them, found or scanned, and no block
    is large."""
    pieces = [
        Piece(long_key(number), "uint8", (count,), Region((row,), (1,)), bytes([row % 251]))
        for number, count in enumerate(counts)
        for row in range(count)
    ]
    write(tmp_path, "ck", pieces)
    source = FORMAT.open(LocalStorage(str(tmp_path)), "ck")
    blocks = source.index.blocks
    assert len(blocks) > 1 and int(blocks.nbytes.max()) <= 256 << 10
    tables = list(source.index.scan())
    assert [key for table in tables for key in table.slices.tensors.keys] == [
        long_key(n) for n in range(len(counts))
    ]
    assert sum(map(len, tables)) == len(pieces) and not source.index.faults
    for number, count in enumerate(counts):
        found = source.index.find(long_key(number))
        assert found.slices.offset[:, 0].tolist() == list(
            range(count)
        ) and found.slices.tensors.keys == [long_key(number)]
        assert found.checksum[count - 1] == CRC32C.compute(bytes([(count - 1) % 251]))


def test_a_hole_in_a_tensor_over_many_blocks_is_found(tmp_path: Path) -> None:
    """Faults are those of all blocks of a tensor together, asked for one by one or all at once."""
    rows = [row for row in range(20_000) if row != 12_345]
    pieces = [Piece("t", "uint8", (20_000,), Region((row,), (1,)), b"x") for row in rows]
    write(tmp_path, "ck", [whole("a", [1]), *pieces, whole("z", [1])])
    faults = FORMAT.open(LocalStorage(str(tmp_path)), "ck").index.faults
    assert list(faults) == ["t"] and len(faults) == 1
    assert "t" in faults and "a" not in faults and "absent" not in faults


def test_a_long_payload_has_a_block_of_its_own(tmp_path: Path) -> None:
    """The runs of a payload may need more than a block has; no block with other entries grows for
    it."""
    nbytes = (70_000 * RUN_NBYTES) + 1
    piece = Piece("long", "uint8", (nbytes,), Region((0,), (nbytes,)), b"")
    assignment = assignment_of([whole("a", [1]), piece, whole("z", [1])])
    storage = LocalStorage(str(tmp_path))
    sink = FORMAT.create(storage, "ck", assignment, Metadata(), "g")
    runs = np.arange(70_003, dtype=np.uint32)
    sink.commit([FileChecksums(np.zeros(3, np.int64), runs)])
    entries = FORMAT.open(storage, "ck").index.find("long")
    assert entries.runs is not None and entries.runs.of(0, nbytes).tolist() == list(
        range(1, 70_002)
    )
    assert [int(n) > 256 << 10 for n in FORMAT.open(storage, "ck").index.blocks.nbytes] == [
        False,
        True,
        False,
    ]


def test_one_key_of_many_is_found_by_reading_few_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100,000 keys one is found in the index's end and two blocks of 256 KiB; no data file is
    read."""
    count, storage = 100_000, LocalStorage(str(tmp_path))
    pieces = [
        Piece(f"layer/{row:06d}/w", "int8", (1,), Region((0,), (1,)), b"") for row in range(count)
    ]
    sink = FORMAT.create(storage, "ck", assignment_of(pieces), Metadata(), "g")
    (tmp_path / sink.asides[0]).write_bytes(bytes((count - 1) * PAYLOAD_ALIGNMENT + 1))
    payload, runs = np.zeros(count, np.int64), np.zeros(count, np.uint32)
    sink.commit([FileChecksums(payload, runs)])
    size, read = (tmp_path / "ck.svindex").stat().st_size, LocalReadableFile.read
    counts = Counter[str]()

    def counted(file: LocalReadableFile, start: int, nbytes: int) -> bytes:
        counts[os.path.basename(file.name)] += nbytes
        return read(file, start, nbytes)

    monkeypatch.setattr(LocalReadableFile, "read", counted)
    for key in ("layer/000000/w", "layer/054321/w", "layer/099999/w"):
        counts.clear()
        entries = FORMAT.open(storage, "ck").index.find(key)
        assert entries.slices.key(0) == key and len(entries) == 1
        assert counts.keys() == {"ck.svindex"}
        assert counts.total() < (64 << 10) + (512 << 10) + 100 < size // 4


def test_a_checkpoint_is_renamed_by_renaming_its_files(tmp_path: Path) -> None:
    write(tmp_path, "old", [whole("t", [1, 2])])
    for name in os.listdir(tmp_path):
        (tmp_path / name).rename(tmp_path / name.replace("old", "new"))
    source = FORMAT.open(LocalStorage(str(tmp_path)), "new")
    assert [piece.key for piece in pieces_of(source, source.index.find("t"))] == [
        "t"
    ] and not source.findings()


def test_a_commit_removes_what_no_index_names_and_nothing_else(tmp_path: Path) -> None:
    """Older generations, files of writers that died, journals; never another prefix's files or
    strange ones."""
    write(tmp_path, "ck", [whole("t", [1])], generation="g1")
    strange = ["ck.svdata-g1", "ck.svdata-g", "ck.txt", "ck2.svdata-g0-00000-of-00001"]
    strange += ["xck.svindex.g0.tmp"]
    data = ["ck.svdata-g0-00001-of-00002", "ck.svdata-g1-00000-of-00001.0123456789abcdef.tmp"]
    dead = ["ck.svdata-g0-00000-of-00002.done", *data, "ck.svindex.g0.tmp"]
    for name in [*strange, *dead]:
        (tmp_path / name).touch()
    source = FORMAT.open(LocalStorage(str(tmp_path)), "ck")
    assert sorted(finding.place for finding in source.findings()) == sorted(dead)
    assert not any(finding.is_damage for finding in source.findings())
    write(tmp_path, "ck", [whole("t", [2])], generation="g2")
    assert sorted(os.listdir(tmp_path)) == sorted(
        [*strange, "ck.svindex", "ck.svdata-g2-00000-of-00001"]
    )


def test_the_generation_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    """Files that an index names are never written: the same generation again gets another name, and
    back."""
    for expected in ("g", "gx", "g", "gx"):
        write(tmp_path, "ck", [whole("t", [1])], generation="g")
        assert sorted(os.listdir(tmp_path)) == [
            f"ck.svdata-{expected}-00000-of-00001",
            "ck.svindex",
        ]
    (tmp_path / "ck.svindex").write_bytes(b"no index")
    write(tmp_path, "ck", [whole("t", [1])], generation="g")
    assert "ck.svdata-g-00000-of-00001" in os.listdir(tmp_path)


def test_errors_name_the_key_and_the_file() -> None:
    source = FORMAT.open(LocalStorage(str(native_checkpoints.GOLDEN / "bad_data_cut")), "ck")
    entries = source.index.find("t")
    with pytest.raises(
        Exception, match="'t'.*ck.svdata-a1-00000-of-00002 has 71 bytes, but the index says 72"
    ):
        raise source.index.faults["t"]
    assert [*source.file_faults()] == ["ck.svdata-a1-00000-of-00002"]
    with pytest.raises(IncompleteCheckpoint, match="'t'.*ends before the 1 bytes at offset 71"):
        source.read_into(entries, 0, 71 - int(entries.start[0]), memoryview(bytearray(1)))
    source.read_into(entries, 0, 0, memoryview(bytearray(0)))  # no byte of it is needed


def test_what_cannot_be_held_is_refused(tmp_path: Path) -> None:
    """Before a byte is written, with the key."""
    storage = LocalStorage(str(tmp_path))

    def create(*pieces: Piece, files: int | None = None, generation: str = "g") -> None:
        FORMAT.create(storage, "ck", assignment_of(pieces, files), Metadata(), generation)

    huge = 1 << 42
    with pytest.raises(UnsupportedError, match=f"'t' has {huge} bytes"):
        create(Piece("t", "int8", (huge,), Region((0,), (huge,)), b""))
    with pytest.raises(UnsupportedError, match="65536 bytes"):
        create(whole("x" * (1 << 16), [1]))
    with pytest.raises(UnsupportedError, match="'s' is cut"):
        create(Piece("s", STRING, (2,), Region((0,), (1,)), b"12345"), whole("t", [1]))
    with pytest.raises(UnsupportedError, match="100000 files"):
        create(whole("t", [1]), files=100_000)
    with pytest.raises(ArgumentError, match="not valid Unicode"):
        create(whole("\ud800", [1]))
    with pytest.raises(UnsupportedError, match="valid UTF-8"):
        create(whole("\udcc3\udca9", [1]))
    for generation in ("", "a/b", "..", "é", "x" * 64):
        with pytest.raises(ArgumentError, match="generation"):
            create(generation=generation)
    with pytest.raises(ArgumentError, match="runs"):
        pieces = [whole("t", np.zeros(RUN_NBYTES + 1, np.uint8))]
        sink = FORMAT.create(storage, "ck", assignment_of(pieces), Metadata(), "g")
        sink.commit([FileChecksums(np.zeros(1, np.int64), np.zeros(1, np.uint32))])
    assert os.listdir(tmp_path) == []


def test_a_corrupt_block_leaves_the_others_readable(tmp_path: Path) -> None:
    """Blocks are checked one by one: keys of other blocks are found, those of this one raise, and
    so does a scan."""
    write(tmp_path, "ck", [whole(long_key(number), [number]) for number in range(400)])
    flip(tmp_path / "ck.svindex", 1000)
    index = FORMAT.open(LocalStorage(str(tmp_path)), "ck").index
    assert len(index.find(long_key(399))) == 1
    with pytest.raises(CorruptCheckpoint, match="ck.svindex: index block 0 at offset 8"):
        index.find(long_key(0))
    assert isinstance(index.faults[long_key(0)], CorruptCheckpoint)
    with pytest.raises(CorruptCheckpoint):
        list(index.scan())


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
