"""Frames: a mask is what was encoded, in each encoding, and nothing else is taken for one."""

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import CheckpointError
from shardvar.wire.digests import (
    DENSE,
    LEAF_NBYTES,
    ROW_NBYTES,
    SPARSE,
    STORED,
    Frame,
    apply_mask,
    decode_frames,
    decode_mask,
    encode_frames,
    encode_mask,
    mask_of,
    table_nbytes,
)
from spec_tests.helpers.delta_page import mask_octets


@st.composite
def masks(draw: st.DrawFn) -> Any:
    """Masks of some words: mostly zeros, mostly not, or random."""
    width, count = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 400))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]))
    top = draw(st.sampled_from([2, 256, 2 ** (8 * width) - 1]))
    words = rng.integers(0, top, count, dtype=np.uint64).astype(f"<u{width}")
    words[rng.random(count) >= share] = 0
    words[draw(st.integers(0, count - 1))] |= 1
    return words


@given(masks(), st.integers(0, 2**32))
def test_a_mask_is_read_back_and_leads_there_and_back(mask: Any, seed: int) -> None:
    """By this reader and by the plain one; no other encoding that is tried is smaller."""
    encoding, count, body = encode_mask(mask)
    width = mask.dtype.itemsize
    assert count == np.count_nonzero(mask)
    assert np.array_equal(decode_mask(encoding, count, body, mask.nbytes, width), mask)
    assert mask_octets(encoding, body, count, mask.nbytes, width) == mask.tobytes()
    planes = mask.view(np.uint8).reshape(len(mask), -1).T.tobytes()
    assert len(body) <= mask.nbytes
    assert 64 * count < len(mask) or len(body) <= len(zlib.compress(planes, 1))
    old = np.random.default_rng(seed).integers(0, 255, mask.nbytes, np.uint8)
    new = bytearray(old.tobytes())
    apply_mask(mask, memoryview(new))
    assert np.array_equal(mask_of(old.data, memoryview(new), width), mask)
    apply_mask(mask, memoryview(new))
    assert bytes(new) == old.tobytes()


@pytest.mark.parametrize(("share", "encoding"), [(0.001, SPARSE), (0.7, DENSE), (1.0, STORED)])
def test_the_encoding_follows_from_what_changed(share: float, encoding: int) -> None:
    rng = np.random.default_rng(0)
    mask = np.zeros(1 << 16, "<u2")
    chosen = rng.random(len(mask)) < share
    top = 2 if encoding == DENSE else 2**16
    mask[chosen] = rng.integers(1, top, chosen.sum())
    assert encode_mask(mask)[0] == encoding


def sparse(gaps: list[int], values: list[int]) -> bytes:
    """The body of a sparse mask of elements of two bytes, made by hand."""
    columns = np.array(gaps, "<u4"), np.array(values, "<u2")
    return zlib.compress(
        b"".join(each.view(np.uint8).reshape(-1, each.itemsize).T.tobytes() for each in columns)
    )


BAD = {
    "a position behind the leaf": (SPARSE, 1, sparse([16], [1])),
    "a position far behind the leaf": (SPARSE, 2, sparse([2**32 - 1, 2**32 - 1], [1, 1])),
    "an element that does not change": (SPARSE, 2, sparse([0, 0], [1, 0])),
    "more elements than the stream has": (SPARSE, 2, sparse([0], [1])),
    "fewer elements than the stream has": (SPARSE, 1, sparse([0, 0], [1, 1])),
    "more elements than the leaf has": (SPARSE, 17, sparse([0] * 17, [1] * 17)),
    "no element": (SPARSE, 0, sparse([], [])),
    "a stream that unpacks to more": (DENSE, 1, zlib.compress(b"\1" + bytes(10_000_000))),
    "a stream that unpacks to less": (DENSE, 1, zlib.compress(b"\1" + bytes(30))),
    "a stream that is cut": (DENSE, 1, zlib.compress(b"\1" + bytes(31))[:-1]),
    "bytes behind the stream": (DENSE, 1, zlib.compress(b"\1" + bytes(31)) + b"x"),
    "no stream": (DENSE, 1, b"no stream"),
    "another number of elements": (DENSE, 2, zlib.compress(b"\1" + bytes(31))),
    "a mask of zeros": (DENSE, 0, zlib.compress(bytes(32))),
    "a stored mask that is too short": (STORED, 1, b"\1" + bytes(30)),
    "a stored mask that is too long": (STORED, 1, b"\1" + bytes(32)),
    "an unknown encoding": (4, 1, b"\1" + bytes(31)),
    "encoding 0": (0, 0, b""),
}


@pytest.mark.parametrize("name", BAD)
def test_a_body_that_is_not_a_mask_is_refused(name: str) -> None:
    encoding, count, body = BAD[name]
    with pytest.raises(CheckpointError):
        decode_mask(encoding, count, body, 32, 2)


def payload(rows: list[tuple[int, int]], bodies: bytes, count: int | None = None) -> bytes:
    """The payload of frames with (leaf, bytes of the body)."""
    frames = [Frame(leaf, STORED, nbytes, 1, bytes(32)) for leaf, nbytes in rows]
    table = bytearray(encode_frames(frames))
    struct.pack_into("<I", table, 0, len(rows) if count is None else count)
    return bytes(table) + bodies


@pytest.mark.parametrize(
    "octets",
    [
        payload([(0, 3), (0, 3)], b"abcabc"),
        payload([(1, 3), (0, 3)], b"abcabc"),
        payload([(3, 3)], b"abc"),
        payload([(0, 3)], b"ab"),
        payload([(0, 3)], b"abcd"),
        payload([(0, 3)], b"abc", 2),
        payload([(0, 3)], b"abc", 2**32 - 1),
        payload([(0, 3)], b"abc", 0),
        b"",
        b"\1\0\0",
    ],
)
def test_a_payload_whose_frames_do_not_make_it_up_is_refused(octets: bytes) -> None:
    with pytest.raises(CheckpointError):
        size = table_nbytes(octets[:4], len(octets))
        decode_frames(octets[:size], len(octets), 2 * LEAF_NBYTES + 1)


def test_frames_are_read_back() -> None:
    octets = payload([(0, 3), (2, 1)], b"abcd")
    size = table_nbytes(octets[:4], len(octets))
    assert size == 4 + 2 * ROW_NBYTES
    frames = decode_frames(octets[:size], len(octets), 2 * LEAF_NBYTES + 1)
    assert [(each.leaf, each.nbytes) for each in frames] == [(0, 3), (2, 1)]
