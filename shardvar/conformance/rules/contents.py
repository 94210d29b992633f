"""Level 6: what a checkpoint may hold: keys that look alike, many axes, many rows, every dtype, and
parts in any arrangement."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Calls, expect
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import TableCase, tables
from shardvar.conformance.rules.checkpoints import (
    DTYPES,
    ELASTIC,
    PRESENT,
    RESLICING,
    SHAPES,
    NamedArrays,
    SavedCase,
    check_elastic,
    checkpoint_path,
    expect_tensors,
    shards,
    templates_of,
    typed,
)
from shardvar.layout.dtypes import Array
from shardvar.testing import counting

ALIKE = (
    ("w", "w2", "w/w"), ("layer.1", "layer.10", "layer.1.w"), ("Bias", "bias", "BIAS"),
    ("a/b", "a.b", "a_b"), ("x", "x ", "x.0"), ("café", "cafe", "caf"),
)  # fmt: skip
"""Keys that one of another makes: its beginning, its other case, its other separator."""


@st.composite
def alike(draw: st.DrawFn) -> SavedCase:
    """Tensors of one shape under keys that look alike; some have the same rows but for the last."""
    before, after = draw(shards), draw(shards)
    rows = max(before, after) + draw(st.integers(0, 2) | st.just(20))
    keys = draw(st.permutations(draw(st.sampled_from(ALIKE))))
    differs = np.arange(rows)[:, None] >= draw(st.sampled_from([0, rows - 1]))
    tensors = {
        key: counting((rows, 2)) + np.float32(100 * n) * differs.astype(np.float32)
        for n, key in enumerate(keys)
    }
    return tensors, before, after


@rule("R-CKPT-1-keys", 6, "000", ELASTIC, "save restore", alike())
def keys_that_look_alike_are_kept_apart(adapter: Calls, case: SavedCase) -> None:
    """Tensors of one shape whose keys look alike are restored each under its own key."""
    check_elastic(adapter, case)


ENCODED = (
    ("\u00e9", "e\u0301", "e"), ("\u65e5\u672c", "\u65e5", "\u672c"), ("\u1e9e", "ss", "\u00df"),
    ("a\u200bb", "ab", "a b"), ("\U0001f600", "\ufffd", "?"),
)  # fmt: skip
"""Keys outside ASCII that normal forms, other encodings or invisible characters would make one."""


@rule("R-CKPT-1-keys-encoded", 6, "000", ELASTIC, "save restore",
      st.tuples(st.sampled_from(ENCODED), shards, shards).map(lambda drawn: (
          {key: counting((4, 2)) + np.float32(100 * n) for n, key in enumerate(drawn[0])},
          *drawn[1:])))  # fmt: skip
def keys_of_any_letters_are_kept_apart(adapter: Calls, case: SavedCase) -> None:
    """Tensors whose keys are not ASCII are restored each under its own key, as it was written."""
    check_elastic(adapter, case)


@st.composite
def of_many_axes(draw: st.DrawFn) -> SavedCase:
    """A tensor of three to five axes, some of one extent."""
    before, after = draw(shards), draw(shards)
    rest = draw(st.sampled_from([(2, 2), (2, 2, 2), (1, 3, 3), (2, 1, 2, 2)]))
    return {"w": counting((max(before, after), *rest))}, before, after


@rule("R-CKPT-1-axes", 6, "000", ELASTIC, "save restore", of_many_axes())
def many_axes_are_saved(adapter: Calls, case: SavedCase) -> None:
    """A tensor of many axes is restored in their order."""
    check_elastic(adapter, case)


@rule("R-CKPT-1-long", 6, "000", ELASTIC, "save restore",
      st.tuples(st.sampled_from([4097, 65537, 100_003]), shards, shards).map(
          lambda drawn: ({"w": counting((drawn[0],))}, drawn[1], drawn[2])))  # fmt: skip
def many_rows_are_saved(adapter: Calls, case: SavedCase) -> None:
    """A tensor of many rows is restored whole."""
    check_elastic(adapter, case)


WIDE = ["uint16", "uint32", "uint64", "complex128", "float64", "int64"]
NARROW = ["float8_e4m3fn", "float8_e5m2", "int4", "uint4"]


@st.composite
def of_all_digits(draw: st.DrawFn) -> SavedCase:
    """A tensor of a wide dtype whose numbers no narrower one holds."""
    dtype = np.dtype(draw(st.sampled_from(WIDE)))
    before, after = draw(shards), draw(shards)
    counted = counting((max(before, after) + 1, 2), dtype)
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize - (dtype.kind == "i")
        most = (2**bits - 1) // draw(st.sampled_from([2, 1]))
        return {"w": np.asarray(most, dtype) - counted}, before, after
    return {"w": counted * (1 + 2j if dtype.kind == "c" else 1) / 3}, before, after


@rule("R-CKPT-1-dtypes-wide", 6, "000", ELASTIC, "save restore", of_all_digits())
def wide_dtypes_are_saved(adapter: Calls, case: SavedCase) -> None:
    """Unsigned integers, and numbers of eight bytes and more, are restored to the last digit."""
    check_elastic(adapter, case)


@rule("R-CKPT-1-dtypes-narrow", 6, "000", ELASTIC, "save restore", typed(NARROW))
def narrow_dtypes_are_saved(adapter: Calls, case: SavedCase) -> None:
    """Floating-point numbers of eight bits, and integers of four, are restored bit for bit."""
    check_elastic(adapter, case)


@st.composite
def special(draw: st.DrawFn) -> SavedCase:
    """The numbers of a floating-point dtype that are easily lost."""
    dtype = np.dtype(draw(st.sampled_from(["float16", "float32", "float64", "bfloat16"])))
    nan = np.array(np.nan, dtype)
    # The smallest subnormal number has the bits of the integer 1.
    least = np.array(1, f"u{dtype.itemsize}").view(dtype)
    odd = [np.array(x, dtype) for x in (0.0, -0.0, np.inf, -np.inf, 1.0)] + [
        nan,
        -nan,
        least,
        -least,
    ]
    value = np.stack(draw(st.permutations(odd)))
    return {"w": value}, draw(shards), draw(shards)


@rule("R-CKPT-1-special", 6, "000", ELASTIC, "save restore", special())
def special_numbers_are_saved(adapter: Calls, case: SavedCase) -> None:
    """Zeros of either sign, infinities, NaNs and the smallest numbers are restored bit for bit."""
    check_elastic(adapter, case)


SCALARS = (np.float32(0.1), np.float64(-1e-300), np.int8(-1), np.uint64(2**64 - 1), np.bool(True),
           np.complex64(1 - 2j), np.float16(0.5))  # fmt: skip


@rule("R-CKPT-1-scalars-dtypes", 6, "000", ELASTIC, "save restore",
      st.tuples(st.sampled_from(SCALARS), shards, shards).map(
          lambda drawn: ({"w": counting((4,)), "rate": np.array(drawn[0])}, *drawn[1:])))  # fmt: skip
def scalars_of_every_dtype_are_kept(adapter: Calls, case: SavedCase) -> None:
    """A scalar keeps its dtype, its sign and its fraction."""
    check_elastic(adapter, case)


@st.composite
def other_shapes_of_one_size(draw: st.DrawFn) -> tuple[TableCase, tuple[int, ...]]:
    """A table, and another shape of as many elements, or of as many rows."""
    value, num_shards = draw(tables(row_shapes=((2,), (3,), (2, 2)), max_more=3))
    rows, columns = len(value), value[0].size
    others = [(rows * columns,), (columns, rows), (rows, columns, 1), (rows, columns + 1), (rows,)]
    return (value, num_shards), draw(
        st.sampled_from([shape for shape in others if shape != value.shape])
    )


@rule("R-POLICY-2-restore-shape", 6, "001", SHAPES, "save restore", other_shapes_of_one_size())
def shapes_of_one_size_are_refused(adapter: Calls, case: tuple[TableCase, tuple[int, ...]]) -> None:
    """Restoring into a variable of another shape is refused, be it of as many elements or rows."""
    (value, num_shards), shape = case
    with checkpoint_path(adapter) as path:
        adapter.save(path, {"w": value}, num_shards)
        adapter.refuses("restore", path, {"w": np.full(shape, 85, value.dtype)}, 1)


CONTENTS: NamedArrays = {
    "w": counting((4, 2)), "scalar": np.array(7, np.int64), "none": np.zeros((0, 3), np.float32),
    "half": counting((4,), "bfloat16"), "flags": np.array([True, False, True, True]),
}  # fmt: skip


@rule("R-POLICY-1-list-all", 6, "001", PRESENT, "save list_tensors",
      st.sets(st.sampled_from(sorted(CONTENTS)), min_size=1).map(sorted))  # fmt: skip
def all_kinds_are_listed(adapter: Calls, case: list[str]) -> None:
    """Scalars, tensors without elements and tensors of every dtype are listed with their shapes and
    dtypes."""
    must = {key: (CONTENTS[key].shape, str(CONTENTS[key].dtype)) for key in case}
    with checkpoint_path(adapter) as path:
        adapter.save(path, {key: CONTENTS[key] for key in case}, 1)
        listed = adapter.list_tensors(path)
        came = {key: (tuple(map(int, shape)), str(dtype)) for key, (shape, dtype) in listed.items()}
        expect(
            {key: came.get(key) for key in must} == must,
            f"It gave {came}.",
            f"It must give {must}.",
        )


# Parts in any arrangement.

ManyParts = list[tuple[tuple[int, ...], Array]]


def save_parts(adapter: Calls, path: str, value: Array, parts: ManyParts) -> Any:
    """Save one tensor from parts; ``REFUSED`` if it is refused."""
    return adapter.attempt("save_parts", path, "w", value.shape, value.dtype, parts)


@st.composite
def cut_along_columns(draw: st.DrawFn) -> tuple[Array, ManyParts]:
    """A table cut along its columns, and perhaps along its rows too; parts in any order."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    value, cut = counting((rows, columns)), draw(st.integers(1, columns - 1))
    halves = sorted({0, draw(st.integers(0, rows - 1)), rows})
    parts: ManyParts = []
    for top, bottom in pairwise(halves):
        parts += [((top, 0), value[top:bottom, :cut]), ((top, cut), value[top:bottom, cut:])]
    return value, draw(st.permutations(parts))


