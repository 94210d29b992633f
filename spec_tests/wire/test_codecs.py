"""The small codecs: checksums, varints, protobuf's subset, ordered code, snappy. Each is a
bijection, or refuses."""

import zlib
from typing import Any

import crc32c
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardvar.errors import MalformedCheckpoint
from shardvar.wire import protobuf, sstable
from shardvar.wire.crc import CRC32, CRC32C, Checksum, crc_by_table, mask, unmask
from shardvar.wire.protobuf import decode_varint, decode_varints, encode_varint, encode_varints
from shardvar.wire.sstable import decompress_snappy

UINT64 = st.integers(0, 2**64 - 1) | st.sampled_from(
    [2**k + d for k in range(1, 64) for d in (-1, 0)]
)
INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [s * 2**k + d for k in range(63) for s in (1, -1) for d in (-1, 0)]
)
checksums = pytest.mark.parametrize("checksum", [CRC32C, CRC32], ids=lambda checksum: checksum.name)


# --- checksums


def test_the_check_values_of_both_checksums() -> None:
    """The catalogue of CRCs gives each the checksum of the nine digits."""
    assert CRC32C.compute(b"123456789") == 0xE3069283
    assert CRC32.compute(b"123456789") == 0xCBF43926


@checksums
@given(first=st.binary(), second=st.binary())
def test_combining_is_concatenation(checksum: Checksum, first: bytes, second: bytes) -> None:
    """combine(c(a), c(b), len(b)) == c(a + b) == c(b, c(a))."""
    whole = checksum.compute(first + second)
    assert checksum.combine(checksum.compute(first), checksum.compute(second), len(second)) == whole
    assert checksum.compute(second, checksum.compute(first)) == whole


@checksums
@given(
    pairs=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))),
    nbytes=st.integers(0, 2**40),
)
def test_pairs_are_combined_together_as_one_by_one(
    checksum: Checksum, pairs: list[tuple[int, int]], nbytes: int
) -> None:
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    combined = checksum.combine_each(first, second, nbytes)
    assert combined.tolist() == [checksum.combine(one, two, nbytes) for one, two in pairs]


@checksums
@given(
    nbytes=st.integers(0, 2**62),
    parts=st.lists(st.integers(0, 2**60), min_size=1, max_size=4),
    crc=st.integers(0, 2**32 - 1),
)
def test_combining_is_associative_at_any_length(
    checksum: Checksum, nbytes: int, parts: list[int], crc: int
) -> None:
    """Runs of zero bytes may be appended in one piece or in several; no bytes of that length are
    needed to show it."""
    one = checksum.combine(checksum.combine(crc, 0, nbytes), 0, sum(parts))
    for part in [nbytes, *parts]:
        crc = checksum.combine(crc, 0, part)
    assert one == crc


@given(data=st.binary(max_size=300), crc=st.integers(0, 2**32 - 1))
def test_the_table_of_small_payloads_gives_what_the_libraries_give(data: bytes, crc: int) -> None:
    assert crc_by_table(data, crc, CRC32.polynomial) == zlib.crc32(data, crc)
    assert crc_by_table(memoryview(data), crc, CRC32C.polynomial) == crc32c.crc32c(data, crc)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_masks_come_off_from_integers_and_arrays_alike(crcs: list[int]) -> None:
    masked = mask(np.array(crcs, np.uint32))
    assert masked.dtype == np.uint32 and masked.tolist() == [mask(crc) for crc in crcs]
    assert unmask(masked).tolist() == crcs == [unmask(mask(crc)) for crc in crcs]


def test_masked_samples() -> None:
    """TensorFlow stores 0xa282ead8 for a tensor without elements, and 0xb0a1f2c0 after its empty
    metaindex."""
    assert mask(0) == 0xA282EAD8
    assert mask(CRC32C.compute(bytes.fromhex("000000000100000000"))) == 0xB0A1F2C0


# --- varints


@given(st.lists(UINT64), st.binary())
def test_varints_of_an_array_are_the_varints_of_its_values(values: list[int], after: bytes) -> None:
    encoded = encode_varints(np.array(values, np.uint64))
    assert encoded == b"".join(map(encode_varint, values))
    decoded, stop = decode_varints(encoded + after, len(values))
    assert (decoded.tolist(), stop) == (values, len(encoded))


