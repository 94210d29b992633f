"""Level 6: tensors saved in N shards are restored into M; missing ones are never made up. A
checkpoint may hold keys that look alike, many axes, many rows, every dtype, and parts in any
arrangement."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Broken, Calls, expect, expect_equal, text
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import (
    ShardSizes,
    TableCase,
    few_rows,
    hollow_tables,
    many_shards,
    tables,
    uneven_tables,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.partitions import intervals
from shardvar.testing import arrays, counting
from shardvar.testing.arrays import bits

ELASTIC = (
    "being able to save sharded variable to a checkpoint, and restore it to possibly a different "
    "number of shards"
)
PRESENT = (
    "When loading a checkpoint, the general expectation is that all variables present before "
    "saving will be available for loading and restoration."
)
SHAPES = "The user expects the tensor's shape to stay consistent between saving/loading."
DTYPES = (
    "loading a tensor with an altered dtype, when expecting the original dtype, would result in "
    "confusion and hard debugging"
)
RESLICING = "Tensor re-slicing in the callback is totally fine, though."

NamedArrays = dict[str, Array]
SavedCase = tuple[NamedArrays, int, int]
NUMBERS = "bool int8 uint8 int16 int32 int64 float16 float32 float64 complex64 bfloat16".split()


@contextmanager
def checkpoint_path(adapter: Calls) -> Iterator[str]:
    """A path in an empty directory, called ``path`` in the counterexample."""
    # The program of a counterexample makes another directory, since this one is removed at the end.
    adapter.note('path = __import__("tempfile").mkdtemp() + "/model"')
    with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
        yield adapter.name(str(Path(directory) / "model"), "path")


def templates_of(tensors: Mapping[str, Array]) -> NamedArrays:
    """Arrays like these that hold junk: what shows up of it was not restored."""
    return {key: junk(array) for key, array in tensors.items()}


def junk(array: Array) -> Array:
    """An array like another one that holds nothing of it, in native byte order."""
    if array.dtype == object:
        filled = np.empty(array.shape, object)
        filled[...] = b"junk"
        return filled
    # 85 is exact in every dtype of NUMBERS, int8 and bfloat16 included; zeros would look like a
    # hole.
    return np.full(array.shape, 1 if array.dtype == np.bool else 85, array.dtype.newbyteorder("="))


def expect_tensors(came: Any, must: Mapping[str, Array]) -> None:
    """``Broken`` unless every tensor came, bit for bit."""
    for key, array in must.items():
        if key not in came:
            raise Broken(f"It gave {sorted(came)}.", f"It must also give {key!r}.")
        is_text, part = array.dtype == object, np.asarray(came[key])
        wanted = array if is_text else array.astype(array.dtype.newbyteorder("="))
        is_same = part.shape == wanted.shape and part.dtype == wanted.dtype
        if is_same and is_text:
            is_same = part.ravel().tolist() == wanted.ravel().tolist()
        elif is_same:
            # Bytes and not values: NaN differs from itself, and -0.0 equals 0.0.
            is_same = part.tobytes() == wanted.tobytes()
        if not is_same:
            raise Broken(f"It gave {text(part)} as {key!r}.", f"It must give {text(wanted)}.")


def expect_restored(
    adapter: Calls, path: str, tensors: Mapping[str, Array], layout: ShardSizes = 1
) -> None:
    """``Broken`` unless a restore into some layout gives the tensors."""
    restore = adapter.restore_uneven if isinstance(layout, list) else adapter.restore
    expect_tensors(restore(path, templates_of(tensors), layout), tensors)


def expect_saved(answer: Any) -> None:
    expect(answer is not REFUSED, "It refused to save.", "It must save.")


def check_elastic(adapter: Calls, case: tuple[NamedArrays, int, ShardSizes]) -> None:
    tensors, before, after = case
    with checkpoint_path(adapter) as path:
        adapter.save(path, tensors, before)
        expect_restored(adapter, path, tensors, after)


shards = st.integers(1, 4)


@st.composite
def elastic(draw: st.DrawFn) -> SavedCase:
    before, after = draw(shards), draw(shards)
    # Fewer rows than shards are the subject of R-CKPT-1-few.
    rows = draw(st.integers(max(before, after), 8))
    first = counting((rows, *draw(st.sampled_from([(), (2,), (2, 2)]))))
    tensors = {"w": first}
    if draw(st.booleans()):
        # A slash in the key, which a naive writer takes for a directory; negative, so that mixed-up
        # tensors show.
        tensors["dense/bias"] = -counting((max(before, after) + 1,))
    return tensors, before, after


@st.composite
def elastic_many(draw: st.DrawFn) -> SavedCase:
    value, before = draw(many_shards())
    return {"w": value}, before, draw(st.integers(1, 4) | st.integers(11, len(value)))


def check_uneven(adapter: Calls, case: tuple[tuple[Array, list[int]], int]) -> None:
    (value, sizes), before = case
    check_elastic(adapter, ({"w": value}, before, sizes))


@st.composite
def typed(draw: st.DrawFn, names: list[str]) -> SavedCase:
    """A tensor of any bits of some dtype, with a row a shard at least."""
    dtype = np.dtype(draw(st.sampled_from(names)))
    before, after = draw(shards), draw(shards)
    rows = max(before, after) + draw(st.integers(0, 3))
    return {"w": draw(bits(dtype, draw(st.sampled_from([(rows,), (rows, 2)]))))}, before, after


texts = st.lists(
    st.binary(max_size=5) | st.sampled_from([b"", b"a\0", b"\0"]), min_size=4, max_size=4
)


rules(6, "000",
    ("R-CKPT-1", ELASTIC, "save restore", elastic(), check_elastic,
     "A tensor saved in some number of shards is restored, bit for bit, into any other number"),
    ("R-CKPT-1-many", ELASTIC, "save restore", elastic_many(), check_elastic,
     "A tensor saved in more than ten shards is restored; the name of shard 10 sorts before the name of shard 2"),
    ("R-CKPT-1-uneven", ELASTIC, "save restore_uneven",
     st.tuples(uneven_tables(((), (2,)), 2), st.just(1) | st.just(2)), check_uneven,
     "A saved tensor is restored into a variable in shards of uneven sizes"),
    ("R-CKPT-1-empty-shards", ELASTIC, "save restore_uneven",
     st.tuples(hollow_tables(((), (2,))), st.just(1)), check_uneven,
     "A saved tensor is restored into a variable of whose shards some are empty"),
    ("R-CKPT-1-few", ELASTIC, "save restore",
     st.tuples(few_rows(), shards).map(lambda drawn: ({"w": drawn[0][0]}, drawn[0][1], drawn[1])), check_elastic,
     "A tensor with fewer rows than shards is saved and restored"),
    ("R-CKPT-1-empty", ELASTIC, "save restore",
     st.tuples(st.sampled_from([(0,), (0, 3), (2, 0)]), shards, shards).map(
         lambda drawn: ({"w": counting((4,)), "none": counting(drawn[0])}, drawn[1], drawn[2])),
     check_elastic,
     "A tensor without elements is restored with its shape, not dropped"),
    ("R-CKPT-1-scalars", ELASTIC, "save restore",
     st.tuples(shards, shards).map(lambda n: ({"step": np.array(7, np.int64)}, *n)), check_elastic,
     "A scalar is saved and restored together with sharded variables"),
    ("R-CKPT-1-dtypes", ELASTIC, "save restore", typed(NUMBERS), check_elastic,
     "Tensors of every dtype are restored bit for bit, NaNs and their payloads included"),
    ("R-CKPT-1-strings", ELASTIC, "save restore",
     texts.map(lambda some: ({"vocabulary": np.array([*some, None], object)[:-1]}, 1, 1)), check_elastic,
     "Strings are restored whole, with the NULs at their ends"),
    ("R-CKPT-1-strides", ELASTIC, "save restore",
     st.tuples(arrays(["float32", "int64"], 2, 4).filter(lambda a: a.ndim > 0 and a.size > 0), shards).map(
         lambda drawn: ({"w": drawn[0]}, 1, min(drawn[1], len(drawn[0])))),
     check_elastic,
     "Saving keeps the values of an array, however it lies in memory: transposed, reversed, big-endian"),
)  # fmt: skip


@rule("R-CKPT-1-again", 6, "000", ELASTIC, "save restore", elastic())
def a_second_save_replaces(adapter: Calls, case: SavedCase) -> None:
    """A second save at the same path replaces the first one whole, or is refused and leaves it
    whole."""
    tensors, before, after = case
    second = {key: array * 2 for key, array in tensors.items()}
    with checkpoint_path(adapter) as path:
        adapter.save(path, tensors, before)
        # Mostly in another number of shards, so that files that the first save left behind would be
        # found.
        refused = adapter.attempt("save", path, second, after) is REFUSED
        expect_restored(adapter, path, tensors if refused else second, before)


def _refuses_restore(adapter: Calls, case: SavedCase, templates: NamedArrays) -> None:
    tensors, before, after = case
    with checkpoint_path(adapter) as path:
        adapter.save(path, tensors, before)
        adapter.refuses("restore", path, templates, after)


rules(6, "001",
    ("R-POLICY-1-restore", PRESENT, "save restore",
     elastic(),
     lambda adapter, case: _refuses_restore(adapter, case, templates_of(case[0]) | {"absent": junk(case[0]["w"])}),
     "Restoring a tensor that was never saved is refused, not made up and not left as it was"),
)  # fmt: skip


@rule("R-POLICY-2-restore", 6, "001", SHAPES, "save restore",
      st.tuples(elastic(), st.sampled_from([-1, 1])))  # fmt: skip
def other_shapes_are_refused(adapter: Calls, case: tuple[SavedCase, int]) -> None:
    """Restoring into a variable with more or fewer rows is refused, not cropped and not padded."""
    (tensors, before, _), more = case
    w = tensors["w"]
    # From a single row, one fewer would leave an empty variable: 1 - 1 + 2 = 2 rows are asked for
    # instead.
    other = counting((len(w) + more + (len(w) < 2) * 2, *w.shape[1:]))
    _refuses_restore(adapter, (tensors, before, 1), templates_of(tensors) | {"w": other})


@rule("R-POLICY-3-restore", 6, "001", DTYPES, "save restore",
      st.tuples(elastic(), st.sampled_from(["float64", "int32", "float16"])))  # fmt: skip
def other_dtypes_are_refused(adapter: Calls, case: tuple[SavedCase, str]) -> None:
    """Restoring into a variable of another dtype is refused, or gives the dtype that was saved: no
    silent cast."""
    (tensors, before, after), name = case
    # Halves, so that a silent cast to int32 would change the values too.
    fraction = {"w": tensors["w"] + np.float32(0.5)}
    with checkpoint_path(adapter) as path:
        adapter.save(path, fraction, before)
        came = adapter.attempt("restore", path, {"w": junk(fraction["w"]).astype(name)}, after)
        if came is not REFUSED:
            expect_tensors(came, fraction)


def check_list(adapter: Calls, tensors: NamedArrays, before: int) -> None:
    must = {key: (array.shape, str(array.dtype)) for key, array in tensors.items()}
    with checkpoint_path(adapter) as path:
        adapter.save(path, tensors, before)
        came = {
            key: (tuple(map(int, shape)), str(np.dtype(dtype)))
            for key, (shape, dtype) in adapter.list_tensors(path).items()
        }
        are_listed = {key: came.get(key) for key in must} == must
        expect(are_listed, f"It gave {came}.", f"It must give {must}.")


rules(6, "001",
    ("R-POLICY-1-list", PRESENT, "save list_tensors",
     elastic(), lambda adapter, case: check_list(adapter, case[0], case[1]),
     "Every tensor is listed with its full shape and its dtype"),
)  # fmt: skip


@rule("R-CKPT-1-rows", 6, "000", ELASTIC, "save read_rows",
      st.tuples(tables(), st.integers(0, 8), st.integers(0, 8)))  # fmt: skip
def rows_are_read(adapter: Calls, case: tuple[tuple[Array, int], int, int]) -> None:
    """Some rows of a tensor are those rows, whichever slices hold them."""
    (value, num_shards), one, other = case
    start, stop = sorted((min(one, len(value)), min(other, len(value))))
    with checkpoint_path(adapter) as path:
        adapter.save(path, {"w": value}, num_shards)
        expect_equal(adapter.read_rows(path, "w", start, stop), value[start:stop])


ManyParts = list[tuple[tuple[int, ...], Array]]
"""Offsets and arrays."""
SavedParts = tuple[Array, ManyParts]


def rows_of(value: Array, ranges: Iterable[tuple[int, int]], bias: float = 0) -> ManyParts:
    """Return ranges of rows as parts, part n shifted by ``bias * n``: no order of writing overlapping
    parts is right then."""
    return [((a, 0), value[a:b] + np.float32(bias * n)) for n, (a, b) in enumerate(ranges)]


def _parts_of(
    cuts: Callable[[int, int], list[tuple[int, int]]], bias: float = 0
) -> st.SearchStrategy[SavedParts]:
    """A table and parts: what ``cuts`` makes of its length and a row."""
    sizes = st.integers(2, 6).flatmap(
        lambda rows: st.tuples(st.just(rows), st.integers(1, rows - 1))
    )

    def parts(drawn: tuple[int, int]) -> SavedParts:
        value = counting((drawn[0], 2))
        return value, rows_of(value, cuts(*drawn), bias)

    return sizes.map(parts)


def save_parts(adapter: Calls, path: str, case: SavedParts) -> Any:
    value, parts = case
    return adapter.attempt("save_parts", path, "w", value.shape, value.dtype, parts)


def check_joined(adapter: Calls, case: SavedParts, after: int = 1) -> None:
    with checkpoint_path(adapter) as path:
        expect_saved(save_parts(adapter, path, case))
        expect_restored(adapter, path, {"w": case[0]}, after)


def check_uneven_parts(adapter: Calls, case: tuple[Array, list[int]]) -> None:
    value, sizes = case
    check_joined(adapter, (value, rows_of(value, intervals(sizes))), min(2, len(value)))


def check_never_made_up(adapter: Calls, case: SavedParts) -> None:
    """``Broken`` unless the parts are refused when they are saved or when they are restored."""
    with checkpoint_path(adapter) as path:
        if save_parts(adapter, path, case) is not REFUSED:
            adapter.refuses("restore", path, templates_of({"w": case[0]}), 1)


rules(6, "001",
    ("R-POLICY-7", RESLICING, "save_parts restore",
     _parts_of(lambda rows, cut: [(cut, rows), (0, cut)]), check_joined,
     "A tensor that is saved in parts, in any order, is restored as one"),
    ("R-POLICY-7-uneven", RESLICING, "save_parts restore", uneven_tables(((2,),), 2), check_uneven_parts,
     "A tensor that is saved in parts of uneven sizes is restored into equal shards"),
    ("R-POLICY-7-empty-shards", RESLICING, "save_parts restore", hollow_tables(((2,),)), check_uneven_parts,
     "A tensor that is saved in parts, some of them empty, is restored"),
    ("R-POLICY-1-holes", PRESENT, "save_parts restore",
     _parts_of(lambda _rows, cut: [(0, cut)]) | _parts_of(lambda rows, cut: [(cut, rows)]), check_never_made_up,
     "A tensor with rows that were never saved is refused when it is saved or restored: no zeros, no old values"),
    ("R-POLICY-1-overlaps", PRESENT, "save_parts restore",
     _parts_of(lambda rows, cut: [(0, cut + 1), (cut, rows)], bias=100), check_never_made_up,
     "A tensor whose parts contradict each other is refused when it is saved or restored"),
)  # fmt: skip


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


ENCODED = (
    ("\u00e9", "e\u0301", "e"), ("\u65e5\u672c", "\u65e5", "\u672c"), ("\u1e9e", "ss", "\u00df"),
    ("a\u200bb", "ab", "a b"), ("\U0001f600", "\ufffd", "?"),
)  # fmt: skip
"""Keys outside ASCII that normal forms, other encodings or invisible characters would make one."""


@st.composite
def of_many_axes(draw: st.DrawFn) -> SavedCase:
    before, after = draw(shards), draw(shards)
    rest = draw(st.sampled_from([(2, 2), (2, 2, 2), (1, 3, 3), (2, 1, 2, 2)]))
    return {"w": counting((max(before, after), *rest))}, before, after


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


@st.composite
def special(draw: st.DrawFn) -> SavedCase:
    """The numbers of a floating-point dtype that are easily lost."""
    dtype = np.dtype(draw(st.sampled_from(["float16", "float32", "float64", "bfloat16"])))
    nan = np.array(np.nan, dtype)
    # The smallest subnormal number has the bits of the integer 1.
    least = np.array(1, f"u{dtype.itemsize}").view(dtype)
    odd = [np.array(x, dtype) for x in (0.0, -0.0, np.inf, -np.inf, 1.0)]
    odd += [nan, -nan, least, -least]
    value = np.stack(draw(st.permutations(odd)))
    return {"w": value}, draw(shards), draw(shards)


SCALARS = (np.float32(0.1), np.float64(-1e-300), np.int8(-1), np.uint64(2**64 - 1), np.bool(True),
           np.complex64(1 - 2j), np.float16(0.5))  # fmt: skip


rules(6, "000",
    ("R-CKPT-1-keys", ELASTIC, "save restore", alike(), check_elastic,
     "Tensors of one shape whose keys look alike are restored each under its own key"),
    ("R-CKPT-1-keys-encoded", ELASTIC, "save restore",
     st.tuples(st.sampled_from(ENCODED), shards, shards).map(lambda drawn: (
         {key: counting((4, 2)) + np.float32(100 * n) for n, key in enumerate(drawn[0])}, *drawn[1:])),
     check_elastic,
     "Tensors whose keys are not ASCII are restored each under its own key, as it was written"),
    ("R-CKPT-1-axes", ELASTIC, "save restore", of_many_axes(), check_elastic,
     "A tensor of many axes is restored in their order"),
    ("R-CKPT-1-long", ELASTIC, "save restore",
     st.tuples(st.sampled_from([4097, 65537, 100_003]), shards, shards).map(
         lambda drawn: ({"w": counting((drawn[0],))}, drawn[1], drawn[2])),
     check_elastic,
     "A tensor of many rows is restored whole"),
    ("R-CKPT-1-dtypes-wide", ELASTIC, "save restore", of_all_digits(), check_elastic,
     "Unsigned integers, and numbers of eight bytes and more, are restored to the last digit"),
    ("R-CKPT-1-dtypes-narrow", ELASTIC, "save restore", typed(NARROW), check_elastic,
     "Floating-point numbers of eight bits, and integers of four, are restored bit for bit"),
    ("R-CKPT-1-special", ELASTIC, "save restore", special(), check_elastic,
     "Zeros of either sign, infinities, NaNs and the smallest numbers are restored bit for bit"),
    ("R-CKPT-1-scalars-dtypes", ELASTIC, "save restore",
     st.tuples(st.sampled_from(SCALARS), shards, shards).map(
         lambda drawn: ({"w": counting((4,)), "rate": np.array(drawn[0])}, *drawn[1:])),
     check_elastic,
     "A scalar keeps its dtype, its sign and its fraction"),
)  # fmt: skip


@st.composite
def other_shapes_of_one_size(draw: st.DrawFn) -> tuple[TableCase, tuple[int, ...]]:
    """A table, and another shape of as many elements, or of as many rows."""
    value, num_shards = draw(tables(row_shapes=((2,), (3,), (2, 2)), max_more=3))
    rows, columns = len(value), value[0].size
    shapes = [(rows * columns,), (columns, rows), (rows, columns, 1), (rows, columns + 1), (rows,)]
    others = [shape for shape in shapes if shape != value.shape]
    return (value, num_shards), draw(st.sampled_from(others))


@rule("R-POLICY-2-restore-shape", 6, "001", SHAPES, "save restore", other_shapes_of_one_size())
def shapes_of_one_size_are_refused(adapter: Calls, case: tuple[TableCase, tuple[int, ...]]) -> None:
    """Restoring into a variable of another shape is refused, be it of as many elements or rows."""
    (value, num_shards), shape = case
    templates = {"w": np.full(shape, 85, value.dtype)}
    _refuses_restore(adapter, ({"w": value}, num_shards, 1), templates)


CONTENTS: NamedArrays = {
    "w": counting((4, 2)), "scalar": np.array(7, np.int64), "none": np.zeros((0, 3), np.float32),
    "half": counting((4,), "bfloat16"), "flags": np.array([True, False, True, True]),
}  # fmt: skip


rules(6, "001",
    ("R-POLICY-1-list-all", PRESENT, "save list_tensors",
     st.sets(st.sampled_from(sorted(CONTENTS)), min_size=1).map(sorted),
     lambda adapter, case: check_list(adapter, {key: CONTENTS[key] for key in case}, 1),
     "Scalars, tensors without elements and tensors of every dtype are listed with their shapes and dtypes"),
)  # fmt: skip


# Parts in any arrangement.


@st.composite
def cut_along_columns(draw: st.DrawFn) -> SavedParts:
    """A table cut along its columns, and perhaps along its rows too; parts in any order."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    value, cut = counting((rows, columns)), draw(st.integers(1, columns - 1))
    halves = sorted({0, draw(st.integers(0, rows - 1)), rows})
    parts: ManyParts = []
    for top, bottom in pairwise(halves):
        parts += [((top, 0), value[top:bottom, :cut]), ((top, cut), value[top:bottom, cut:])]
    return value, draw(st.permutations(parts))


