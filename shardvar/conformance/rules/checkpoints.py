"""Level 6: tensors saved in N shards are restored into M; missing ones are never made up. A
checkpoint may hold keys that look alike, many axes, many rows, every dtype, and parts in any
arrangement."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Broken, Calls, expect, expect_equal, text
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import (
    EVERY,
    RESTS,
    ROWS,
    ShardSizes,
    along,
    few_rows,
    fractions,
    hollow_tables,
    many_shards,
    numbers,
    tables,
    uneven_tables,
    unless_refused,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.partitions import intervals
from shardvar.testing import counting

NamedArrays = dict[str, Array]
SavedCase = tuple[NamedArrays, int, int]


@contextmanager
def checkpoint_path(adapter: Calls, *saved: Any) -> Iterator[str]:
    """A path in an empty directory, called ``path`` in the counterexample, perhaps with a checkpoint:
    tensors that were saved in some number of shards."""
    # The program of a counterexample makes another directory, since this one is removed at the end.
    adapter.note('path = __import__("tempfile").mkdtemp() + "/model"')
    with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
        path = adapter.name(str(Path(directory) / "model"), "path")
        if saved:
            # The adapter gets a copy: a tensor that it takes out of the dict must not be lost.
            adapter.save(path, dict(saved[0]), *saved[1:])
        yield path


def templates_of(tensors: Mapping[str, Array]) -> NamedArrays:
    """Arrays like these that hold junk, in another order: what shows up of it was not restored."""
    return {key: junk(tensors[key]) for key in reversed([*tensors])}


def junk(array: Array) -> Array:
    """An array like another one that holds nothing of it, in native byte order."""
    if array.dtype == object:
        filled = np.empty(array.shape, object)
        filled[...] = b"junk"
        return filled
    # 85 is exact in every dtype, int8 and bfloat16 included; zeros would look like a hole.
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


def check_elastic(adapter: Calls, case: tuple[NamedArrays, int, ShardSizes]) -> None:
    tensors, before, after = case
    with checkpoint_path(adapter, tensors, before) as path:
        expect_restored(adapter, path, tensors, after)


shards = st.integers(1, 4)


@st.composite
def elastic(draw: st.DrawFn) -> SavedCase:
    before, after = draw(shards), draw(shards)
    # Fewer rows than shards are the subject of R-CKPT-1-few.
    rows = draw(st.integers(max(before, after), 8))
    first = counting((rows, *draw(st.sampled_from([(), (2,), (2, 2), (1, 3, 3), (2, 1, 2, 2)]))))
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
    check_elastic(adapter, ({"w": value, "b": -value}, min(before, len(value)), sizes))


SCALARS = (np.float32(0.1), np.float64(-1e-300), np.int8(-1), np.uint64(2**64 - 1), np.int64(2**53 + 1), np.bool(True),
           np.complex64(1 - 2j), np.float16(0.5), np.float32(-0.0))  # fmt: skip

texts = st.lists(
    st.binary(max_size=5) | st.sampled_from([b"", b"a\0", b"\0", b"x" * 300]),
    min_size=4,
    max_size=4,
)


rules(
    ("R-CKPT-1", "save restore", elastic(), check_elastic,
     "A tensor saved in some number of shards is restored, bit for bit, into any other number"),
    ("R-CKPT-1-many", "save restore", elastic_many(), check_elastic,
     "A tensor saved in more than ten shards is restored; the name of shard 10 sorts before the name of shard 2"),
    ("R-CKPT-1-uneven", "save restore_uneven",
     st.tuples(uneven_tables(((), (2,)), 2), st.integers(1, 3)), check_uneven,
     "A saved tensor is restored into a variable in shards of uneven sizes"),
    ("R-CKPT-1-empty-shards", "save restore_uneven",
     st.tuples(hollow_tables(((), (2,))), st.just(1)), check_uneven,
     "A saved tensor is restored into a variable of whose shards some are empty"),
    ("R-CKPT-1-few", "save restore",
     st.tuples(few_rows(), shards).map(lambda drawn: ({"w": drawn[0][0]}, drawn[0][1], drawn[1])), check_elastic,
     "A tensor with fewer rows than shards is saved and restored"),
    ("R-CKPT-1-empty", "save restore",
     [({"w": counting((4,)), "none": counting(shape)}, before, after)
      for shape, before, after in product(((0,), (0, 3), (2, 0)), (1, 2, 4), (1, 3))],
     check_elastic,
     "A tensor without elements is restored with its shape, not dropped"),
    ("R-CKPT-1-scalars", "save restore",
     [({"w": counting((4,)), "rate": np.array(scalar)}, before, after)
      for scalar in SCALARS for before, after in ((1, 1), (2, 3), (4, 1))], check_elastic,
     "A scalar is restored together with sharded variables, and keeps its dtype, its sign and its fraction"),
    ("R-CKPT-1-strings", "save restore",
     st.builds(lambda some, rest, before, after: (
         {"vocabulary": np.array([*some, None], object)[:-1].reshape(-1, *rest)}, before, after),
         texts, st.sampled_from([(), (2,)]), st.integers(1, 2), st.integers(1, 2)), check_elastic,
     "Strings are restored whole, with the NULs at their ends"),
)  # fmt: skip


@rule("R-CKPT-1-place", "save", [1, 2])
def nothing_lies_next_to_a_checkpoint(adapter: Calls, num_shards: int) -> None:
    """Saving writes a file or a directory of the path's name, or files whose names begin with it."""
    with checkpoint_path(adapter, {"w": counting((4, 2))}, num_shards) as path:
        place = Path(path)
        names = sorted(each.name for each in place.parent.iterdir())
        beside = [name for name in names if not name.startswith(place.name)]
        expect(not beside, f"It also wrote {beside}.", "It must write nothing next to the path.")