@given(
    st.binary(max_size=30)
    | st.lists(st.sampled_from([0x80, 0xFF, 0x01, 0x02]), max_size=30).map(bytes),
    st.integers(0, 4),
)
def test_an_array_of_varints_is_read_as_one_after_the_other(data: bytes, count: int) -> None:
    """The vectorised decoder gives what the plain one gives, or refuses where it refuses."""
    try:
        values, stop = [], 0
        for _ in range(count):
            value, stop = decode_varint(data, stop)
            values.append(value)
    except MalformedCheckpoint:
        with pytest.raises(MalformedCheckpoint):
            decode_varints(data, count)
    else:
        decoded, decoded_stop = decode_varints(data, count)
        assert (decoded.tolist(), decoded_stop) == (values, stop)


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02", b"\xff" * 10, b"\x80" * 1000]
)
def test_a_varint_that_does_not_end_or_passes_64_bits_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedCheckpoint, match="offset 0"):
        decode_varint(data, 0)


@pytest.mark.parametrize("tenth", range(256))
def test_the_tenth_byte_of_a_varint_has_one_bit(tenth: int) -> None:
    """64 bits are nine digits of seven, and one more: any other bit of the tenth byte is beyond
    them."""
    data = b"\x85" + b"\x80" * 8 + bytes([tenth]) + bytes(3)
    if tenth > 1:
        for decode in (lambda: decode_varint(data, 0), lambda: decode_varints(data, 2)):
            with pytest.raises(MalformedCheckpoint):
                decode()
    else:
        assert decode_varint(data, 0) == (5 + (tenth << 63), 10)
        assert decode_varints(data, 2)[0].tolist() == [5 + (tenth << 63), 0]


def test_a_varint_does_not_reach_over_its_stop() -> None:
    assert decode_varint(b"\x80\x01\x07", 0, 2) == (128, 2)
    with pytest.raises(MalformedCheckpoint, match="offset 0 runs over the end"):
        decode_varint(b"\x80\x01\x07", 0, 1)


# --- protobuf


FIELD_NUMBERS = st.integers(1, 2**29 - 1)
FIELDS = st.lists(
    st.tuples(FIELD_NUMBERS, st.just(protobuf.VARINT), st.integers(1, 2**64 - 1))
    | st.tuples(FIELD_NUMBERS, st.just(protobuf.FIXED32), st.integers(1, 2**32 - 1))
    | st.tuples(FIELD_NUMBERS, st.just(protobuf.BYTES), st.binary(max_size=200))
)
WRITERS: dict[int, Any] = {
    protobuf.VARINT: protobuf.encode_varint_field,
    protobuf.FIXED32: protobuf.encode_fixed32_field,
    protobuf.BYTES: protobuf.encode_bytes_field,
}


def spans_of(data: bytes, start: int, stop: int) -> list[tuple[int, Any]]:
    """The numbers and bytes that are found without copying."""
    return [
        (number, first if last < 0 else data[first:last])
        for number, first, last in protobuf.decode_spans(data, start, stop)
    ]


@given(FIELDS, st.binary(max_size=3), st.binary(max_size=3))
def test_fields_come_back_in_order_and_their_spans_without_fixed_words(
    fields: list[tuple[int, int, Any]], before: bytes, after: bytes
) -> None:
    """Wherever the message is, and whatever follows it."""
    message = b"".join(WRITERS[wire_type](number, value) for number, wire_type, value in fields)
    found = [(field.number, field.value) for field in protobuf.decode_fields(message)]
    assert found == [(number, value) for number, _, value in fields]
    expected = [
        (number, value)
        for number, wire_type, value in fields
        if wire_type in (protobuf.VARINT, protobuf.BYTES)
    ]
    assert spans_of(before + message + after, len(before), len(before) + len(message)) == expected


