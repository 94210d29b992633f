"""Blocks of ggml: the numbers of every type are those of ggml's own package, as golden files have
them, and of the simple ones those that their layout says."""

import math
import struct
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import UnsupportedError
from shardvar.wire.ggml import BLOCKS, ROUNDED, codebook, dequantize, quantize
from spec_tests.helpers import ggml_blocks
from spec_tests.helpers.format_protocol import GOLDEN, expectation


def test_every_type_of_blocks_has_the_recorded_numbers() -> None:
    expected = expectation("gguf", "every_type")["tensors"]
    with sv.open_checkpoint(GOLDEN / "gguf" / "every_type" / "m", dequantize=True) as reader:
        for key, row in expected.items():
            numbers = reader.read(key)
            recorded = row.get("dequantized", row)
            assert sha256(numbers.tobytes()).hexdigest() == recorded["sha256"], key
            assert list(numbers.shape) == recorded["shape"]


def scale_of(name: str) -> st.SearchStrategy[bytes]:
    """The bytes of a small scale, with which products are exact."""
    return st.floats(-4, 4, width=16).map(
        lambda d: struct.pack("<f" if name in ("Q8_1", "Q8_K") else "<e", d)
    )


@given(name=st.sampled_from(ggml_blocks.TYPES), data=st.data())
def test_blocks_are_what_their_layout_says(name: str, data: st.DataObject) -> None:
    size = next(block.nbytes for block in BLOCKS.values() if block.name == name)
    scale = data.draw(scale_of(name))
    rest = data.draw(st.binary(min_size=size - len(scale), max_size=size - len(scale)))
    numbers = dequantize(np.frombuffer(scale + rest, np.uint8), name)
    assert numbers.tolist() == ggml_blocks.numbers_of_block(name, scale + rest)


@given(st.binary(min_size=52, max_size=52), st.floats(-4, 4, width=16))
def test_ternary_blocks_are_their_digits_in_base_3(octets: bytes, scale: float) -> None:
    numbers = dequantize(
        np.frombuffer(octets + struct.pack("<e", scale), np.uint8), "TQ1_0"
    ).tolist()
    # The byte is a fraction of 256. A digit is what multiplying by 3 carries out of it.
    expected = [0.0] * 256
    for at, octet in enumerate(octets):
        begin, step, count = (
            (at, 32, 5) if at < 32 else (160 + at - 32, 16, 5) if at < 48 else (240 + at - 48, 4, 4)
        )
        for place in range(count):
            octet, digit = octet * 3 % 256, octet * 3 // 256
            expected[begin + place * step] = scale * (digit - 1)
    assert numbers == expected


@pytest.mark.parametrize(
    "name, length", [("IQ1_S", 2048), ("IQ2_XXS", 256), ("IQ2_XS", 512), ("IQ2_S", 1024)]
)
def test_a_codebook_has_distinct_points_in_ascending_order(name: str, length: int) -> None:
    """The first value of a point is the lowest digit. The number of points is what the bits of a
    block can tell."""
    points = [tuple(reversed(point)) for point in codebook(name).tolist()]
    assert len(points) == length and points == sorted(set(points))


def test_any_bytes_are_blocks() -> None:
    """Also with scales that are infinite or NaN; no warning is given."""
    for block in BLOCKS.values():
        for octet in (0x7C, 0x7F, 0xFF):
            assert dequantize(np.full(2 * block.nbytes, octet, np.uint8), block.name).shape == (
                2 * block.length,
            )


def test_a_row_of_blocks_keeps_its_axes() -> None:
    for block in BLOCKS.values():
        rows = np.zeros((2, 1, 3 * block.nbytes), np.uint8)
        assert dequantize(rows, block.name).shape == (2, 1, 3 * block.length)
        with pytest.raises(UnsupportedError, match=f"multiple of {block.nbytes} bytes"):
            dequantize(rows[..., 1:], block.name)
    with pytest.raises(UnsupportedError, match="not dequantized"):
        dequantize(rows, "Q4_9")


@given(
    st.sampled_from(sorted(ROUNDED)),
    st.lists(st.integers(-300, 300), min_size=64, max_size=64) | st.just([0] * 64),
)
def test_numbers_are_rounded_to_the_nearest_that_a_block_has(name: str, eighths: list[int]) -> None:
    """Number by number: a scale and, in types with a minimum, the least number of 32."""
    bits, rows = ROUNDED[name], np.array(eighths, np.float32).reshape(2, 32) / np.float32(8)
    found = dequantize(quantize(rows, name), name)
    assert found.shape == (2, 32)
    for row, numbers in zip(rows, found.tolist(), strict=True):
        least = row.min() if name.endswith("1") else np.float32(0)
        top = row[np.abs(row).argmax()]
        if name.endswith("1"):
            scale, low, high, zero = (
                (row.max() - least) / np.float32(2**bits - 1),
                0,
                2**bits - 1,
                0,
            )
        elif bits == 8:
            scale, low, high, zero = np.abs(top) / np.float32(127), -127, 127, 0
        else:
            scale, low, high, zero = (
                top / np.float32(-(2 ** (bits - 1))),
                0,
                2**bits - 1,
                2 ** (bits - 1),
            )
        inverse = np.float32(1) / scale if scale else np.float32(0)
        for value, number in zip(row, numbers, strict=True):
            part = (value - least) * inverse
            code = int(part + np.float32(zero + 0.5))
            if bits == 8:
                code = int(math.copysign(math.floor(abs(part) + 0.5), part))
            code = min(max(code, low), high) - zero
            step, base = np.float32(np.float16(scale)), np.float32(np.float16(least))
            assert number == float(step * np.float32(code) + base)
    assert dequantize(np.zeros((0, 34), np.uint8), "Q8_0").shape == (0, 32)