@rule("R-POLICY-7-columns", 6, "001", RESLICING, "save_parts restore", cut_along_columns())
def columns_are_joined(adapter: Calls, case: tuple[Array, ManyParts]) -> None:
    """A tensor that is saved in parts along any axis is restored as one."""
    value, parts = case
    with checkpoint_path(adapter) as path:
        came = save_parts(adapter, path, value, parts)
        expect(came is not REFUSED, "It refused to save.", "It must save.")
        expect_tensors(adapter.restore(path, templates_of({"w": value}), 1), {"w": value})


def never_made_up(adapter: Calls, value: Array, parts: ManyParts) -> None:
    """``Broken`` unless the parts are refused when they are saved or when they are restored."""
    with checkpoint_path(adapter) as path:
        if save_parts(adapter, path, value, parts) is not REFUSED:
            adapter.refuses("restore", path, templates_of({"w": value}), 1)


_LONG = st.integers(4, 8).map(lambda rows: counting((rows, 2)))


@rule("R-POLICY-1-holes-inside", 6, "001", PRESENT, "save_parts restore",
      st.tuples(_LONG, st.integers(1, 2), st.integers(0, 1)))  # fmt: skip
def holes_inside_are_refused(adapter: Calls, case: tuple[Array, int, int]) -> None:
    """A tensor with a hole between its parts is refused, be it of rows or of columns."""
    value, cut, axis = case
    if axis:
        value = np.ascontiguousarray(value.T)
    first, last = (0, 0), (0, cut + 1) if axis else (cut + 1, 0)
    parts: ManyParts = [
        (first, value[:, :cut] if axis else value[:cut]),
        (last, value[:, cut + 1 :] if axis else value[cut + 1 :]),
    ]
    never_made_up(adapter, value, parts)