@given(
    st.binary(max_size=40)
    | st.lists(st.sampled_from(b"\0\1\x08\x0a\x0d\x09\x80\x81"), max_size=12).map(bytes)
)
def test_spans_of_any_bytes_are_the_fields_or_malformed(junk: bytes) -> None:
    try:
        fields = list(protobuf.decode_fields(junk))
    except MalformedCheckpoint:
        with pytest.raises(MalformedCheckpoint):
            spans_of(junk, 0, len(junk))
    else:
        # The lowest bits of a field's first byte are its encoding.
        others = (protobuf.FIXED64, protobuf.FIXED32)
        kept = [each for each in fields if junk[each.offset] & 7 not in others]
        assert spans_of(junk, 0, len(junk)) == [(each.number, each.value) for each in kept]


def test_a_zero_is_omitted_and_an_empty_message_is_not() -> None:
    assert protobuf.encode_varint_field(4, 0) == protobuf.encode_fixed32_field(6, 0) == b""
    assert protobuf.encode_bytes_field(2, b"") == b"\x12\x00"


@given(st.lists(INT64))
def test_repeated_numbers_are_read_packed_and_one_by_one(values: list[int]) -> None:
    packed = protobuf.encode_bytes_field(3, b"".join(map(encode_varint, values)))
    single = b"".join(b"\x18" + encode_varint(value) for value in values)
    assert [n for field in protobuf.decode_fields(packed) for n in field.int64s()] == values
    assert [n for field in protobuf.decode_fields(single) for n in field.int64s()] == values


def test_fixed64_is_passed_over_like_any_number() -> None:
    (field,) = protobuf.decode_fields(b"\x09" + (2**64 - 2).to_bytes(8, "little"))
    assert (field.number, field.uint(), field.int64()) == (1, 2**64 - 2, -2)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x0b\x0c", id="a group"),
        pytest.param(b"\x0b" * 100_000, id="a hundred thousand groups, nested"),
        pytest.param(b"\x0e\x01", id="wire type 6"),
        pytest.param(b"\x00\x01", id="field number 0"),
        pytest.param(b"\x80\x80\x80\x80\x10\x01", id="field number 2**29"),
        pytest.param(b"\x0a\x05abc", id="bytes that are not there"),
        pytest.param(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="2**64 - 1 bytes"),
        pytest.param(b"\x0d\x01\x02\x03", id="half a word"),
        pytest.param(b"\x08", id="a tag alone"),
    ],
)
def test_what_is_no_message_is_malformed(message: bytes) -> None:
    with pytest.raises(MalformedCheckpoint, match=r"offset [0125]"):
        list(protobuf.decode_fields(message))


def test_a_field_taken_for_another_type_is_malformed() -> None:
    number, text = protobuf.decode_fields(b"\x08\x05\x12\x01x")
    with pytest.raises(MalformedCheckpoint, match="Field 1 at offset 0 holds a number"):
        number.octets()
    with pytest.raises(MalformedCheckpoint, match="Field 2 at offset 2 holds bytes"):
        text.int64()


