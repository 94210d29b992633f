"""Casting: rounded to nearest once, and refused wherever more than precision would be lost."""

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.engine.cast import CastSource, cast_entries, convert_into
from shardvar.engine.read import read_arrays
from shardvar.errors import CorruptCheckpoint, UnsupportedError
from shardvar.layout.dtypes import HALVES, NAMES, has_values, numpy_dtype, to_round_once
from shardvar.planning.plan import plan_copies
from shardvar.planning.slices import TensorTable
from spec_tests.helpers.hypothesis_strategies import NUMBERS, values
from spec_tests.helpers.memory_format import MemoryWriter, checkpoint_of, write
from spec_tests.helpers.nearest import grid, halfway, nearest

FLOATS = [name for name in NUMBERS if "float" in name]
SMALL = [name for name in NAMES if "float" in name and has_values(name) and name != HALVES]
SMALL = [name for name in SMALL if numpy_dtype(name).itemsize <= 2]
EXACT = [name for name in NUMBERS if "int" in name or name == "bool"]


def convert(values: np.ndarray[Any, Any], dtype: np.dtype[Any], key: str) -> np.ndarray[Any, Any]:
    """The values in another dtype."""
    into = np.empty(values.shape, dtype)
    convert_into(into, values, key)
    return into


def is_kept(value: Any, after: Any, source: str, target: str) -> bool:
    """The definition, in Python's own numbers: what a converted value must still say."""
    value, after = complex(value), complex(after)
    if source in EXACT or target in EXACT:
        return value == after
    if "complex" not in target and value.imag != 0:
        return False
    parts = [(value.real, after.real)] + [(value.imag, after.imag)] * ("complex" in target)
    return all(
        np.isnan(a) == np.isnan(b) and np.isinf(a) == np.isinf(b) and (not np.isinf(a) or a == b)
        for a, b in parts
    )


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.data())
def test_a_conversion_is_rounded_to_nearest_or_is_refused(
    source: str, target: str, data: st.DataObject
) -> None:
    array = data.draw(values(numpy_dtype(source), 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with np.errstate(all="ignore"):
            wide = array.astype(np.int8) if source in ("int2", "int4", "uint2", "uint4") else array
            made = numpy_dtype(target)
            if source in FLOATS and target in SMALL:
                real = wide.real if wide.dtype.kind == "c" else wide
                expected = list(nearest(real.astype(np.float64), made))
            else:
                expected = list(wide.astype(made))
    for value, after in zip(array, expected, strict=True):
        one = np.array([value])
        try:
            found = convert(one, numpy_dtype(target), "k")
        except UnsupportedError as error:
            assert "'k'" in error.cause and target in error.cause
            continue
        assert found.dtype == numpy_dtype(target)
        assert found.tobytes() == after.tobytes()
        assert is_kept(value, after, source, target)


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", SMALL)
def test_floats_are_rounded_to_nearest_once(source: str, target: str) -> None:
    """All numbers of the target, all points halfway between two, and what lies next to them."""
    made = numpy_dtype(target)
    with np.errstate(all="ignore"):
        values = np.unique(halfway(made).astype(numpy_dtype(source)))
        exact = (values.real if values.dtype.kind == "c" else values).astype(np.float64)
    least, most = grid(made)[0][[0, -1]]
    fits = (exact >= least) & (exact <= most)
    expected, found = nearest(exact[fits], made), convert(values[fits], made, "k")
    assert np.array_equal(found.astype(np.float64), expected.astype(np.float64))


def extremes(name: str) -> np.ndarray[Any, Any]:
    """All values of a type of one byte; of others the ends, their like, and what is no number."""
    dtype = numpy_dtype(name)
    if dtype.itemsize == 1 and name != "bool":
        bits = next(
            (n for n in (2, 4, 6) if name.startswith((f"int{n}", f"uint{n}", f"float{n}"))), 8
        )
        return np.arange(1 << bits, dtype=np.uint8).view(dtype)
    if name in EXACT:
        info = ml_dtypes.iinfo(dtype) if name != "bool" else None
        ends = (info.min, info.max, int(info.max) // 2 + 1) if info else ()
        return np.array([int(each) for each in (0, 1, *ends)], object).astype(dtype)
    parts = [0, -0.0, 1, -(2.0**15), 2.0**31, -(2.0**63), 1e300, -1e300, np.inf, -np.inf, np.nan]
    with np.errstate(all="ignore"):
        if dtype.kind == "c":
            return np.array([complex(a, b) for a in parts for b in parts]).astype(dtype)
        return np.array(parts).astype(dtype)


@pytest.mark.parametrize("name", [name for name in NAMES if has_values(name) and name != HALVES])
def test_values_of_the_dtype_itself_are_not_rounded(name: str) -> None:
    values = extremes(name)
    found = to_round_once(values, values.dtype)
    assert found.dtype == values.dtype and found.tobytes() == values.tobytes()


@pytest.mark.sample(3)
@pytest.mark.parametrize("source", [*dict.fromkeys((*NUMBERS, *SMALL))])
def test_the_ends_of_each_type_are_kept_or_refused(source: str) -> None:
    """-inf of float16 was the least int32, and went there and back; a NaN hid 1e300j."""
    for target in dict.fromkeys((*NUMBERS, *SMALL)):
        for value in extremes(source):
            try:
                found = convert(np.array([value]), numpy_dtype(target), "k")
            except UnsupportedError:
                continue
            wide = (
                np.array(value).astype(np.int8)
                if source in EXACT and numpy_dtype(source).kind == "V"
                else value
            )
            after = (
                found.astype(np.int8)
                if target in EXACT and numpy_dtype(target).kind == "V"
                else found
            )
            assert is_kept(wide, after[0], source, target), (value, target, found)


@pytest.mark.parametrize("source", NUMBERS)
def test_what_a_type_can_say_is_never_refused(source: str) -> None:
    """Zero and one, and of two types of integers the largest and the smallest that both have, up to
    2**63 - 1 and 2**64 - 1, which no float64 has."""
    for target in NUMBERS:
        common = {0, 1}
        if {source, target} <= {*EXACT} - {"bool"}:
            ranges = [ml_dtypes.iinfo(numpy_dtype(name)) for name in (source, target)]
            common |= {min(int(e.max) for e in ranges), max(int(e.min) for e in ranges)}
        for value in common:
            array = np.array([value]).astype(numpy_dtype(source))
            converted = convert(array, numpy_dtype(target), "k")
            assert converted.dtype == numpy_dtype(target) and converted[0] == value


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [(6.9, "float32", "float4_e2m1fn"), (1 + 0j, "complex64", "bfloat16"), (1e-30, "float32", "float16"),
     (np.nan, "float32", "bfloat16"), (-np.inf, "float64", "float16"), (3, "int64", "complex64"),
     (65519, "float32", "float16"), (np.nan, "complex128", "float32"), (449, "float32", "float8_e4m3fn")],
)  # fmt: skip
def test_rounding_is_no_loss(value: Any, source: str, target: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted = convert(np.array([value], numpy_dtype(source)), numpy_dtype(target), "k")
    assert converted.dtype == numpy_dtype(target) and converted.shape == (1,)


@pytest.mark.parametrize(
    "writer", [MemoryWriter(), MemoryWriter(None), MemoryWriter(run_nbytes=16)], ids=str
)
def test_a_cast_checkpoint_reads_as_the_cast_arrays_and_is_verified_as_stored(
    writer: MemoryWriter,
) -> None:
    named: dict[str, Any] = {
        "a": np.random.default_rng(0).normal(size=(6, 5)),
        "b": np.arange(12, dtype=np.int32),
        "c": np.ones(3, np.float32),
    }
    tensors = TensorTable.of([(key, array.dtype.name, array.shape) for key, array in named.items()])
    source = checkpoint_of(named, tensors.whole(), np.zeros(3, np.int64), writer=writer)
    stored = source.index.entries
    entries = cast_entries(stored, {"a": "bfloat16", "b": "float32"})
    plan = plan_copies(entries.slices, entries.slices.tensors.whole())
    cast = CastSource.of(source, stored)
    expected = {
        "a": named["a"].astype(ml_dtypes.bfloat16),
        "b": named["b"].astype(np.float32),
        "c": named["c"],
    }
    found = read_arrays(plan, cast, entries)
    for key, array in zip(expected, found, strict=True):
        assert (array.dtype, array.tobytes()) == (expected[key].dtype, expected[key].tobytes())
    again, _, _ = write(cast, entries, entries.slices, np.zeros(3, np.int64), MemoryWriter())
    assert [again.index.entries.slices.dtype(row) for row in range(3)] == [
        "bfloat16",
        "float32",
        "float32",
    ]
    if writer.crc is not None:
        for row in range(3):
            place = int(stored.start[row]) + 5
            source.files[0][place] ^= 1
            with pytest.raises(CorruptCheckpoint):
                read_arrays(plan, CastSource.of(source, stored), entries)
            source.files[0][place] ^= 1


@pytest.mark.parametrize(
    ("key", "dtype"),
    [("s", "float32"), ("a", "string"), ("q", "float32"), ("a", "qint8"), ("a", "float33")],
)
def test_only_numbers_are_cast_and_only_to_numbers(key: str, dtype: str) -> None:
    tensors = TensorTable.of([("s", "string", (2,)), ("a", "float32", (2,)), ("q", "qint8", (2,))])
    named = {
        "s": np.array([b"a", b"b"], object),
        "a": np.ones(2, np.float32),
        "q": np.zeros(2, np.int8),
    }
    entries = checkpoint_of(named, tensors.whole(), np.zeros(3, np.int64)).index.entries
    with pytest.raises(UnsupportedError):
        cast_entries(entries, {key: dtype})
    assert cast_entries(entries, {"s": "string", "q": "qint8"}).slices.dtype(0) == "string"


class OfAnotherProcessor(np.ndarray[Any, Any]):
    """An array whose floats beyond an integer type become its largest integer, as on ARM, and not
    its smallest one, as on x86."""

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        new = super().astype(dtype, *args, **kwargs)
        if self.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
            largest = np.iinfo(dtype).max
            new[np.asarray(self) >= float(largest)] = largest
        return new


@pytest.mark.parametrize("source", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("target", ["float16", "float32", "float64"])
def test_an_integer_that_rounds_beyond_its_type_is_lost_on_every_processor(
    source: str, target: str
) -> None:
    """2**31 - 1 is 2**31 as float32, and saturating conversions turn that back into 2**31 - 1."""
    largest = np.iinfo(source).max
    is_exact = int(np.float64(largest)) == largest if target == "float64" else False
    for kind in (np.ndarray, OfAnotherProcessor):
        values = np.array([largest, 1], source).view(kind)
        into = np.zeros(2, target)
        if is_exact:
            convert_into(into, values, "t")
            assert into.tolist() == [largest, 1]
        else:
            with pytest.raises(UnsupportedError, match=str(largest)):
                convert_into(into, values, "t")