@rule("R-POLICY-1-shifted", 6, "001", PRESENT, "save_parts restore",
      st.tuples(_LONG, st.integers(1, 2), st.booleans()))  # fmt: skip
def a_hole_is_not_made_good_by_an_overlap(adapter: Calls, case: tuple[Array, int, bool]) -> None:
    """A tensor with a hole is refused, also if an overlap elsewhere makes up for its size."""
    value, cut, is_first = case
    count = len(value)
    # Rows [0, cut + 1) and [cut, count - 1): one row twice, and the last one never; or the mirror
    # image of that.
    ranges = [(0, cut + 1), (cut, count - 1)] if is_first else [(1, cut + 2), (cut + 1, count)]
    parts: ManyParts = [
        ((a, 0), value[a:b] + np.float32(100 * n)) for n, (a, b) in enumerate(ranges)
    ]
    never_made_up(adapter, value, parts)


@rule("R-POLICY-3-parts", 6, "001", DTYPES, "save_parts restore",
      st.tuples(_LONG, st.integers(1, 3), st.sampled_from(["float64", "int32"])))  # fmt: skip
def parts_are_not_cast(adapter: Calls, case: tuple[Array, int, str]) -> None:
    """ManyParts of another dtype than the tensor are refused when they are saved or restored."""
    value, cut, name = case
    parts: ManyParts = [
        ((0, 0), value[:cut]),
        ((cut, 0), (value[cut:] + np.float32(0.5)).astype(name)),
    ]
    never_made_up(adapter, value, parts)


