"""``diff``: the same bits in any layout are equal, and every difference is found, measured and
placed."""

from fractions import Fraction
from math import inf, isinf, isnan, isqrt
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.layout.dtypes import numpy_dtype, widen_numbers
from shardvar.verbs.compare import blocks, distances
from shardvar.verbs.compare import walk as sides
from shardvar.verbs.compare.comparison import DiffReport, lines_of_diff
from shardvar.verbs.compare.distances import Difference, Products, compare_arrays, products_of_same
from spec_tests.helpers import paths
from spec_tests.helpers.damage import flip
from spec_tests.helpers.hypothesis_strategies import NUMBERS, arrays, tensor_dicts, values

GOLDEN = paths.GOLDEN / "tensorflow"


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diff")


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two flat arrays of one dtype and length, which agree in many places."""
    dtype = numpy_dtype(draw(st.sampled_from(NUMBERS)))
    count = draw(st.integers(0, 12))
    a, b = draw(values(dtype, count)), draw(values(dtype, count)).copy()
    agree = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
    b[agree] = a[agree]
    return a, b


def by_definition(a: Any, b: Any) -> tuple[list[int], dict[int, float], dict[int, float]]:
    """(where the bits differ, distances by place, relative distances by place), element by
    element."""
    where, distances, relatives = [], {}, {}
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.tobytes() == y.tobytes():
            continue
        where.append(i)
        p, q = (
            complex(z) if a.dtype.kind == "c" else int(z) if a.dtype.kind in "iub" else float(z)
            for z in (x, y)
        )
        with np.errstate(all="ignore"):
            distance = (
                abs(p - q)
                if not isinstance(p, complex)
                else float(np.abs(np.complex128(p) - np.complex128(q)))
            )
            scale = max(float(np.abs(np.complex128(z))) for z in (p, q))
        if not isnan(distance):
            distances[i] = distance
            relatives[i] = inf if isinf(distance) else distance / scale if scale else 0.0
    return where, distances, relatives


def check_largest(found: tuple[float, int] | None, values: dict[int, float]) -> None:
    """The value is the largest, and the place one that has it."""
    assert (found is None) == (not values)
    if found is not None:
        assert found[0] == pytest.approx(max(values.values()), rel=1e-12)
        assert values[found[1]] == pytest.approx(found[0], rel=1e-12)


@given(pairs())
def test_a_difference_is_what_its_definition_says(pair: tuple[Any, Any]) -> None:
    """Each largest distance is at the index that is given."""
    where, distances, relatives = by_definition(*pair)
    found = compare_arrays(*pair)
    without = len(where) - len(distances)
    assert (found.count, found.first, found.num_without_distance) == (
        len(where),
        (where or [None])[0],
        without,
    )
    check_largest(found.absolute, distances)
    check_largest(found.relative, relatives)
    assert found.num_zeros == sum(distance == 0 for distance in distances.values())
    assert found.num_nans == sum(
        bool(pair[0][i] != pair[0][i] and pair[1][i] != pair[1][i]) for i in where
    )


@given(pairs(), st.integers(1, 5), st.data())
def test_a_difference_depends_neither_on_stretches_nor_on_which_comes_first(
    pair: tuple[Any, Any], portion: int, data: st.DataObject
) -> None:
    """Nor on portions, or elements that are known to be the same."""
    a, b = pair
    whole, cut = compare_arrays_whole(a, b), data.draw(st.integers(0, len(a)))
    rest = compare_arrays(a[cut:], b[cut:], cut)
    assert compare_arrays(a[:cut], b[:cut]).merge(rest) == compare_arrays(b, a) == whole
    with patch.object(distances, "_PORTION", portion):
        assert compare_arrays(a, b) == whole
    wide = widen_numbers(a)
    assert products_of_same(a) == Products.of(wide, wide)


@given(
    st.sampled_from(NUMBERS),
    st.sampled_from(NUMBERS),
    st.lists(st.sampled_from([0, 1]), max_size=5),
)
def test_equal_values_of_different_dtypes_do_not_differ(
    one: str, other: str, numbers: list[int]
) -> None:
    a, b = (np.array(numbers, np.int8).astype(numpy_dtype(name)) for name in (one, other))
    assert compare_arrays(a, b) == Difference()


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_widened_to_the_one_dtype_that_holds_them(name: str) -> None:
    """uint64 only for uint64: differences of smaller numbers may be negative."""
    dtype = numpy_dtype(name)
    wide = widen_numbers(np.array([0, 1]).astype(dtype))
    if name == "uint64":
        assert wide.dtype == np.uint64
    elif name.startswith(("int", "uint", "bool")):
        assert wide.dtype == np.int64
    else:
        assert wide.dtype == (np.complex128 if name.startswith("complex") else np.float64)
    assert wide.tolist() == [0, 1]


def test_integers_are_far_apart_exactly() -> None:
    """The distance of the ends of int64 is no int64."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert compare_arrays(np.array([low]), np.array([high])).absolute == (2**64 - 1, 0)
    assert compare_arrays(
        np.array([2**63], np.uint64), np.array([2**63 + 1], np.uint64)
    ).absolute == (1, 0)


