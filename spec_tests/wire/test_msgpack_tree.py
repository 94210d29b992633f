"""The msgpack of Flax: a tree is the one that msgpack's own decoder reads, a file that is cut keeps
what is in front of the cut, and each fault is told in words."""

from math import prod
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import IncompleteCheckpoint, ShardvarError
from shardvar.limits import MAX_NBYTES, MAX_NESTING
from shardvar.wire.msgpack_tree import PlacedArray, RefusedValue, parse_msgpack
from shardvar.wire.plain import MAX_TEXT, too_large
from spec_tests.helpers.octets import reads_of
from spec_tests.hostile.flax import CHUNKED, array, chunks, of, packed

DTYPES = [
    np.dtype(name) for name in "bool int8 uint16 int32 int64 float16 float32 complex64".split()
]
DTYPES += [np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)]
Ext = msgpack.ExtType


class Narrow(float):
    """A number that is written in 32 bits."""


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.integers(0, 64).flatmap(lambda n: st.sampled_from([(1 << n) - 1, -(1 << max(n - 1, 0))]))
    | st.floats(allow_nan=False)
    | st.floats(allow_nan=False, width=32).map(Narrow)
    | st.complex_numbers(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
    | st.sampled_from([255, 256, 65535, 65536]).flatmap(
        lambda n: st.sampled_from(
            [b"x" * n, "x" * n, [0] * min(n, 256), {f"{k}": k for k in range(min(n, 256))}]
        )
    )
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return rng.integers(0, 2, shape).astype(dtype)


TREES = st.recursive(
    SCALARS | arrays(),
    lambda below: (
        st.lists(below, max_size=20)
        | st.dictionaries(st.text(max_size=5) | st.integers(-99, 99), below, max_size=20)
    ),
    max_leaves=20,
)


def octets_of(tree: Any) -> bytes:
    """The file of a tree; ranks in chunks where they have some elements, scalars as such."""

    def default(value: Any) -> Any:
        if isinstance(value, complex):
            return Ext(2, msgpack.packb((value.real, value.imag)))
        if value.ndim == 1 and value.size > 1:
            return chunks(value.shape, of(value[:1]), of(value[1:]))
        return array(value.shape, value.dtype.name, value.tobytes(), 1 if value.ndim else 3)

    def pack(value: Any) -> bytes:
        if isinstance(value, Narrow):
            return bytes(msgpack.Packer(use_single_float=True).pack(float(value)))
        if isinstance(value, list):
            return msgpack.Packer().pack_array_header(len(value)) + b"".join(map(pack, value))
        if isinstance(value, dict):
            head = msgpack.Packer().pack_map_header(len(value))
            return head + b"".join(pack(key) + pack(each) for key, each in value.items())
        return bytes(msgpack.packb(value, default=default, use_bin_type=True))

    return pack(tree)


def parse(octets: bytes) -> tuple[Any, Any]:
    return parse_msgpack(reads_of(octets), len(octets))


def check(found: Any, expected: Any, octets: bytes) -> None:
    """A refused value is one that is cut."""
    if isinstance(found, RefusedValue):
        assert isinstance(found.error, IncompleteCheckpoint)
    elif isinstance(expected, np.ndarray):
        assert isinstance(found, PlacedArray)
        held = b"".join(octets[start : start + nbytes] for start, nbytes in found.spans)
        assert (found.dtype, found.shape) == (expected.dtype.name, expected.shape)
        assert held == expected.tobytes() and all(nbytes for _, nbytes in found.spans)
    elif isinstance(expected, dict):
        assert [*found] == [*expected][: len(found)]
        for key, each in found.items():
            check(each, expected[key], octets)
    elif isinstance(expected, list):
        for mine, each in zip(found, [*expected, None], strict=False):
            check(mine, each, octets)
    else:
        kind = float if isinstance(expected, Narrow) else type(expected)
        assert type(found) is kind and found == expected


def leaves(tree: Any) -> int:
    """The leaves of a tree that are read."""
    if isinstance(tree, dict | list):
        return sum(map(leaves, tree.values() if isinstance(tree, dict) else tree))
    return not isinstance(tree, RefusedValue)


@given(TREES)
def test_a_tree_is_the_one_that_was_written(tree: Any) -> None:
    octets = octets_of(tree)
    value, fault = parse(octets)
    assert fault is None and leaves(value) == leaves(tree)
    check(value, tree, octets)
    value, fault = parse(octets + b"\0\0")
    check(value, tree, octets)
    assert leaves(value) == leaves(tree)
    assert fault.cause == f"The value ends at byte {len(octets)}, and 2 bytes follow it."


@given(
    st.lists(st.integers(0, 9) | st.text(max_size=3) | arrays(), min_size=1, max_size=4), st.data()
)
def test_a_file_that_is_cut_has_what_is_in_front_of_the_cut(
    items: list[Any], data: st.DataObject
) -> None:
    """The value that is cut is refused, and so are the lists around it; what it holds is kept."""
    tree = {f"k{place}": each for place, each in enumerate(items)}
    ends = [len(octets_of(dict([*tree.items()][:count]))) for count in range(len(items) + 1)]
    octets = octets_of(tree)
    cut = data.draw(st.integers(1, len(octets) - 1))
    value, fault = parse(octets[:cut])
    assert isinstance(fault, IncompleteCheckpoint)
    whole = sum(end <= cut for end in ends[1:])
    assert leaves(value) >= whole and [*value][:whole] == [*tree][:whole]
    check({key: value[key] for key in [*tree][:whole]}, tree, octets)
    for key in [*value][whole:]:
        # An array in chunks is a dictionary without entries until its mark has come.
        is_chunked = isinstance(tree[key], np.ndarray) and tree[key].ndim == 1 < tree[key].size
        assert isinstance(value[key], RefusedValue) or (is_chunked and value[key] == {})
    assert len(value) in (whole, whole + 1)
    value, fault = parse(octets_of([0, tree])[: cut + 2])
    assert isinstance(value[-1], RefusedValue) and value[0] == 0 and leaves(value) >= whole
    with pytest.raises(IncompleteCheckpoint):
        parse(octets_of("text")[: data.draw(st.integers(0, 4))])


def ext(*values: Any, code: int = 1) -> Any:
    return Ext(code, b"".join(msgpack.packb(each, use_bin_type=True) for each in values))


NUMBERED = "The shape or the chunks of its array are not numbered."
RANK = "Its shape is not a list of at most 64 extents."
EXTENT = "An extent of its shape is not a number from 0 on."
CHUNKS = "Its chunks are not flat arrays of one dtype."
flat = array((2,), "int8", b"ab")
PARTS = {"shape": {"0": 2}, "chunks": {"0": flat}}


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (Ext(9, b""), "It is an extension of msgpack with the number 9, which Flax does not write."),
        (ext([1.0, "x"], code=2), "Its complex number is wrong (a part is not a number)."),
        (ext([1.0], code=2), "Its complex number is not two numbers."),
        (ext([1.0, [2]], code=2), "Its complex number is wrong (a part is not a number)."),
        (ext([[2], 1.0], code=2), "Its complex number is wrong (a part is not a number)."),
        (ext([None, 1.0], code=2), "Its complex number is wrong (float() argument must be a string or a real number, "
                                   "not 'NoneType')."),
        (ext([[4], "int8"]), "Its array is not a shape, a dtype and the elements."),
        (ext(4), "Its array is not a shape, a dtype and the elements."),
        (ext([4, "int8", b""]), RANK),
        (array((1,) * 65, data=b""), RANK),
        (array((-1,)), EXTENT),
        (array((1.5,)), EXTENT),  # type: ignore[arg-type]
        (array((True,)), EXTENT),
        (array((MAX_NBYTES + 1,)), EXTENT),
        (ext([["x"], "int8", b""]), EXTENT),
        (ext([[4], 7, b""]), "Its dtype is not a name."),
        (ext([[4], "x" * 65, b""]), "Its dtype is not a name."),
        (ext([[4], "int8", 7]), "Its elements do not fill the rest of its bytes."),
        (ext([[4], "int8", b"1234"], 0), "Its elements do not fill the rest of its bytes."),
        (Ext(1, array((4,)).data[:-1]), "Its elements do not fill the rest of its bytes."),
        (Ext(1, array((4,)).data[:3]), "The value at offset 14 needs 1 bytes, but has 0 left."),
        (b"x" * (MAX_TEXT + 1), too_large().cause),
        ({CHUNKED: True}, NUMBERED),
        ({CHUNKED: True, **PARTS, "shape": [2]}, NUMBERED),
        ({CHUNKED: True, **PARTS, "shape": {"1": 2}}, NUMBERED),
        ({CHUNKED: True, **PARTS, "chunks": {"1": flat, "0": flat}}, NUMBERED),
        ({CHUNKED: True, **PARTS, "shape": {"0": -2}}, EXTENT),
        ({CHUNKED: True, **PARTS, "shape": {"0": flat}}, EXTENT),
        (chunks((2,)), "Its array has no chunks, or more than 64 axes."),
        (chunks((1,) * 64 + (2,), flat), "Its array has no chunks, or more than 64 axes."),
        (chunks((2,), [1, 2]), CHUNKS),
        (chunks((4,), flat, array((2,), "uint8", b"ab")), CHUNKS),
        (chunks((2,), array((2, 1), "int8", b"ab")), CHUNKS),
        (chunks((2,), array((), "int8", b"a")), CHUNKS),
        (chunks((2, 2), flat), "Its chunks have 2 elements, but its shape [2, 2] has 4."),
        (chunks((2,), array((-1,))), EXTENT),
    ],
)  # fmt: skip
def test_each_value_that_is_refused_in_words(value: Any, cause: str) -> None:
    """The values around it are read; a file that is cut behind it is refused."""
    found, fault = parse(packed({"a": 1, "bad": value, "b": [flat]}))
    assert isinstance(found["bad"], RefusedValue) and fault is None
    assert found["bad"].error.cause == cause
    assert found["a"] == 1 and found["b"][0].shape == (2,)