@rule("R-CKPT-1-again", "save restore", elastic())
def a_second_save_replaces(adapter: Calls, case: SavedCase) -> None:
    """A second save at the same path replaces the first one whole, or is refused and leaves it
    whole."""
    tensors, before, after = case
    second = {"w": tensors["w"][1:] * 2}
    with checkpoint_path(adapter, tensors, before) as path:
        expect_restored(adapter, path, tensors, after)
        # Mostly in another number of shards, so that files that the first save left behind would be
        # found.
        refused = adapter.has_refused("save", path, second, after)
        expect_restored(adapter, path, tensors if refused else second, before)
        for key in [] if refused else tensors.keys() - second.keys():
            adapter.refuses("restore", path, templates_of({key: tensors[key]}), after)


def _refuses_restore(adapter: Calls, case: SavedCase, templates: NamedArrays) -> None:
    tensors, before, after = case
    with checkpoint_path(adapter, tensors, before) as path:
        adapter.refuses("restore", path, templates, after)
        if adapter.has("restore_uneven"):
            adapter.refuses("restore_uneven", path, templates, [len(np.atleast_1d(tensors["w"]))])


rules(
    ("R-POLICY-1-restore", "save restore",
     elastic(),
     lambda adapter, case: _refuses_restore(adapter, case, templates_of(case[0]) | {"absent": junk(case[0]["w"])}),
     "Restoring a tensor that was never saved is refused, not made up and not left as it was"),
)  # fmt: skip


_SHAPES = [
    (counting((4, *rest)), shape)
    for rest in ((), (2,), (2, 2))
    for rows in [(4, *rest)]
    for shape in ((5, *rest), (3, *rest), (prod(rows),), (*rest, 4), (*rows, 1), (4, 3), (4,))
    if shape != rows
] + [(counting(()), (1,)), (counting((1,)), ())]


@rule("R-POLICY-2-restore", "save restore", [*product(_SHAPES, ((1, 1), (2, 1), (3, 2)))])
def other_shapes_are_refused(adapter: Calls, case: tuple[Any, Any]) -> None:
    """Restoring into a variable of another shape is refused, not cropped and not padded, be it of as
    many elements or rows."""
    (value, shape), (before, after) = case
    _refuses_restore(adapter, ({"w": value}, before, after), {"w": np.full(shape, 85, value.dtype)})


@rule("R-POLICY-3-restore", "save restore",
      [*product(("float32 float64", "float32 int32", "float32 float16", "int32 uint32", "int64 float64", "uint8 int8",
                 "uint8 bool", "float32 complex64", "float16 float32"), (1, 2), (1, 3))])  # fmt: skip