rules(6, "001",
    ("R-POLICY-7-columns", RESLICING, "save_parts restore", cut_along_columns(), check_joined,
     "A tensor that is saved in parts along any axis is restored as one"),
)  # fmt: skip


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
    check_never_made_up(adapter, (value, parts))


@rule("R-POLICY-1-shifted", 6, "001", PRESENT, "save_parts restore",
      st.tuples(_LONG, st.integers(1, 2), st.booleans()))  # fmt: skip
def a_hole_is_not_made_good_by_an_overlap(adapter: Calls, case: tuple[Array, int, bool]) -> None:
    """A tensor with a hole is refused, also if an overlap elsewhere makes up for its size."""
    value, cut, is_first = case
    count = len(value)
    # Rows [0, cut + 1) and [cut, count - 1): one row twice, and the last one never; or the mirror
    # image of that.
    ranges = [(0, cut + 1), (cut, count - 1)] if is_first else [(1, cut + 2), (cut + 1, count)]
    check_never_made_up(adapter, (value, rows_of(value, ranges, bias=100)))


@rule("R-POLICY-3-parts", 6, "001", DTYPES, "save_parts restore",
      st.tuples(_LONG, st.integers(1, 3), st.sampled_from(["float64", "int32"])))  # fmt: skip
def parts_are_not_cast(adapter: Calls, case: tuple[Array, int, str]) -> None:
    """ManyParts of another dtype than the tensor are refused when they are saved or restored."""
    value, cut, name = case
    parts: ManyParts = [
        ((0, 0), value[:cut]),
        ((cut, 0), (value[cut:] + np.float32(0.5)).astype(name)),
    ]
    check_never_made_up(adapter, (value, parts))


@st.composite
def cut_along_any_axis(draw: st.DrawFn) -> SavedParts:
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


rules(6, "001",
    ("R-POLICY-7-axes", RESLICING, "save_parts restore", cut_along_any_axis(), check_joined,
     "A tensor of three axes or more that is saved in parts along any of them is restored as one"),
)  # fmt: skip


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
    check_never_made_up(adapter, (value, parts))


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
