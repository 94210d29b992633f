"""Level 6: what is saved in N shards is restored into M; what is not there is never made up."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Broken, Calls, expect, expect_equal, text
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import (
    few_rows,
    hollow_tables,
    many_shards,
    tables,
    uneven_tables,
)
from shardvar.layout.dtypes import Array
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
    """A path in an empty directory, called ``path`` in what is written down."""
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
        _expect_bits(key, np.asarray(came[key]), array)


def _expect_bits(key: str, came: Array, must: Array) -> None:
    wanted = must if must.dtype == object else must.astype(must.dtype.newbyteorder("="))
    is_same = came.shape == wanted.shape and came.dtype == wanted.dtype
    if is_same and wanted.dtype == object:
        is_same = came.ravel().tolist() == wanted.ravel().tolist()
    elif is_same:
        # Bytes and not values: NaN differs from itself, and -0.0 equals 0.0.
        is_same = came.tobytes() == wanted.tobytes()
    if not is_same:
        raise Broken(f"It gave {text(came)} as {key!r}.", f"It must give {text(wanted)}.")


def check_elastic(adapter: Calls, case: SavedCase) -> None:
    """Save in N, restore into M."""
    tensors, before, after = case
    with checkpoint_path(adapter) as path:
        adapter.save(path, tensors, before)
        expect_tensors(adapter.restore(path, templates_of(tensors), after), tensors)


shards = st.integers(1, 4)


@st.composite
def elastic(draw: st.DrawFn) -> SavedCase:
    """One or two tables, a number of shards to save in and one to restore into."""
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


@rule("R-CKPT-1", 6, "000", ELASTIC, "save restore", elastic())
def any_number_restores_into_any(adapter: Calls, case: SavedCase) -> None:
    """A tensor saved in some number of shards is restored, bit for bit, into any other number."""
    check_elastic(adapter, case)


@st.composite
def elastic_many(draw: st.DrawFn) -> SavedCase:
    """A table, more than ten shards to save in, and a number of shards to restore into."""
    value, before = draw(many_shards())
    return {"w": value}, before, draw(st.integers(1, 4) | st.integers(11, len(value)))


@rule("R-CKPT-1-many", 6, "000", ELASTIC, "save restore", elastic_many())
def many_shards_are_saved(adapter: Calls, case: SavedCase) -> None:
    """A tensor saved in more than ten shards is restored; the name of shard 10 sorts before the
    name of shard 2."""
    check_elastic(adapter, case)


def check_uneven(adapter: Calls, case: tuple[tuple[Array, list[int]], int]) -> None:
    """Save in a number of shards, restore into shards of given sizes."""
    (value, sizes), before = case
    with checkpoint_path(adapter) as path:
        adapter.save(path, {"w": value}, before)
        expect_tensors(
            adapter.restore_uneven(path, templates_of({"w": value}), sizes), {"w": value}
        )


@rule(
    "R-CKPT-1-uneven",
    6,
    "000",
    ELASTIC,
    "save restore_uneven",
    st.tuples(uneven_tables(((), (2,)), 2), st.just(1) | st.just(2)),
)
def uneven_shards_are_restored(adapter: Calls, case: tuple[tuple[Array, list[int]], int]) -> None:
    """A saved tensor is restored into a variable in shards of uneven sizes."""
    check_uneven(adapter, case)


@rule(
    "R-CKPT-1-empty-shards",
    6,
    "000",
    ELASTIC,
    "save restore_uneven",
    st.tuples(hollow_tables(((), (2,))), st.just(1)),
)
def empty_shards_are_restored(adapter: Calls, case: tuple[tuple[Array, list[int]], int]) -> None:
    """A saved tensor is restored into a variable of whose shards some are empty."""
    check_uneven(adapter, case)


@rule("R-CKPT-1-few", 6, "000", ELASTIC, "save restore",
      st.tuples(few_rows(), shards).map(lambda drawn: ({"w": drawn[0][0]}, drawn[0][1], drawn[1])))  # fmt: skip
def few_rows_are_saved(adapter: Calls, case: SavedCase) -> None:
    """A tensor with fewer rows than shards is saved and restored."""
    check_elastic(adapter, case)


@rule("R-CKPT-1-empty", 6, "000", ELASTIC, "save restore",
      st.tuples(st.sampled_from([(0,), (0, 3), (2, 0)]), shards, shards).map(
          lambda drawn: ({"w": counting((4,)), "none": counting(drawn[0])}, drawn[1], drawn[2])))  # fmt: skip
def empty_tensors_are_kept(adapter: Calls, case: SavedCase) -> None:
    """A tensor without elements is restored with its shape, not dropped."""
    check_elastic(adapter, case)


@rule("R-CKPT-1-scalars", 6, "000", ELASTIC, "save restore",
      st.tuples(shards, shards).map(lambda n: ({"step": np.array(7, np.int64)}, *n)))  # fmt: skip
def scalars_are_kept(adapter: Calls, case: SavedCase) -> None:
    """A scalar is saved and restored together with sharded variables."""
    check_elastic(adapter, case)


@st.composite
def typed(draw: st.DrawFn, names: list[str]) -> SavedCase:
    """A tensor of any bits of some dtype, with a row a shard at least."""
    dtype = np.dtype(draw(st.sampled_from(names)))
    before, after = draw(shards), draw(shards)
    rows = max(before, after) + draw(st.integers(0, 3))
    return {"w": draw(bits(dtype, draw(st.sampled_from([(rows,), (rows, 2)]))))}, before, after


@rule("R-CKPT-1-dtypes", 6, "000", ELASTIC, "save restore", typed(NUMBERS))
def dtypes_are_saved(adapter: Calls, case: SavedCase) -> None:
    """Tensors of every dtype are restored bit for bit, NaNs and their payloads included."""
    check_elastic(adapter, case)


texts = st.lists(
    st.binary(max_size=5) | st.sampled_from([b"", b"a\0", b"\0"]), min_size=4, max_size=4
)


@rule("R-CKPT-1-strings", 6, "000", ELASTIC, "save restore",
      texts.map(lambda some: ({"vocabulary": np.array([*some, None], object)[:-1]}, 1, 1)))  # fmt: skip
def strings_are_saved(adapter: Calls, case: SavedCase) -> None:
    """Strings are restored whole, with the NULs at their ends."""
    check_elastic(adapter, case)


@rule("R-CKPT-1-strides", 6, "000", ELASTIC, "save restore",
      st.tuples(arrays(["float32", "int64"], 2, 4).filter(lambda a: a.ndim > 0 and a.size > 0), shards).map(
          lambda drawn: ({"w": drawn[0]}, 1, min(drawn[1], len(drawn[0])))))  # fmt: skip
def values_are_saved_not_memory(adapter: Calls, case: SavedCase) -> None:
    """Saving keeps the values of an array, however it lies in memory: transposed, reversed,
    big-endian."""
    check_elastic(adapter, case)


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
        expect_tensors(
            adapter.restore(path, templates_of(tensors), before), tensors if refused else second
        )


def _refuses_restore(adapter: Calls, case: SavedCase, templates: NamedArrays) -> None:
    tensors, before, after = case
    with checkpoint_path(adapter) as path:
        adapter.save(path, tensors, before)
        adapter.refuses("restore", path, templates, after)


@rule("R-POLICY-1-restore", 6, "001", PRESENT, "save restore", elastic())
def absent_tensors_are_refused(adapter: Calls, case: SavedCase) -> None:
    """Restoring a tensor that was never saved is refused, not made up and not left as it was."""
    _refuses_restore(adapter, case, templates_of(case[0]) | {"absent": junk(case[0]["w"])})


@rule(
    "R-POLICY-2-restore",
    6,
    "001",
    SHAPES,
    "save restore",
    st.tuples(elastic(), st.sampled_from([-1, 1])),
)
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


@rule("R-POLICY-1-list", 6, "001", PRESENT, "save list_tensors", elastic())
def tensors_are_listed(adapter: Calls, case: SavedCase) -> None:
    """Every tensor is listed with its full shape and its dtype."""
    tensors, before, _ = case
    must = {key: (array.shape, str(array.dtype)) for key, array in tensors.items()}
    with checkpoint_path(adapter) as path:
        adapter.save(path, tensors, before)
        listed = adapter.list_tensors(path)
        came = {
            key: (tuple(map(int, shape)), str(np.dtype(dtype)))
            for key, (shape, dtype) in listed.items()
        }
        expect(
            {key: came.get(key) for key in must} == must,
            f"It gave {came}.",
            f"It must give {must}.",
        )


@rule(
    "R-CKPT-1-rows",
    6,
    "000",
    ELASTIC,
    "save read_rows",
    st.tuples(tables(), st.integers(0, 8), st.integers(0, 8)),
)
def rows_are_read(adapter: Calls, case: tuple[tuple[Array, int], int, int]) -> None:
    """Some rows of a tensor are those rows, whichever slices hold them."""
    (value, num_shards), one, other = case
    start, stop = sorted((min(one, len(value)), min(other, len(value))))
    with checkpoint_path(adapter) as path:
        adapter.save(path, {"w": value}, num_shards)
        expect_equal(adapter.read_rows(path, "w", start, stop), value[start:stop])


SavedParts = tuple[Array, list[tuple[int, int]]]


def _parts_of(cuts: Callable[[int, int], list[tuple[int, int]]]) -> st.SearchStrategy[SavedParts]:
    """A table and row ranges: what ``cuts`` makes of its length and a row."""
    sizes = st.integers(2, 6).flatmap(
        lambda rows: st.tuples(st.just(rows), st.integers(1, rows - 1))
    )
    return sizes.map(lambda drawn: (counting((drawn[0], 2)), cuts(*drawn)))


def _save_parts(adapter: Calls, path: str, case: SavedParts, bias: float = 0) -> Any:
    value, ranges = case
    # Part n is shifted by ``bias * n``, so overlapping parts disagree and no order of writing is
    # right.
    parts = [((a, 0), value[a:b] + np.float32(bias * n)) for n, (a, b) in enumerate(ranges)]
    return adapter.attempt("save_parts", path, "w", value.shape, value.dtype, parts)


@rule("R-POLICY-7", 6, "001", RESLICING, "save_parts restore",
      _parts_of(lambda rows, cut: [(cut, rows), (0, cut)]))  # fmt: skip
def parts_are_joined(adapter: Calls, case: SavedParts) -> None:
    """A tensor that is saved in parts, in any order, is restored as one."""
    with checkpoint_path(adapter) as path:
        expect(
            _save_parts(adapter, path, case) is not REFUSED, "It refused to save.", "It must save."
        )
        expect_tensors(adapter.restore(path, templates_of({"w": case[0]}), 1), {"w": case[0]})


def check_parts(adapter: Calls, case: tuple[Array, list[int]]) -> None:
    """Save in shards of given sizes, restore into two."""
    value, sizes = case
    stops = np.cumsum(sizes).tolist()
    ranges = list(zip([0, *stops[:-1]], stops, strict=True))
    with checkpoint_path(adapter) as path:
        expect(
            _save_parts(adapter, path, (value, ranges)) is not REFUSED,
            "It refused to save.",
            "It must save.",
        )
        expect_tensors(
            adapter.restore(path, templates_of({"w": value}), min(2, len(value))), {"w": value}
        )


@rule("R-POLICY-7-uneven", 6, "001", RESLICING, "save_parts restore", uneven_tables(((2,),), 2))
def uneven_parts_are_joined(adapter: Calls, case: tuple[Array, list[int]]) -> None:
    """A tensor that is saved in parts of uneven sizes is restored into equal shards."""
    check_parts(adapter, case)


@rule("R-POLICY-7-empty-shards", 6, "001", RESLICING, "save_parts restore", hollow_tables(((2,),)))
def empty_parts_are_joined(adapter: Calls, case: tuple[Array, list[int]]) -> None:
    """A tensor that is saved in parts, some of them empty, is restored."""
    check_parts(adapter, case)


def _never_made_up(adapter: Calls, case: SavedParts, bias: float = 0) -> None:
    with checkpoint_path(adapter) as path:
        if _save_parts(adapter, path, case, bias) is not REFUSED:
            adapter.refuses("restore", path, templates_of({"w": case[0]}), 1)


@rule("R-POLICY-1-holes", 6, "001", PRESENT, "save_parts restore",
      _parts_of(lambda _rows, cut: [(0, cut)]) | _parts_of(lambda rows, cut: [(cut, rows)]))  # fmt: skip
def holes_are_refused(adapter: Calls, case: SavedParts) -> None:
    """A tensor with rows that were never saved is refused when it is saved or restored: no zeros,
    no old values."""
    _never_made_up(adapter, case)


@rule("R-POLICY-1-overlaps", 6, "001", PRESENT, "save_parts restore",
      _parts_of(lambda rows, cut: [(0, cut + 1), (cut, rows)]))  # fmt: skip
def overlaps_are_refused(adapter: Calls, case: SavedParts) -> None:
    """A tensor whose parts contradict each other is refused when it is saved or restored."""
    _never_made_up(adapter, case, bias=100)