def other_dtypes_are_refused(adapter: Calls, case: tuple[str, int, int]) -> None:
    """Restoring into a variable of another dtype is refused, or gives the dtype that was saved: no
    silent cast."""
    names, before, after = case
    saved, wanted = names.split()
    value = fractions((4, 2), saved)
    with checkpoint_path(adapter) as path:
        adapter.attempt("save", path, {"w": value}, before)
        came = adapter.attempt("restore", path, {"w": junk(value).astype(wanted)}, after)
        expect_tensors(came, {"w": value})


CONTENTS: NamedArrays = {
    "w": counting((4, 2)), "scalar": np.array(7, np.int64), "none": np.zeros((0, 3), np.float32),
}  # fmt: skip


def expect_listed(adapter: Calls, path: str, tensors: NamedArrays) -> None:
    must = {key: (array.shape, str(array.dtype)) for key, array in tensors.items()}
    came = {
        key: (tuple(map(int, shape)), str(np.dtype(dtype)))
        for key, (shape, dtype) in adapter.list_tensors(path).items()
    }
    expect(came | must == came, f"It gave {came}.", f"It must give {must}.")


def check_list(adapter: Calls, tensors: NamedArrays) -> None:
    with checkpoint_path(adapter, tensors, 2) as path:
        expect_listed(adapter, path, tensors)


rules(
    ("R-POLICY-1-list", "save list_tensors",
     elastic().map(lambda case: case[0]), check_list, "Every tensor is listed with its full shape and its dtype"),
    ("R-POLICY-1-list-numbers", "list_tensors save",
     [{"w": numbers(name, (ROWS, *rest))} for name, rest in product(EVERY, RESTS)], unless_refused(check_list),
     "Tensors of any dtype and of one to four axes are listed with their shapes and dtypes, or refused"),
    ("R-POLICY-1-list-all", "save list_tensors", [*({key: value} for key, value in CONTENTS.items()), CONTENTS],
     check_list, "Scalars and tensors without elements are listed with their shapes and dtypes"),
)  # fmt: skip


@rule("R-CKPT-1-rows", "save read_rows",
      st.tuples(tables() | many_shards(), st.integers(0, 16), st.integers(0, 16)))  # fmt: skip
def rows_are_read(adapter: Calls, case: tuple[tuple[Array, int], int, int]) -> None:
    """Some rows of a tensor are those rows, whichever slices hold them."""
    (value, num_shards), one, other = case
    start, stop = sorted((min(one, len(value)), min(other, len(value))))
    with checkpoint_path(adapter, {"w": value}, num_shards) as path:
        expect_equal(adapter.read_rows(path, "w", start, stop), value[start:stop])


ManyParts = list[tuple[tuple[int, ...], Array]]
"""Offsets and arrays."""
SavedParts = tuple[Array, ManyParts]


def bands(
    value: Array, ranges: Iterable[tuple[int, int]], axis: int = 0, bias: float = 0
) -> ManyParts:
    """Return ranges of rows or of columns as parts, part n shifted by ``bias * n``: no order of writing
    overlapping parts is right then."""
    return [
        (
            (0, a) if axis else (a, 0),
            value[(slice(None),) * axis + (slice(a, b),)] + np.float32(bias * n),
        )
        for n, (a, b) in enumerate(ranges)
    ]


def save_parts(adapter: Calls, path: str, case: SavedParts) -> None:
    value, parts = case
    adapter.save_parts(path, "w", value.shape, value.dtype, parts)


def check_joined(adapter: Calls, case: SavedParts, after: int = 1) -> None:
    with checkpoint_path(adapter) as path:
        save_parts(adapter, path, case)
        expect_restored(adapter, path, {"w": case[0]}, after)


def check_uneven_parts(adapter: Calls, case: tuple[Array, list[int]]) -> None:
    value, sizes = case
    check_joined(adapter, (value, bands(value, intervals(sizes))), min(2, len(value)))


def check_never_made_up(adapter: Calls, case: SavedParts) -> None:
    """``Broken`` unless the parts are refused when they are saved or when they are restored."""
    with checkpoint_path(adapter) as path:
        value, parts = case
        adapter.attempt("save_parts", path, "w", value.shape, value.dtype, parts)
        adapter.refuses("restore", path, templates_of({"w": value}), 1)