@st.composite
def cut_along_any_axis(draw: st.DrawFn) -> tuple[Array, ManyParts]:
    """A tensor of three or four axes, cut once or twice along any of them."""
    shape = draw(st.sampled_from([(2, 3, 4), (3, 2, 2, 3), (2, 2, 5)]))
    value, parts = counting(shape), [((0,) * len(shape), counting(shape))]
    for _ in range(draw(st.integers(1, 2))):
        axis = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(1, shape[axis] - 1))
        halves: ManyParts = []
        for offset, part in parts:
            at = min(max(cut - offset[axis], 0), part.shape[axis])
            later = tuple(o + at * (each == axis) for each, o in enumerate(offset))
            first, second = np.split(part, [at], axis)
            halves += [(o, p) for o, p in ((offset, first), (later, second)) if p.size]
        parts = halves
    return value, draw(st.permutations(parts))


@rule("R-POLICY-7-axes", 6, "001", RESLICING, "save_parts restore", cut_along_any_axis())
def parts_along_any_axis_are_joined(adapter: Calls, case: tuple[Array, ManyParts]) -> None:
    """A tensor of three axes or more that is saved in parts along any of them is restored as
    one."""
    columns_are_joined(adapter, case)


@rule("R-POLICY-1-outside", 6, "001", PRESENT, "save_parts restore",
      st.tuples(_LONG, st.integers(1, 3), st.integers(0, 1), st.booleans()))  # fmt: skip
def parts_outside_are_refused(adapter: Calls, case: tuple[Array, int, int, bool]) -> None:
    """A part that reaches beyond the tensor is refused, or begins before it, also if the others
    make it whole."""
    value, cut, axis, is_before = case
    more = np.concatenate([value, value[:1]])
    start = -len(value) + cut if is_before else cut
    parts: ManyParts = [
        ((0, 0), value[:cut]),
        ((start, 0), value[cut:] if is_before else more[cut:]),
    ]
    if axis:
        value = np.ascontiguousarray(value.T)
        parts = [(offset[::-1], np.ascontiguousarray(part.T)) for offset, part in parts]
    never_made_up(adapter, value, parts)


@rule("R-CKPT-1-uneven-sum", 6, "000", ELASTIC, "save restore_uneven", st.tuples(
    st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 3), st.sampled_from([-1, 1])))  # fmt: skip
def sizes_of_a_restore_add_up(adapter: Calls, case: tuple[list[int], int, int]) -> None:
    """Restoring into shards whose sizes are together more or fewer than the rows is refused."""
    sizes, before, more = case
    tensors = {"w": counting((sum(sizes), 2))}
    with checkpoint_path(adapter) as path:
        adapter.save(path, tensors, before)
        wrong = [*sizes[:-1], sizes[-1] + more]
        adapter.refuses("restore_uneven", path, templates_of(tensors), wrong)
