"""The payload of a string tensor, held to the bytes that TensorFlow wrote and to a plain twin."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    CorruptCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
)
from shardvar.wire import strings
from shardvar.wire.crc import CRC32C, mask
from shardvar.wire.protobuf import encode_varint
from spec_tests.helpers import paths

GOLDEN = paths.GOLDEN / "tensorflow"
ELEMENTS = st.lists(
    st.binary(max_size=200) | st.just(b"") | st.binary(min_size=128, max_size=128), max_size=6
)


def array(elements: list[bytes]) -> Any:
    strings_ = np.empty(len(elements), object)
    strings_[:] = elements
    return strings_


def plain(elements: list[bytes], byteorder: str = "<") -> tuple[bytes, int]:
    """The payload and its checksum, from the definition."""
    lengths = b"".join(struct.pack(byteorder + "I", len(element)) for element in elements)
    word = struct.pack(byteorder + "I", mask(CRC32C.compute(lengths)))
    payload = (
        b"".join(encode_varint(len(element)) for element in elements) + word + b"".join(elements)
    )
    return payload, CRC32C.compute(lengths + word + b"".join(elements))


@given(ELEMENTS)
def test_strings_round_trip_and_are_what_the_definition_says(elements: list[bytes]) -> None:
    payload, checksum = plain(elements)
    assert strings.encode(array(elements)) == payload
    assert strings.decode(payload, (len(elements),)).tolist() == elements
    assert strings.bundle_checksum(payload, len(elements)) == checksum
    big, checksum = plain(elements, ">")
    assert strings.bundle_checksum(big, len(elements), ">") == checksum
    assert strings.from_big_endian(big, len(elements)) == payload


def test_samples_of_tensorflow() -> None:
    assert strings.encode(array([])).hex() == "d8ea82a2"
    assert mask(strings.bundle_checksum(bytes.fromhex("d8ea82a2"), 0)) == 0x640CC1F6
    assert strings.encode(array([b""])).hex() == "00a67b113a"


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (0, 3), (3, 0), (1, 1, 1)])
def test_any_shape_comes_back_in_c_order(shape: tuple[int, ...]) -> None:
    elements = [b"%d" % i for i in range(int(np.prod(shape)))]
    whole = array(elements).reshape(shape)
    decoded = strings.decode(strings.encode(np.asfortranarray(whole)), shape)
    assert (
        decoded.shape == shape and decoded.dtype == object and decoded.ravel().tolist() == elements
    )


def test_no_bytes_stand_for_no_elements() -> None:
    assert strings.decode(b"", (0, 2)).shape == (0, 2)
    assert strings.bundle_checksum(b"", 0) == 0


@pytest.mark.parametrize("name", ["strings", "keras_adam", "iterator_variant"])
def test_the_checksums_of_the_golden_strings_and_variants_are_what_tensorflow_stored(
    name: str,
) -> None:
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    entries = [entry for entry in expected["index_entries"] if entry["dtype"] in (7, 21)]
    for entry in entries:
        path = (
            GOLDEN
            / name
            / f"{expected['prefix']}.data-{entry['shard_id']:05}-of-{expected['num_shards']:05}"
        )
        payload = path.read_bytes()[entry["offset"] : entry["offset"] + entry["size"]]
        checksum = strings.bundle_checksum if entry["dtype"] == 7 else strings.variant_checksum
        count = int(np.prod(entry["shape"], dtype=int))
        assert mask(checksum(payload, count)) == entry["crc32c_masked"]
    assert entries


def test_lengths_beyond_32_bits_are_words_of_64_in_their_checksum() -> None:
    lengths = np.array([1, 2**32, 5], np.uint64)
    assert strings._lengths_checksum(lengths, ">") == CRC32C.compute(
        struct.pack(">IQI", 1, 2**32, 5)
    )


def test_a_damaged_length_is_seen_before_the_strings_are_cut() -> None:
    payload = bytearray(plain([b"alpha", b"be"])[0])
    payload[0], payload[1] = 6, 1  # they still add up
    with pytest.raises(CorruptCheckpoint, match="offset 2"):
        strings.decode(bytes(payload), (2,))


def claiming(lengths: list[int], rest: bytes) -> bytes:
    """A payload whose lengths have the right checksum, whatever they are."""
    words = b"".join(struct.pack("<Q" if length >> 32 else "<I", length) for length in lengths)
    return (
        b"".join(map(encode_varint, lengths))
        + struct.pack("<I", mask(CRC32C.compute(words)))
        + rest
    )


@pytest.mark.parametrize(
    ("payload", "shape"),
    [
        pytest.param(b"\x00\xa6\x7b\x11\x3a", (2**60,), id="more elements than bytes"),
        pytest.param(b"\x00\xa6\x7b\x11\x3a", (2**40, 2**40), id="more elements than 64 bits"),
        pytest.param(claiming([5], b"abc"), (1,), id="a length beyond the payload"),
        pytest.param(claiming([1], b"abc"), (1,), id="bytes left over"),
        pytest.param(claiming([2**64 - 1, 4], b"abc"), (2,), id="lengths whose sum overflows"),
        pytest.param(b"\x80\x80\x80\x80\x80", (1,), id="a length without end"),
        pytest.param(b"", (1,), id="no bytes for an element"),
        pytest.param(b"\x00\x00", (), id="no room for the checksum"),
    ],
)
def test_hostile_payloads_are_malformed(payload: bytes, shape: tuple[int, ...]) -> None:
    with pytest.raises(MalformedCheckpoint):
        strings.decode(payload, shape)


def test_only_bytes_are_strings_and_a_shape_is_one_that_an_array_can_have() -> None:
    with pytest.raises(InvalidCheckpoint, match="shape"):
        strings.decode(b"", (0, 2**62, 2**62))
    with pytest.raises(ArgumentError, match="of type str"):
        strings.encode(np.array(["text"], object))


@given(st.binary(max_size=40), st.integers(0, 5))
def test_random_bytes_raise_nothing_but_checkpoint_errors(junk: bytes, count: int) -> None:
    for decode in (
        lambda: strings.decode(junk, (count,)),
        lambda: strings.bundle_checksum(junk, count),
        lambda: strings.variant_checksum(junk, count),
        lambda: strings.from_big_endian(junk, count),
    ):
        try:
            assert decode() is not None
        except CheckpointError as error:
            assert error.cause and error.remedy


@given(ELEMENTS.filter(bool), st.data())
def test_every_flipped_bit_changes_the_checksum_or_is_refused(
    elements: list[bytes], data: st.DataObject
) -> None:
    payload, checksum = plain(elements)
    damaged = bytearray(payload)
    damaged[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert strings.bundle_checksum(bytes(damaged), len(elements)) != checksum
    except MalformedCheckpoint as error:
        assert "length" in error.cause or "varint" in error.cause


@pytest.mark.parametrize(("count", "payload"), [(1, b""), (6, b"12345"), (2**62, b"1")])
def test_more_variants_than_bytes_are_refused_before_the_first_is_read(
    count: int, payload: bytes
) -> None:
    with pytest.raises(
        MalformedCheckpoint, match=f"{count} variants cannot be in {len(payload)} bytes"
    ):
        strings.variant_checksum(payload, count)
