"""The names of element types, and the one function that computes the bytes of a slice."""

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentTypeError, LayoutError, UnsupportedError
from shardvar.layout import dtypes
from spec_tests.helpers.hypothesis_strategies import NUMBERS, shapes


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_a_name_is_its_numpy_dtypes_and_a_code_is_a_position_among_the_names(name: str) -> None:
    assert dtypes.NAMES[dtypes.code(name)] == name
    if dtypes.is_opaque(name) or name == "string":
        return
    dtype = dtypes.numpy_dtype(name)
    assert dtypes.dtype_name(dtype) == name
    assert dtype == np.dtype(getattr(ml_dtypes, name, name))
    assert dtypes.ITEMSIZES[dtypes.code(name)] == dtype.itemsize


@pytest.mark.parametrize("character", "?bBhHiIlLqQefdFD")
def test_every_spelling_of_a_c_type_has_a_name(character: str) -> None:
    """``l`` and ``q`` are both 64 bits wide, and both are int64."""
    dtype = np.dtype(character)
    assert dtypes.dtype_name(dtype) == dtype.name
    assert dtypes.dtype_name(dtype.newbyteorder(">")) == dtype.name


def test_bytes_and_objects_are_strings() -> None:
    assert [dtypes.dtype_name(np.dtype(text)) for text in ("S5", "S", "O")] == ["string"] * 3
    assert dtypes.numpy_dtype("string") == np.dtype(object)


@pytest.mark.parametrize(
    "dtype",
    [*map(np.dtype, ["U3", "M8[s]", "m8[s]", "V4", "i4,f4", "g", "G"]), np.dtypes.StringDType()],
    ids=str,
)
def test_what_has_no_name_is_refused_by_its_own(dtype: np.dtype[Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        dtypes.dtype_name(dtype)
    assert str(dtype) in str(caught.value) and caught.value.remedy


@pytest.mark.parametrize("name", ["", "float33", "FLOAT32", "object", "O", "resource"])
def test_unknown_names_are_refused_with_those_that_are_known(name: str) -> None:
    for ask in (dtypes.code, dtypes.numpy_dtype):
        with pytest.raises(UnsupportedError, match="bfloat16"):
            ask(name)


@pytest.mark.parametrize("name", dtypes.PACKED_BITS)
def test_packed_elements_end_within_their_last_byte(name: str) -> None:
    """Of 0 to 40 elements, on one axis or two."""
    assert dtypes.PACKED_BITS[name] == int(name[5])  # as it is called
    shapes = np.array([(1, count) for count in range(41)] + [(count, 3) for count in range(14)])
    codes = np.full(len(shapes), dtypes.code(name))
    assert dtypes.slice_nbytes(codes, shapes).tolist() == [
        len("0" * int(rows * count) * dtypes.PACKED_BITS[name]) // 8
        + bool(rows * count * dtypes.PACKED_BITS[name] % 8)
        for rows, count in shapes
    ]


@pytest.mark.parametrize("name", ["variant", "qint8", "quint16", "qint32"])
def test_opaque_types_are_listed_and_have_no_values(name: str) -> None:
    assert dtypes.is_opaque(name)
    with pytest.raises(UnsupportedError, match="no such type"):
        dtypes.numpy_dtype(name)


@given(st.lists(st.tuples(st.sampled_from(NUMBERS), shapes(min_rank=3, max_rank=3)), min_size=1))
def test_a_slice_has_the_bytes_of_its_array(rows: list[tuple[str, tuple[int, ...]]]) -> None:
    codes = np.array([dtypes.code(name) for name, _ in rows])
    found = dtypes.slice_nbytes(codes, np.array([shape for _, shape in rows]))
    assert found.tolist() == [
        np.zeros(shape, dtypes.numpy_dtype(name)).nbytes for name, shape in rows
    ]


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2**40, 2**20)])
@pytest.mark.parametrize("name", ["string", "variant"])
def test_what_tells_its_own_size_has_none_here(name: str, shape: tuple[int, ...]) -> None:
    assert dtypes.slice_nbytes(
        np.array([dtypes.code(name)]), np.array([shape], np.int64)
    ).tolist() == [0]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("int8", (2**62, 2)),
        ("float64", (2**60,)),
        ("int8", (2**32, 2**32)),
        ("int8", (2**33, 2**31)),
        ("complex128", (2**63 - 1,)),
        ("int8", (2**62,) * 64),
        ("string", (2**62,) * 64),
    ],
)
def test_sizes_that_64_bits_cannot_hold_are_refused_without_a_warning(
    name: str, shape: tuple[int, ...]
) -> None:
    """The product of such extents wraps round to something small, 0 among others."""
    with warnings.catch_warnings(), pytest.raises(LayoutError, match="too large") as caught:
        warnings.simplefilter("error")
        dtypes.slice_nbytes(
            np.array([dtypes.code("int8"), dtypes.code(name)]), np.array([(1,) * len(shape), shape])
        )
    assert name in str(caught.value)


def test_an_empty_slice_of_wide_extents_is_empty() -> None:
    for shape in ((2**40, 2**40, 0), (0, *(2**62,) * 63), (*(2**62,) * 63, 0)):
        assert dtypes.slice_nbytes(
            np.array([dtypes.code("float32")]), np.array([shape])
        ).tolist() == [0]


