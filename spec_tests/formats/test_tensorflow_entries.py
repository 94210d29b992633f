"""The index's messages, and the laws that its entries must keep: made by hand, each breaking one. And
what is written is what TensorFlow would have written; an overwrite is never seen half done."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    CheckpointError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InconsistentTensor,
    InvalidCheckpoint,
    MalformedCheckpoint,
    OutOfBounds,
    ShardvarError,
    UnsupportedError,
)
from shardvar.formats.tensorflow import FORMAT
from shardvar.formats.tensorflow.contents import (
    CODES,
    DATA_NAME,
    ENUM_DTYPES,
    ENUMS,
    NO_ENTRY,
    BundleEntry,
    decode_bundle_entries,
    decode_entry,
    decode_header,
    encode_head,
    encode_header,
    encode_place,
    encode_slices,
    read_bundle,
    slice_key,
)
from shardvar.layout.dtypes import ITEMSIZES, NAMES, code
from shardvar.planning.index import Metadata
from shardvar.planning.slices import Assignment, TensorTable
from shardvar.storage.local import LocalStorage
from shardvar.wire.crc import CRC32C, mask
from shardvar.wire.protobuf import encode_bytes_field, encode_varint, encode_varint_field
from shardvar.wire.sstable import encode_table
from spec_tests.helpers.format_protocol import read_payload
from spec_tests.helpers.memory_format import MemoryStorage
from spec_tests.helpers.tensor_bundles import (
    GOLDEN,
    open_golden,
    read_tensor,
    write_arrays,
    write_payloads,
)

INT64 = st.integers(0, 2**63 - 1) | st.integers(0, 300) | st.sampled_from([-1, -(2**63)])
EXTENTS = st.lists(
    st.tuples(INT64, INT64.filter(lambda length: length != -1)) | st.just((0, -1)), max_size=3
).map(tuple)
ENTRIES = st.builds(
    BundleEntry,
    dtype=st.sampled_from(sorted(ENUM_DTYPES)),
    shape=st.lists(st.integers(0, 300), max_size=4).map(tuple),
    shard=st.integers(0, 2**31 - 1) | st.just(0),
    offset=INT64,
    size=INT64,
    crc=st.integers(0, 2**32 - 1),
    slices=st.just(()) | st.lists(EXTENTS, max_size=2).map(tuple),
)


def encode_entry(entry: BundleEntry) -> bytes:
    """Return a whole entry, its fields in ascending order."""
    place = encode_place(entry.shard, entry.offset, entry.size, entry.crc)
    return encode_head(entry.dtype, entry.shape) + place + encode_slices(entry.slices)


def both_ways(message: bytes) -> BundleEntry | None:
    entries, errors = decode_bundle_entries([message, message])
    try:
        expected = decode_entry(message)
    except CheckpointError as error:
        assert entries == [NO_ENTRY] * 2 and {type(e) for e in errors.values()} == {type(error)}
        return None
    assert entries == [expected, expected] and not errors
    return expected


@given(ENTRIES, st.data())
def test_reading_many_entries_is_reading_each(entry: BundleEntry, data: st.DataObject) -> None:
    """What was encoded is decoded, and the decoder by hand equals the general one on every message,
    damaged or not."""
    message = bytearray(encode_entry(entry))
    assert both_ways(bytes(message)) == entry
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    both_ways(bytes(message[: data.draw(st.integers(0, len(message)))]))
    both_ways(bytes(message))


def test_the_header_is_the_one_that_tensorflow_writes() -> None:
    assert encode_header(3).hex(" ") == "08 03 1a 02 08 01"
    assert decode_header(encode_header(3)).num_shards == 3


def test_bad_consumers_are_read_packed_and_one_by_one() -> None:
    for version in (encode_bytes_field(3, b"\x07\x01"), b"\x18\x07\x18\x01"):
        with pytest.raises(InvalidCheckpoint, match="any version but 1"):
            decode_header(encode_bytes_field(3, version))
    assert (
        decode_header(encode_varint_field(1, 1) + encode_bytes_field(3, b"\x18\x07")).num_shards
        == 1
    )


def test_every_dtype_of_tensorflow_has_a_name_here() -> None:
    """All but the handles of a running process; numbers and names are one to one."""
    assert sorted(ENUM_DTYPES) == [n for n in range(1, 34) if n != 20]
    assert len(ENUMS) == len(ENUM_DTYPES) and {NAMES[code] for code in CODES.values()} == set(ENUMS)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2**31, 2**31, 4), 1), ((0, 2**62, 2**62), 1), ((2**63 - 1,), 7), ((1,) * 65, 1), ((-1,), 1)],
)
def test_shapes_that_no_array_can_have_are_invalid(shape: tuple[int, ...], dtype: int) -> None:
    dims = b"".join(encode_bytes_field(2, b"\x08" + encode_varint(n)) for n in shape)
    with pytest.raises(InvalidCheckpoint):
        decode_entry(encode_varint_field(1, dtype) + encode_bytes_field(2, dims))


# --- the laws of entries


def bundle(
    entries: Mapping[bytes, BundleEntry | bytes],
    data: bytes = bytes(64),
    header: bytes | None = None,
) -> MemoryStorage:
    """A checkpoint of one data file of 64 zeros, with these entries."""
    encoded = {
        key: entry if isinstance(entry, bytes) else encode_entry(entry)
        for key, entry in entries.items()
    }
    index = encode_table(
        [(b"", encode_header(1) if header is None else header), *sorted(encoded.items())]
    )
    files = {"ck.index": bytearray(index), "ck.data-00000-of-00001": bytearray(data)}
    return MemoryStorage(files)


def zeros(shape: tuple[int, ...], offset: int = 0, **changes: Any) -> BundleEntry:
    """The entry of a float32 tensor of zeros."""
    nbytes = 4 * int(np.prod(shape))
    return BundleEntry(1, shape, 0, offset, nbytes, mask(CRC32C.compute(bytes(nbytes))))._replace(
        **changes
    )


def sliced(*slices: tuple[tuple[int, int], ...], shape: tuple[int, ...] = (4, 3)) -> BundleEntry:
    return BundleEntry(1, shape, 0, 0, 0, 0, slices)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 60])
def test_strings_take_a_byte_each_and_four_for_their_checksum(count: int) -> None:
    """Fewer bytes are a fault of the entry that the index shows, also without reading the data."""
    least = count + 4 if count else 0
    for size in range(max(least - 6, 0), min(least + 3, 64)):
        entry = BundleEntry(ENUMS["string"], (count,), 0, 0, size, 0)
        faults = FORMAT.open(bundle({b"s": entry}), "ck").index.faults
        assert ("s" in faults) == (size < least), size
        if size < least:
            assert f"at least {least}" in faults["s"].cause


TOP, BOTTOM = ((0, 2), (0, -1)), ((2, 2), (0, 3))
HALVES = {
    b"t": sliced(TOP, BOTTOM),
    slice_key(b"t", TOP): zeros((2, 3)),
    slice_key(b"t", BOTTOM): zeros((2, 3), offset=24),
}


def test_slices_may_be_given_with_and_without_numbers() -> None:
    index = FORMAT.open(bundle(HALVES), "ck").index
    assert not index.faults
    assert [str(index.entries.slices.region(row)) for row in range(2)] == [
        "[0:2, 0:3]",
        "[2:4, 0:3]",
    ]


# Slices that overlap, leave a hole, or have another rank are golden (``test_tensorflow_read``).
def top(entry: BundleEntry | bytes) -> dict[bytes, Any]:
    return {slice_key(b"t", TOP): entry}


def listed(*extent: int) -> dict[bytes, Any]:
    """The tensor with one slice, of these rows."""
    return {b"t": sliced((extent, (0, 3)))}  # type: ignore[arg-type]


BROKEN: dict[str, tuple[dict[bytes, Any], type[CheckpointError]]] = {
    "listed and not stored": ({slice_key(b"t", BOTTOM): None}, IncompleteCheckpoint),
    "another dtype": (top(zeros((2, 3), dtype=3)), InconsistentTensor),
    "another shape": (top(zeros((3, 2))), InconsistentTensor),
    "slices of a slice": (top(zeros((2, 3), slices=(TOP,))), InconsistentTensor),
    "no message": (top(b"\xff"), MalformedCheckpoint),
    "below the tensor": (listed(-1, 2), OutOfBounds),
    "beyond the tensor": (listed(3, 2), OutOfBounds),
    "an end that overflows": (listed(2**63 - 1, 2**63 - 1), OutOfBounds),
    "a negative length": (listed(0, -2), OutOfBounds),
    "not listed": ({b"t": zeros((4, 3))}, InvalidCheckpoint),
    "another data file": (top(zeros((2, 3), shard=1)), InvalidCheckpoint),
    "data file -1": (top(zeros((2, 3), shard=-1)), InvalidCheckpoint),
    "over the end of the file": (top(zeros((2, 3), offset=41)), IncompleteCheckpoint),
    "far behind the file": (top(zeros((2, 3), offset=2**63 - 1)), OutOfBounds),
    "a negative size": (top(zeros((2, 3), size=-1)), InvalidCheckpoint),
}
"""What is wrong with a slice or its payload."""


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_tensor_that_breaks_a_law_is_a_fault_and_the_others_read(name: str) -> None:
    changes, error = BROKEN[name]
    entries = {
        key: entry
        for key, entry in {**HALVES, **changes, b"z": zeros((2,))}.items()
        if entry is not None
    }
    source = FORMAT.open(bundle(entries), "ck")
    assert {key: type(fault) for key, fault in source.index.faults.items()} == {"t": error}
    assert "'t'" in source.index.faults["t"].cause and source.index.faults["t"].remedy
    buffer = bytearray(b"\xff" * 8)
    source.read_into(source.index.find("z"), 0, 0, memoryview(buffer))
    assert buffer == bytes(8)


@pytest.mark.parametrize("name", [b"\x00odd", b"\xff\xfe/w"])
def test_a_name_that_is_no_slice_key_is_a_name_and_a_slice_without_a_tensor_is_a_fault(
    name: bytes,
) -> None:
    entries = {name: zeros((2,)), slice_key(b"gone\xff", TOP): zeros((2, 3))}
    index = FORMAT.open(bundle(entries), "ck").index
    assert list(index.entries.slices.tensors.keys) == [name.decode("utf-8", "surrogateescape")]
    assert {key: type(fault) for key, fault in index.faults.items()} == {
        "gone\udcff": InvalidCheckpoint
    }


def test_two_checksums_of_the_same_bytes_are_a_fault() -> None:
    """One of them is wrong. The same bytes under one checksum may have several names."""
    empty = BundleEntry(7, (), 0, 0, 5, mask(CRC32C.compute(bytes(8))))
    same = FORMAT.open(bundle({b"r": empty, b"s": empty}), "ck")
    other = FORMAT.open(bundle({b"r": empty, b"s": empty._replace(crc=1)}), "ck")
    assert not same.index.faults and {key: type(e) for key, e in other.index.faults.items()} == {
        "s": InvalidCheckpoint
    }


def test_entries_may_be_renamed_before_they_are_read() -> None:
    """What guards a payload hangs on its place, not on the name that the index gives it."""
    _, source = open_golden("bad_string_byte")
    entries = source.index.find("s")
    tensors = replace(entries.slices.tensors, keys=["other"] * len(entries.slices.tensors))
    renamed = replace(entries, slices=replace(entries.slices, tensors=tensors))
    with pytest.raises(CorruptCheckpoint, match="'other'"):
        source.read_into(renamed, 0, 0, memoryview(bytearray(int(entries.slices.nbytes[0]))))


def test_a_big_endian_variant_is_a_fault() -> None:
    """TensorFlow does not read it either; turned round unseen it would be carried wrong."""
    header = encode_varint_field(1, 1) + encode_varint_field(2, 1)
    source = FORMAT.open(bundle({b"v": BundleEntry(21, (1,), 0, 0, 9, 0)}, header=header), "ck")
    assert type(source.index.faults["v"]) is InvalidCheckpoint


@pytest.mark.parametrize(
    "dtype",
    ["float32", "complex64", "complex128", "qint16", "qint32", "int16", "bfloat16", "float64"],
)
def test_big_endian_elements_are_turned_round_and_checked(dtype: str) -> None:
    header = encode_varint_field(1, 1) + encode_varint_field(2, 1)
    data = bytes(range(64))
    size = int(ITEMSIZES[code(dtype)])
    unit = size // 2 if dtype.startswith("complex") else size
    entry = BundleEntry(ENUMS[dtype], (32 // size,), 0, 16, 32, mask(CRC32C.compute(data[16:48])))
    good = FORMAT.open(bundle({b"t": entry}, data, header), "ck")
    buffer = bytearray(32)
    good.read_into(good.index.find("t"), 0, 0, memoryview(buffer))
    assert buffer == b"".join(data[i : i + unit][::-1] for i in range(16, 48, unit))
    bad = FORMAT.open(bundle({b"t": entry._replace(crc=1)}, data, header), "ck")
    found = f"offset 16 have the checksum {CRC32C.compute(data[16:48]):08x}, but the index gives "
    with pytest.raises(CorruptCheckpoint, match=f"'t': .*{found}"):
        bad.read_into(bad.index.find("t"), 0, 0, memoryview(buffer))


@given(
    st.dictionaries(
        st.binary(min_size=1, max_size=6) | st.sampled_from(sorted(HALVES)), ENTRIES, max_size=5
    )
)
def test_any_entries_open_and_every_key_reads_or_is_a_fault(
    entries: dict[bytes, BundleEntry],
) -> None:
    source = FORMAT.open(bundle({**HALVES, **entries}), "ck")
    table = source.index.entries
    for row in range(len(table)):
        if table.slices.key(row) not in source.index.faults:
            nbytes = int(table.slices.nbytes[row])
            assert 0 <= nbytes <= 64
            try:
                source.read_into(table, row, 0, memoryview(bytearray(nbytes)))
            except CheckpointError as error:
                assert not table.plain[row] and error.remedy


OTHERWISE = {
    "slices_dash_unordered": "a slice of a whole axis is written in numbers",
    "slices_overlap": "a slice of a whole axis is written in numbers",
    "slices_with_hole": "a slice of a whole axis is written in numbers",
    "max_shard_half_unreadable": "float16 is not cut: TensorFlow could not put it together",
    "slices_of_strings": "strings are not cut: TensorFlow could not put them together",
    "v1_format_legacy": "another format",
}
RANK_8 = (1,) * 8
WRITTEN = sorted(
    path.name
    for path in GOLDEN.iterdir()
    if not path.name.startswith(("bad", "hand", "ok")) and path.name not in OTHERWISE
)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_entries_make_the_same_files_as_tensorflow_made(name: str, tmp_path: Path) -> None:
    """Index and data files, byte for byte."""
    _, source = open_golden(name)
    entries = source.index.entries
    numbers = [int(DATA_NAME.fullmatch(file)["number"]) for file in source.index.files]  # type: ignore[index]
    file = np.array(numbers, np.int64)[entries.file]
    order = np.lexsort((entries.slices.nbytes, entries.start, file))
    count = read_bundle(source.storage, source.prefix).header.num_shards
    assignment = Assignment(entries.slices.take(order), file[order], count)
    payloads = [read_payload(source, entries, row) for row in order.tolist()]
    write_payloads(LocalStorage(str(tmp_path)), source.prefix, assignment, payloads)
    theirs = {
        path.name: path.read_bytes()
        for path in Path(source.storage.path).glob(f"{source.prefix}.*")
    }
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == theirs


def test_an_open_bundle_keeps_its_values_while_it_is_overwritten(tmp_path: Path) -> None:
    """The second overwrite uses the names of the first files again: those that are open are still
    the old ones."""
    storage, cuts = LocalStorage(str(tmp_path)), {"t": [((0,), (2,), 0), ((2,), (2,), 1)]}
    write_arrays(storage, "ck", {"t": np.full((4,), 9, np.int32)}, cuts, 2, "g")
    source = FORMAT.open(storage, "ck")
    for round_ in range(3):
        write_arrays(storage, "ck", {"t": np.full((4,), round_, np.int32)}, cuts, 2, f"g{round_}")
        assert read_tensor(source, "t").tolist() == [9] * 4


@pytest.mark.parametrize(
    ("values", "cuts"),
    [
        ({"": np.zeros(1)}, {}),  # the header's name
        ({"\x00t": np.zeros(1)}, {}),  # a slice's name
        ({"\ud800": np.zeros(1)}, {}),
        ({"t": np.zeros(2, np.float16)}, {"t": [((0,), (1,), 0), ((1,), (1,), 0)]}),
        ({"t": np.zeros((2, *RANK_8))}, {"t": [((i, *[0] * 8), (1, *RANK_8), 0) for i in (0, 1)]}),
        ({"t": np.zeros(2)}, {"t": [((0,), (2,), 0), ((2,), (0,), 0)]}),  # an empty slice
        ({"t": np.zeros(2, ml_dtypes.float8_e8m0fnu)}, {}),  # a dtype of other frameworks
    ],
)
def test_what_tensorflow_could_not_read_is_refused_before_a_byte_is_written(
    values: Any, cuts: Any, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError):
        write_arrays(LocalStorage(str(tmp_path)), "ck", values, cuts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prefix", ["", "ck[1]", "back\\slash"])
def test_names_that_tensorflow_takes_for_patterns_are_refused(prefix: str, tmp_path: Path) -> None:
    nothing = TensorTable.of([]).whole()
    with pytest.raises(ShardvarError):
        FORMAT.create(
            LocalStorage(str(tmp_path)),
            prefix,
            Assignment(nothing, np.zeros(0, np.int64), 1),
            Metadata(),
            "g",
        )