def compare_arrays_whole(a: Any, b: Any) -> Difference:
    with patch.object(distances, "_PORTION", 1 << 20):
        return compare_arrays(a, b)


def fractions(a: Any, b: Any) -> list[tuple[Fraction, Fraction]]:
    """The real numbers of two arrays in pairs, of elements that are finite in both; a complex one
    is two."""
    wide = [array.astype(np.complex128) for array in (a, b)]
    finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
    return [
        (Fraction(float(getattr(x, part))), Fraction(float(getattr(y, part))))
        for x, y in zip(*(array[finite] for array in wide), strict=True)
        for part in ("real", "imag")
    ]


def root(fraction: Fraction) -> Fraction:
    """The square root to 60 digits at least."""
    scale = 10**60 * max(1, fraction.denominator)
    return Fraction(isqrt(fraction.numerator * scale * scale // fraction.denominator), scale)


@given(pairs())
def test_cosine_and_norm_are_those_of_exact_fractions(pair: tuple[Any, Any]) -> None:
    """Whatever the magnitudes are, and without the elements that are not finite."""
    if pair[0].dtype.kind in "biu":
        pair = pair[0].astype(np.float64), pair[1].astype(np.float64)
    with np.errstate(invalid="ignore"):
        numbers = fractions(*pair)
    found = compare_arrays(*pair).products
    if found is None:
        return
    norm_a, norm_b = (root(sum((each[i] ** 2 for each in numbers), Fraction())) for i in (0, 1))
    apart = root(sum(((x - y) ** 2 for x, y in numbers), Fraction()))
    product = sum((x * y for x, y in numbers), Fraction())
    largest, norms = max(norm_a, norm_b), norm_a * norm_b
    relative = (float(apart / largest) if largest else 0.0) if numbers else None
    close = None if relative is None else pytest.approx(relative, rel=1e-6)
    assert found.relative_norm == close
    cosine = pytest.approx(float(product / norms), abs=1e-9) if norms else None
    assert found.cosine == cosine


@given(
    st.sampled_from(["float32", "bfloat16", "float16"]),
    st.integers(0, 2**32),
    st.integers(-149, 120),
    st.booleans(),
)
def test_no_larger_distance_is_left_out_by_looking_in_float32(
    dtype: str, seed: int, power: int, are_near: bool
) -> None:
    """At any magnitude, subnormal numbers included: distances that tie, and relative ones that
    differ by a bit."""
    random = np.random.default_rng(seed)
    wide = np.ldexp(random.integers(-9, 9, (2, 64)) + random.choice([0, 1e-7], (2, 64)), power)
    if are_near:
        wide[1] = wide[0] * (1 + random.choice([0, 1e-7, 1e-2], 64))
    with np.errstate(over="ignore"):
        a, b = wide.astype(np.float32).astype(numpy_dtype(dtype))
    with patch.object(distances, "_PORTION", 4):
        found = compare_arrays(a, b)
    with patch.object(distances, "_fits_float32", lambda _: False):
        assert found == compare_arrays_whole(a, b)


def small_blocks(nbytes: int) -> Any:
    """Blocks so small that every tensor is walked through as if it were large."""
    return patch.multiple(blocks, BLOCK_NBYTES=nbytes), patch.object(sides, "BLOCK_NBYTES", nbytes)


def diff_in_blocks(a: Path, b: Path, nbytes: int) -> DiffReport:
    one, two = small_blocks(nbytes)
    with one, two:
        return sv.diff(a, b)


@given(tensor_dicts(strings=True), st.integers(1, 5), st.integers(16, 200))
def test_a_checkpoint_equals_itself_in_any_layout(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Any], parts: int, nbytes: int
) -> None:
    directory = tmp_path_factory.mktemp("diff")
    sv.save(directory / "a", tensors)
    sv.save(directory / "b", tensors, partition=parts)
    assert sv.diff(directory / "a", directory / "b") == diff_in_blocks(
        directory / "a", directory / "b", nbytes
    )
    report = sv.diff(directory / "b", directory / "a")
    assert report.equal and report.num_equal == len(tensors)


@given(arrays(), st.data())
def test_one_changed_element_is_found_where_it_is(
    tmp_path_factory: pytest.TempPathFactory, array: Any, data: st.DataObject
) -> None:
    if not array.size:
        return
    directory = tmp_path_factory.mktemp("diff")
    index = np.unravel_index(data.draw(st.integers(0, array.size - 1)), array.shape)
    changed = np.array(array)
    changed[index] = np.array(1 if float(array[index].real) == 0 else 0).astype(array.dtype)
    sv.save(directory / "a", {"x": array}, partition=data.draw(st.integers(1, 3)))
    sv.save(directory / "b", {"x": changed}, partition=data.draw(st.integers(1, 3)))
    for report in (
        sv.diff(directory / "a", directory / "b"),
        diff_in_blocks(directory / "a", directory / "b", 16),
    ):
        found = report.differences[0].values
        assert found is not None and not report.equal
        assert (found.count, found.first) == (1, tuple(map(int, index)))


def test_keys_dtypes_shapes_and_strings_that_differ_are_told_apart(directory: Path) -> None:
    same, texts = np.arange(4, dtype=np.float32), np.array([b"a", b"b", b"c"], object)
    a = dict.fromkeys(("one", "cast", "grown", "same", "kind"), same) | {"words": texts}
    b = {
        "two": same,
        "cast": same.astype(np.float16),
        "grown": np.zeros(5, np.float32),
        "same": same,
    }
    b |= {"kind": np.array([b"x"] * 4, object), "words": np.array([b"a", b"x", b""], object)}
    sv.save(directory / "a", a)
    sv.save(directory / "b", b)
    report = sv.diff(directory / "a", directory / "b")
    assert (report.only_in_a, report.only_in_b) == (("one",), ("two",))
    assert (report.num_equal, report.equal) == (1, False)
    told = {each.key: (each.dtype_b, each.shape_b, each.values) for each in report.differences}
    words = told.pop("words")[2]
    assert told == {
        "cast": ("float16", (4,), None),
        "grown": ("float32", (5,), None),
        "kind": ("string", (4,), None),
    }
    assert words is not None
    assert (words.count, words.first, words.max_absolute) == (2, (1,), None)


def test_large_tensors_in_grids_are_compared_block_by_block(directory: Path) -> None:
    """Cuts across both axes, other formats, and one element that differs: the first blocks are the same,
    and so are those after it, whose elements count in the figures."""
    a = np.random.default_rng(0).standard_normal((3000, 700)).astype(np.float32)
    sv.save(directory / "a", {"t": a}, partition=[3, 4])
    sv.save(directory / "b", {"t": a}, partition=[7, 2], format="tensorflow")
    assert sv.diff(directory / "a", directory / "b").equal
    b = a.copy()
    b[2001, 7] += 1000
    sv.save(directory / "c.safetensors", {"t": b})
    x, y = (array.astype(np.float64).ravel() for array in (a, b))
    norms = [float(np.linalg.norm(each)) for each in (x, y, y - x)]
    for name in "ab":
        values = sv.diff(directory / name, directory / "c.safetensors").differences[0].values
        assert values is not None and values.count == 1
        assert values.first == values.max_absolute_at == values.max_relative_at == (2001, 7)
        assert values.cosine == pytest.approx(float(x @ y) / norms[0] / norms[1], rel=1e-12)
        assert values.relative_norm == pytest.approx(norms[2] / max(norms[:2]), rel=1e-12)


@pytest.mark.parametrize("form", ["shardvar", "tensorflow"])
@pytest.mark.parametrize("rows", [4, 600_000])
def test_a_damaged_tensor_is_unreadable_and_hides_no_other(
    directory: Path, form: str, rows: int
) -> None:
    tensors = {"bad": np.ones((rows, 2), np.float32), "good": np.ones(3), "other": np.zeros(2)}
    for name in "ab":
        sv.save(directory / name, tensors | {"other": np.full(2, ord(name))}, format=form)
    with sv.open_checkpoint(directory / "b") as reader:
        start = int(reader.find("bad").start[0])
    flip(*directory.glob("b.*data-*"), start)
    report = sv.diff(directory / "a", directory / "b")
    assert [(each.key, each.side, each.kind) for each in report.unreadable] == [
        ("bad", "b", "CorruptCheckpoint")
    ]
    assert [each.key for each in report.differences] == ["other"]
    assert (report.num_equal, report.equal) == (1, False)


@pytest.mark.parametrize("case", ["slices_overlap", "slices_with_hole", "iterator_variant", "dtypes_all", "strings",
                                  "hand_big_endian", "keras_adam"])  # fmt: skip
def test_every_dtype_of_tensorflow_is_equal_to_itself(case: str) -> None:
    """Variants and quantized tensors too, which are compared as bytes. A key that breaks a law is
    unreadable on both sides."""
    report = sv.diff(GOLDEN / case, GOLDEN / case)
    unreadable = {("t", "a"), ("t", "b")} if case.startswith("slices") else set()
    assert {(each.key, each.side) for each in report.unreadable} == unreadable
    assert not report.differences and report.equal == (not unreadable)
    assert report.num_equal or unreadable


def test_a_difference_says_how_many_elements_have_no_distance(directory: Path) -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    for nans in range(3):
        b = a + 1
        b[:nans] = np.nan
        sv.save(directory / "a", {"t": a}, force=True)
        sv.save(directory / "b", {"t": b}, force=True)
        text = "\n".join(lines_of_diff(sv.diff(directory / "a", directory / "b")))
        assert (f"; {nans} with NaN" in text) == (nans > 0)
        assert "by at most 1" in text and "relative" in text