@pytest.mark.parametrize(
    ("octets", "cause"),
    [
        (b"\xc1", "The byte 0xc1 at offset 0 begins no value of msgpack."),
        (b"\x92\x01\xc1", "The byte 0xc1 at offset 2 begins no value of msgpack."),
        (b"", "The value at offset 0 needs 1 bytes, but has 0 left."),
        (b"\xa3ab", "The value at offset 1 needs 3 bytes, but has 2 left."),
        (b"\x81\x90\1", "The key at offset 1 of the map at 0 is not a plain value."),
        (b"\x92\1\x81\x80\1", "The key at offset 3 of the map at 2 is not a plain value."),
        (packed({flat: 1}), "The key at offset 1 of the map at 0 is not a plain value."),
        (b"\x91\x82\1\1\1\1", "The map at offset 1 has the key 1 twice."),
        (
            b"\x91" * (MAX_NESTING + 1),
            f"It has {MAX_NESTING + 1} levels or more, which is beyond the limit of {MAX_NESTING} (MAX_NESTING).",
        ),
        (packed([Ext(1, b""), 1])[:-1], "The value at offset 4 needs 1 bytes, but has 0 left."),
    ],
)  # fmt: skip
def test_each_file_that_is_refused_in_words(octets: bytes, cause: str) -> None:
    """A file with a value that is wrong is not taken for one that is only cut off."""
    with pytest.raises(ShardvarError) as caught:
        parse(octets)
    assert caught.value.cause == cause