@given(st.sampled_from(NUMBERS), st.binary(max_size=64))
def test_widened_numbers_are_the_same_numbers(name: str, octets: bytes) -> None:
    dtype = dtypes.numpy_dtype(name)
    octets = octets[: len(octets) // dtype.itemsize * dtype.itemsize]
    array = np.frombuffer(bytes(each & 1 for each in octets) if name == "bool" else octets, dtype)
    found = dtypes.widen_numbers(array)
    kinds = {"uint64": int, "int64": int, "float64": float, "complex128": complex}
    kind = kinds[found.dtype.name]
    assert (kind is float) == dtypes.is_floating(name)
    assert list(map(repr, map(kind, found))) == list(map(repr, map(kind, array)))


@given(
    st.sampled_from(NUMBERS),
    st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, np.inf, -np.inf, np.nan]), max_size=5),
)
def test_numbers_that_are_none_are_told_from_their_bits(name: str, values: list[float]) -> None:
    is_number = dtypes.is_floating(name) or "complex" in name
    wide = np.array(values if is_number else [abs(each) < 9 for each in values])
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dtypes without an infinity
        array = wide.astype(dtypes.numpy_dtype(name))
    read = array.astype(np.complex128 if "complex" in name else np.float64)
    expected = int(np.isnan(read).any()) + 2 * int(np.isinf(read).any())
    assert dtypes.odd_values(memoryview(array.tobytes()), name) == expected


SPELLINGS: dict[str, list[Any]] = {
    "bool": ["bool", "?", "bool_", bool, np.bool],
    "int8": ["int8", "i1", "b", "byte", np.int8],
    "int32": ["int32", "i4", "<i4", ">i4", "=i4", np.int32, np.dtype(">i4")],
    "int64": ["int64", "i8", "<i8", ">i8", "int", int, np.int64],
    "uint8": ["uint8", "u1", "B", np.uint8],
    "float16": ["float16", "f2", "e", "half", np.half],
    "float32": ["float32", "f4", "f", "<f4", ">f4", "single", np.float32, np.dtype(">f4")],
    "float64": ["float64", "f8", "d", "float", "double", float, np.float64],
    "complex64": ["complex64", "c8", "F", np.complex64],
    "complex128": ["complex128", "c16", "D", "complex", complex],
    "bfloat16": ["bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)],
    "string": ["string", "S", "S5", "O", "object", "bytes", "str", "U3", bytes, str, object],
}


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, all_of in SPELLINGS.items() for given in all_of]
)
def test_every_spelling_of_a_dtype_in_numpy_means_it_wherever_a_dtype_is_taken(
    name: str, given: Any
) -> None:
    """Big-endian codes too: a byte order is not part of a dtype, and the value is in the
    machine's."""
    assert dtypes.parse_dtype(given) == name
    expected = dtypes.numpy_dtype(name)
    value = b"a" if name == "string" else True if name == "bool" else 1
    variable = sv.Variable(value, dtype=given)
    assert variable.dtype == expected and variable.numpy().dtype == expected
    assert variable.astype(given).dtype == expected
    # Partitioners estimate the bytes of a string, and know those of a number.
    assert sv.MaxSizePartitioner(64)((1000,), given) == sv.MaxSizePartitioner(64)((1000,), name)
    if name != "string":
        assert sv.initializers.Ones()((2,), given).dtype == expected
    if name in ("float16", "float32", "float64", "bfloat16"):
        assert sv.random.stateless_uniform([2], [1, 2], dtype=given).dtype == expected
        assert sv.layers.Dense(1, dtype=given, input_dim=1).kernel.dtype == expected
        assert sv.layers.Embedding(2, 1, dtype=given).embeddings.dtype == expected


@pytest.mark.parametrize(
    ("name", "given"),
    [("int32", ">i4"), ("float16", "half"), ("float64", float), ("bfloat16", ml_dtypes.bfloat16)],
)
def test_a_reshard_casts_to_a_dtype_in_any_spelling(tmp_path: Path, name: str, given: Any) -> None:
    sv.save(tmp_path / "a", {"x": np.zeros(3, np.int8)})
    sv.reshard(tmp_path / "a", tmp_path / "b", cast={"*": given})
    assert sv.load(tmp_path / "b")["x"].dtype == dtypes.numpy_dtype(name)


@pytest.mark.parametrize(
    "given",
    [
        *(None, 3, True, [], {}, (), object(), 1.5, "", "float33", "f3", "i4,f4", "(2,)f4"),
        *("M8[s]", "V8", "g", "(2", "f4\0"),
    ],
)
def test_what_is_not_a_dtype_is_refused(given: Any) -> None:
    with pytest.raises((ArgumentTypeError, UnsupportedError)) as caught:
        dtypes.parse_dtype(given)
    assert caught.value.cause and caught.value.remedy


@pytest.mark.parametrize(
    ("given", "meant"), [("bf15", "bf16"), ("float33", "float32"), ("flaot16", "float16")]
)
def test_a_misspelt_dtype_is_told_the_one_it_may_have_meant(given: str, meant: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"Did you mean '{meant}'\? Known are bool, "):
        dtypes.parse_dtype(given)