_CUTS = [(counting((rows, 2)), rows, cut) for rows in range(2, 7) for cut in range(1, rows)]
_TABLES = [(along(axis, n), n, cut, axis) for n in (4, 5, 8) for cut in (1, 2) for axis in (0, 1)]
"""Tables of some length along an axis, and a place there."""


@st.composite
def cut_along_any_axis(draw: st.DrawFn) -> SavedParts:
    """A tensor of two to four axes, cut once or twice along any of them; parts in any order."""
    shape = draw(st.sampled_from([(3, 4), (2, 3, 4), (3, 2, 2, 3), (2, 2, 5)]))
    value = counting(shape, draw(st.sampled_from(["float32", "float64", "int16"])))
    parts: ManyParts = [((0,) * len(shape), value)]
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


ALIKE = (
    ("w", "w2", "w/w"), ("layer.1", "layer.10", "layer.1.w"), ("Bias", "bias", "BIAS"),
    ("a/b", "a.b", "a_b"), ("x", "x ", "x.0"), ("café", "cafe", "caf"),
    ("\u00e9", "e\u0301", "e"), ("\u65e5\u672c", "\u65e5", "\u672c"), ("\u1e9e", "ss", "\u00df"),
    ("a\u200bb", "ab", "a b"), ("\U0001f600", "\ufffd", "?"),
)  # fmt: skip
"""Keys that one of another makes: its beginning, its other case, its other separator; and keys outside
ASCII that normal forms, other encodings or invisible characters would make one."""


@st.composite
def alike(draw: st.DrawFn) -> SavedCase:
    """Tensors of one shape under keys that look alike, which differ in all rows, in one or in none."""
    before, after = draw(shards), draw(shards)
    rows = max(before, after) + draw(st.integers(0, 2) | st.just(20))
    keys = draw(st.permutations(draw(st.sampled_from(ALIKE))))
    differs = np.ones((rows, 1), np.float32)
    if draw(st.booleans()):
        differs *= np.arange(rows)[:, None] == draw(st.integers(0, rows))
    tensors = {
        key: counting((rows, 2)) + np.float32(100 * n) * differs for n, key in enumerate(keys)
    }
    return tensors, before, after


rules(
    ("R-POLICY-7", "save_parts restore",
     [*((value, bands(value, [(cut, n), (0, cut)])) for value, n, cut in _CUTS),
      *((counting(shape), [((0,) * len(shape), counting(shape))]) for shape in ((), (0, 3), (3, 0)))],
     check_joined, "A tensor that is saved in parts, in any order, is restored as one"),
    ("R-POLICY-7-empty-shards", "save_parts restore", hollow_tables(((2,),)), check_uneven_parts,
     "A tensor that is saved in parts, some of them empty, is restored"),
    ("R-POLICY-7-axes", "save_parts restore", cut_along_any_axis(), check_joined,
     "A tensor that is saved in parts along any of its axes is restored as one"),
    *(
        (name, "save_parts restore", cases, check_never_made_up, f"{law} when it is saved or restored")
        for name, cases, law in (
            ("R-POLICY-1-holes",
             [(value, bands(value, some, axis))
              for value, n, cut, axis in _TABLES
              for some in ([(0, cut)], [(cut, n)], [(0, n - 1)], [(0, cut), (cut + 1, n)])],
             "A tensor with rows or columns that were never saved, also between its parts, is refused: no zeros and no "
             "old values are made up,"),
            ("R-POLICY-1-overlaps",
             [(value, bands(value, [(0, cut), *second], bias=100))
              for value, n, cut in _CUTS for second in ([(cut - 1, n)], [(cut, n), (cut, n)])],
             "A tensor whose parts contradict each other is refused"),
            # Rows [0, cut + 1) and [cut, n - 1): one row twice, and the last one never; or the mirror image.
            ("R-POLICY-1-shifted",
             [(value, bands(value, ranges, axis, 100))
              for value, n, cut, axis in _TABLES
              for ranges in ([(0, cut + 1), (cut, n - 1)], [(1, cut + 2), (cut + 1, n)])],
             "A tensor with a hole is refused, also if an overlap elsewhere makes up for its size,"),
            ("R-POLICY-1-outside",
             [(along(axis, n), parts)
              for _, n, cut, axis in _TABLES
              for first, (offset, part) in [bands(along(axis, n), [(0, cut), (cut, n)], axis)]
              for parts in (bands(along(axis, n + 1), [(0, cut), (cut, n + 1)], axis),
                            # The second begins before the tensor.
                            [first, (tuple(o - n * (at == axis) for at, o in enumerate(offset)), part)])],
             "A part that reaches beyond the tensor is refused, or begins before it, also if the others make it "
             "whole,"),
            ("R-POLICY-3-parts",
             [(value, [first, (offset, (part + np.float32(0.5)).astype(name))])
              for value, n, cut in _CUTS
              for first, (offset, part) in [bands(value, [(0, cut), (cut, n)])]
              for name in ("float64", "int32", "float16", "int8")],
             "Parts of another dtype than the tensor are refused"),
        )
    ),
    ("R-CKPT-1-keys", "save restore", alike(), check_elastic,
     "Tensors of one shape whose keys look alike are restored each under its own key, as it was written"),
    ("R-CKPT-1-long", "save restore",
     [({"w": counting((rows,))}, before, after)
      for rows in (4097, 65537, 300_007) for before, after in ((1, 1), (3, 2), (2, 4))],
     check_elastic,
     "A tensor of many rows is restored whole"),
)  # fmt: skip