def test_what_is_just_within_a_limit_is_read() -> None:
    value, fault = parse(b"\x91" * MAX_NESTING + b"\1")
    assert fault is None and str(value) == "[" * MAX_NESTING + "1" + "]" * MAX_NESTING
    for each in (b"x" * MAX_TEXT, "x" * MAX_TEXT):
        assert parse(packed(each))[0] == each
    one = parse(packed(array((1,) * 64, "x" * 64, b"")))[0]
    assert (one.shape, one.dtype, one.spans) == ((1,) * 64, "x" * 64, ())
    assert parse(packed(array((MAX_NBYTES, 0), data=b"")))[0].shape == (MAX_NBYTES, 0)
    many = chunks((1,) * 63 + (2,), flat)
    assert prod(parse(packed(many))[0].shape) == 2


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_an_extension_of_a_fixed_width_is_as_wide(width: int) -> None:
    value, fault = parse(packed([Ext(9, bytes(width)), 5]))
    assert fault is None and isinstance(value[0], RefusedValue) and value[1] == 5


def test_numbers_of_every_width_are_those_of_msgpack() -> None:
    edges = [
        sign * (1 << bits) + step
        for bits in (5, 7, 8, 15, 16, 31, 32, 63)
        for sign in (1, -1)
        for step in (-1, 0, 1)
    ]
    values = [each for each in edges if -(1 << 63) <= each < 1 << 64] + [(1 << 64) - 1]
    octets = packed(values)
    assert parse(octets) == (msgpack.unpackb(octets), None) and parse(octets)[0] == values
    for count in (0, 1, 15, 16, 31, 32):
        for value in ([0] * count, "x" * count, dict.fromkeys(range(count), 0)):
            assert parse(packed(value)) == (value, None)