# --- ordered code


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [
        ("signed", 0, "80"),
        ("signed", 63, "bf"),
        ("signed", 64, "c040"),
        ("signed", 8191, "dfff"),
        ("signed", 8192, "e02000"),
        ("signed", 1048576, "f0100000"),
        ("signed", 2**27, "f808000000"),
        ("signed", 2**55, "ff8080000000000000"),
        ("signed", -1, "7f"),
        ("num", 0, "00"),
        ("num", 2, "0102"),
        ("num", 256, "020100"),
    ],
)
def test_numbers_have_the_codes_of_tensorflows_samples(kind: str, value: int, code: str) -> None:
    """A number may be followed by a zero."""
    encode, decode = (getattr(sstable, f"{verb}_{kind}") for verb in ("encode", "decode"))
    assert encode(value).hex() == code
    assert decode(bytes.fromhex(code) + b"\0", 0) == (value, len(code) // 2)


CODES = [
    (sstable.encode_num, sstable.decode_num, UINT64),
    (sstable.encode_signed, sstable.decode_signed, INT64),
    (
        sstable.encode_string,
        sstable.decode_string,
        st.binary() | st.lists(st.sampled_from([0, 1, 255])).map(bytes),
    ),
]
codes = pytest.mark.parametrize(
    ("encode", "decode", "values"), CODES, ids=["num", "signed", "string"]
)


@codes
@given(data=st.data(), before=st.binary(), after=st.binary())
def test_ordered_code_sorts_as_its_values_and_round_trips_whatever_surrounds_it(
    encode: Any, decode: Any, values: Any, data: st.DataObject, before: bytes, after: bytes
) -> None:
    first, second = data.draw(values), data.draw(values)
    assert (encode(first) < encode(second)) == (first < second)
    stop = len(before) + len(encode(first))
    assert decode(before + encode(first) + after, len(before)) == (first, stop)


@codes
@given(
    junk=st.binary(max_size=14)
    | st.lists(st.sampled_from([0, 1, 0x7F, 0x80, 0xC0, 255]), max_size=14).map(bytes)
)
@example(junk=b"\x01\x00")
def test_ordered_code_accepts_only_what_it_writes(
    encode: Any, decode: Any, values: Any, junk: bytes
) -> None:
    try:
        value, stop = decode(junk, 0)
    except MalformedCheckpoint as error:
        assert "offset 0" in error.cause
    else:
        assert encode(value) == junk[:stop]


# --- snappy


def copies(nbytes: int, distance: int) -> list[bytes]:
    """A copy element in each of the three forms that can say it."""
    forms = []
    if 4 <= nbytes <= 11 and distance < 2048:
        forms.append(bytes([1 | (nbytes - 4) << 2 | distance >> 8 << 5, distance & 0xFF]))
    if distance < 65536:
        forms.append(bytes([2 | (nbytes - 1) << 2]) + distance.to_bytes(2, "little"))
    return [*forms, bytes([3 | (nbytes - 1) << 2]) + distance.to_bytes(4, "little")]


def literal(data: bytes, width: int) -> bytes:
    """A literal whose length stands in its tag, or in ``width`` bytes after it."""
    size = len(data) - 1
    return (
        bytes([59 + width << 2]) + size.to_bytes(width, "little") if width else bytes([size << 2])
    ) + data


@st.composite
def snappy_streams(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A stream and what it gives, copied byte by byte."""
    stream, output = b"", bytearray()
    for _ in range(draw(st.integers(0, 6))):
        if output and draw(st.booleans()):
            nbytes, distance = draw(st.integers(1, 64)), draw(st.integers(1, len(output)))
            stream += draw(st.sampled_from(copies(nbytes, distance)))
            for _ in range(nbytes):
                output.append(output[-distance])
        else:
            data = draw(st.binary(min_size=1, max_size=60))
            stream += literal(data, draw(st.integers(0, 4)))
            output += data
    return encode_varint(len(output)) + stream, bytes(output)


@given(snappy_streams())
def test_snappy_repeats_byte_by_byte(sample: tuple[bytes, bytes]) -> None:
    """A copy that overlaps its own output repeats it, in each form of copies and literals."""
    stream, output = sample
    assert decompress_snappy(stream) == output


@pytest.mark.parametrize("distance", [1, 5, 255, 256, 2047, 2048])
def test_each_copy_of_snappy_in_each_form(distance: int) -> None:
    for nbytes in range(1, 65):
        before = bytes(range(256)) * 9
        whole = before + (before[-distance:] * nbytes)[:nbytes]
        for form in copies(nbytes, distance):
            stream = encode_varint(len(whole)) + literal(before, 2) + form
            assert decompress_snappy(stream) == whole


@given(snappy_streams(), st.data())
def test_a_damaged_snappy_stream_is_refused_or_keeps_its_length(
    sample: tuple[bytes, bytes], data: st.DataObject
) -> None:
    stream = bytearray(sample[0])
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert len(decompress_snappy(bytes(stream))) == decode_varint(stream, 0)[0]
    except MalformedCheckpoint as error:
        assert error.remedy


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(b"\xff\xff\xff\xff\x0f\x00a", id="four gigabytes from two bytes"),
        pytest.param(b"\x04\x01\x01", id="a copy before anything was put out"),
        pytest.param(b"\x08\x00a\x11\x00", id="a copy from distance 0"),
        pytest.param(b"\x05\x10ab", id="a literal that is not there"),
        pytest.param(b"\x01\x04ab", id="more than was claimed"),
        pytest.param(b"\x03\x00a", id="less than was claimed"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_hostile_snappy_is_malformed(stream: bytes) -> None:
    with pytest.raises(MalformedCheckpoint):
        decompress_snappy(stream)