@rule("R-CKPT-1-uneven-sum", "save restore_uneven", [
    (counting((sum(sizes), 2)), [*sizes[:-1], sizes[-1] + more], before)
    for sizes in ([3], [1, 2], [3, 1, 1]) for more in (-1, 1) for before in (1, 3)])  # fmt: skip
def sizes_of_a_restore_add_up(adapter: Calls, case: tuple[Array, list[int], int]) -> None:
    """Restoring into shards whose sizes are together more or fewer than the rows is refused."""
    value, sizes, before = case
    with checkpoint_path(adapter, {"w": value}, before) as path:
        adapter.refuses("restore_uneven", path, templates_of({"w": value}), sizes)


def check_no_shards(adapter: Calls, count: int, method: str) -> None:
    tensors = {"w": counting((ROWS, 2))}
    with checkpoint_path(adapter) as path:
        if method == "restore":
            adapter.save(path, tensors, 2)
        adapter.refuses(method, path, tensors, count)


rules(*(
    (f"R-CKPT-1{suffix}-none", f"{method} save", [0, -1], partial(check_no_shards, method=method),
     f"`{method}` in fewer shards than one is refused")
    for suffix, method in (("-save", "save"), ("", "restore"))
))  # fmt: skip


@rule("R-CKPT-1-rows-outside", "read_rows save", [3, 5, 7])
def rows_outside_are_not_made_up(adapter: Calls, stop: int) -> None:
    """Rows of a tensor that was never saved are refused; rows beyond the last are refused or left
    out."""
    value = counting((ROWS, 2))
    with checkpoint_path(adapter, {"w": value}, 2) as path:
        adapter.refuses("read_rows", path, "never", 0, 2)
        expect_equal(adapter.attempt("read_rows", path, "w", 2, stop), value[2:stop])


@rule("R-CKPT-1-nothing", "restore read_rows", ["restore", "read_rows"])
def nothing_is_refused(adapter: Calls, method: str) -> None:
    """Reading a tensor where nothing was saved is refused."""
    templates = templates_of({"w": counting((2,))})
    with checkpoint_path(adapter) as path:
        adapter.refuses(method, path, *(("w", 0, 2) if method == "read_rows" else (templates, 1)))


@rule("R-CKPT-1-templates", "restore save", [1, 2])
def templates_stay(adapter: Calls, num_shards: int) -> None:
    """Restoring does not change the templates."""
    tensors = {"w": counting((ROWS, 2))}
    templates = templates_of(tensors)
    with checkpoint_path(adapter, tensors, 2) as path:
        adapter.restore(path, templates, num_shards)
    expect_equal(templates["w"], junk(tensors["w"]))
