"""Level 2: a sharded variable holds what it was given, and is indexed as the whole would be."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Calls, expect, expect_equal
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import (
    FULL,
    ORDINARY,
    LaidOutCase,
    ShardSizes,
    TableCase,
    concatenated,
    few_rows,
    hollow_tables,
    made,
    tables,
    uneven_tables,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.partitions import div
from shardvar.testing import counting

CONCAT = (
    "ShardedVariable will register a tensor conversion function that concats shards to the full "
    "value."
)
LIST = "that list of variables compose a larger variable"
PRODUCT = (
    "For example, `tf.matmul` will concat the sharded variable and then do the multiplication."
)
LAYOUT = "Exception will raised if the partitioner returns an unsupported partitioning layout."
Indexed = tuple[Array, ShardSizes, tuple[Any, ...]]


@rule("R-CONCAT-1", 2, "000", CONCAT, "create read", tables())
def the_whole_is_read(adapter: Calls, case: TableCase) -> None:
    """A variable reads as the value that it was created with."""
    value, num_shards = case
    expect_equal(adapter.read(adapter.create(value, num_shards)), value)


@rule("R-CONCAT-1-few", 2, "000", FULL, "create read", few_rows())
def few_rows_are_read(adapter: Calls, case: TableCase) -> None:
    """A variable with fewer rows than shards, or with none, reads as the value that it was created
    with."""
    the_whole_is_read(adapter, case)


_dtypes = st.sampled_from("float64 int32 int64 int8 uint8 bool float16 bfloat16 complex64".split())


@rule("R-CONCAT-1-dtypes", 2, "000", CONCAT, "create read",
      st.tuples(_dtypes, st.integers(1, 3)))  # fmt: skip
def dtypes_are_kept(adapter: Calls, case: tuple[str, int]) -> None:
    """A variable reads as the value that it was created with, in its dtype."""
    the_whole_is_read(adapter, (counting((4, 2), np.dtype(case[0])), case[1]))


@rule("R-SV-1", 2, "000", LIST, "create shards", tables())
def shards_compose_the_whole(adapter: Calls, case: TableCase) -> None:
    """There are as many shards as were asked for, and one after another they are the whole."""
    value, num_shards = case
    shards = adapter.shards(adapter.create(value, num_shards))
    expect(
        len(shards) == num_shards,
        f"There are {len(shards)} shards.",
        f"There must be {num_shards}.",
    )
    expect_equal(concatenated(shards), value)


@rule("R-DIV-1-shards", 2, "000", "Div partition strategy is used to partition the variable.", "create shards",
      tables(max_shards=5))  # fmt: skip
def shards_are_divided(adapter: Calls, case: TableCase) -> None:
    """The shards of a variable hold the rows of the div rule."""
    value, num_shards = case
    came = [len(np.asarray(shard)) for shard in adapter.shards(adapter.create(value, num_shards))]
    must = [stop - start for start, stop in div(len(value), num_shards)]
    expect(came == must, f"The shards have {came} rows.", f"They must have {must}.")


@rule("R-SPEC-1", 2, "002", "indicating how each dimension can be splitted, allowing uneven sharding",
      "create_uneven shards read", uneven_tables(((), (2,))))  # fmt: skip
def sizes_are_obeyed(adapter: Calls, case: tuple[Array, list[int]]) -> None:
    """A variable in shards of given sizes has these shards, and reads as the whole."""
    value, sizes = case
    handle = adapter.create_uneven(value, sizes)
    came = [len(np.asarray(shard)) for shard in adapter.shards(handle)]
    expect(came == sizes, f"The shards have {came} rows.", f"They must have {sizes}.")
    expect_equal(adapter.read(handle), value)


@rule("R-SPEC-1-empty-shards", 2, "002", "indicating how each dimension can be splitted, allowing uneven sharding",
      "create_uneven shards read", hollow_tables(((), (2,))))  # fmt: skip
def empty_shards_are_obeyed(adapter: Calls, case: tuple[Array, list[int]]) -> None:
    """A variable in shards of given sizes, some of them zero, has these shards and reads as the
    whole."""
    sizes_are_obeyed(adapter, case)


@rule("R-CREATE-2", 2, "000", "We will fall back to creating normal variables when there are less than two partitions.",
      "create_partitioned read", st.sampled_from([(4,), (4, 2), (1, 3)]))  # fmt: skip
def one_part_is_a_variable(adapter: Calls, case: tuple[int, ...]) -> None:
    """A partitioner that answers with one part an axis gives a variable all the same."""
    value = counting(case)
    expect_equal(adapter.read(adapter.create_partitioned(value, [1] * len(case))), value)


@rule("R-PART-4", 2, "000", LAYOUT, "create_partitioned",
      st.sampled_from([[0, 1], [-1, 1], [2, 0], [2, -1]]))  # fmt: skip
def nonsense_is_refused(adapter: Calls, case: list[int]) -> None:
    """A partitioner's answer with a count below 1 is refused."""
    adapter.refuses("create_partitioned", counting((4, 4)), case)


@rule(
    "R-PART-4-rank",
    2,
    "000",
    LAYOUT,
    "create_partitioned",
    st.sampled_from([[2, 1, 1], [2, 1, 2], [1, 1, 2]]),
)
def axes_too_many_are_refused(adapter: Calls, case: list[int]) -> None:
    """A partitioner's answer with more counts than the variable has axes is refused."""
    adapter.refuses("create_partitioned", counting((4, 4)), case)


@rule("R-PART-4-axis", 2, "000",
      "We are only going to support partitioning on the first / outermost axis at the moment.",
      "create_partitioned read", st.sampled_from([[1, 2], [2, 2], [1, 4]]))  # fmt: skip
def other_axes_are_refused_or_right(adapter: Calls, case: list[int]) -> None:
    """A partitioner's answer that cuts another axis is refused, or gives a variable that reads as
    the whole."""
    value = counting((4, 4))
    handle = adapter.attempt("create_partitioned", value, case)
    if handle is not REFUSED:
        expect_equal(adapter.read(handle), value)


def check_index(adapter: Calls, case: Indexed) -> None:
    """``variable[key]`` is NumPy's on the whole."""
    value, layout, key = case
    expect_equal(adapter.index(made(adapter, value, layout), key), value[key])


@st.composite
def integers(draw: st.DrawFn) -> Indexed:
    """Integers for the first axis and perhaps the next, negative ones among them."""
    value, num_shards = draw(tables())
    rank = draw(st.integers(1, value.ndim))
    return (
        value,
        num_shards,
        tuple(draw(st.integers(-extent, extent - 1)) for extent in value.shape[:rank]),
    )


@rule("R-VAR-1-integers", 2, "000", FULL, "create index", integers())
def integers_index(adapter: Calls, case: Indexed) -> None:
    """Indexing by integers, also negative ones, is NumPy's on the whole."""
    check_index(adapter, case)


@st.composite
def inner_slices(
    draw: st.DrawFn, steps: tuple[int | None, ...], start: st.SearchStrategy[LaidOutCase] = ORDINARY
) -> Indexed:
    """Slices whose bounds lie within the axes."""
    value, layout = draw(start)
    key = []
    for extent in value.shape[: draw(st.integers(1, value.ndim))]:
        step = draw(st.sampled_from(steps))
        low, high = sorted((draw(st.integers(0, extent)), draw(st.integers(0, extent))))
        backwards = step is not None and step < 0
        # Backwards from the last row of the range, without ``low``: 1 and 4 become 3:1:-1, which is
        # rows 3 and 2.
        first, stop = (max(high - 1, 0), low) if backwards else (min(low, extent - 1), high)
        key.append(slice(draw(st.none() | st.just(first)), draw(st.none() | st.just(stop)), step))
    return value, layout, tuple(key)


@rule("R-VAR-1-slices", 2, "000", FULL, "create index", inner_slices((None, 1)))
def slices_index(adapter: Calls, case: Indexed) -> None:
    """Slices whose bounds lie within the variable are NumPy's on the whole."""
    check_index(adapter, case)


@rule("R-VAR-1-steps", 2, "000", FULL, "create index", inner_slices((2, 3, -1, -2)))
def steps_index(adapter: Calls, case: Indexed) -> None:
    """Slices with steps, also backwards, are NumPy's on the whole."""
    check_index(adapter, case)


@st.composite
def outer_slices(draw: st.DrawFn) -> Indexed:
    """A slice of rows whose bounds lie beyond the ends."""
    value, num_shards = draw(tables())
    more = st.integers(1, 3)
    beyond = more.map(lambda more: len(value) + more) | more.map(lambda more: -len(value) - more)
    stop = st.none() | st.integers(-len(value), len(value)) | beyond
    return (
        value,
        num_shards,
        (slice(draw(beyond), draw(stop), draw(st.sampled_from([None, 1, 2, 3, -1, -2]))),),
    )


@rule("R-VAR-1-bounds", 2, "000", FULL, "create index", outer_slices())
def bounds_are_clamped(adapter: Calls, case: Indexed) -> None:
    """Slices whose bounds lie beyond the ends are clamped as NumPy clamps them."""
    check_index(adapter, case)


@st.composite
def with_ellipsis(draw: st.DrawFn) -> Indexed:
    """An ellipsis among integers and slices, standing for several axes, one or none."""
    value, num_shards = draw(tables(row_shapes=((2,), (2, 2))))
    one = st.sampled_from([0, -1, slice(None), slice(1, None)])
    key: list[Any] = [draw(one) for _ in range(draw(st.integers(0, value.ndim)))]
    # Where integers and slices name every axis, the ellipsis stands for nothing, which NumPy
    # allows.
    key.insert(draw(st.integers(0, len(key))), ...)
    return value, num_shards, tuple(key)


@rule("R-VAR-1-ellipsis", 2, "000", FULL, "create index", with_ellipsis())
def ellipsis_indexes(adapter: Calls, case: Indexed) -> None:
    """An ellipsis stands for all axes that are not named, be there none."""
    check_index(adapter, case)


@st.composite
def with_new_axis(draw: st.DrawFn) -> Indexed:
    """A new axis before, between or after the others."""
    value, num_shards = draw(tables(row_shapes=((2,),)))
    key: list[Any] = [
        draw(st.sampled_from([0, slice(None), slice(1, None)]))
        for _ in range(draw(st.integers(0, 2)))
    ]
    key.insert(draw(st.integers(0, len(key))), None)
    return value, num_shards, tuple(key)


@rule("R-VAR-1-new-axis", 2, "000", FULL, "create index", with_new_axis())
def new_axes_index(adapter: Calls, case: Indexed) -> None:
    """`None` makes a new axis of the whole, not of each shard."""
    check_index(adapter, case)


@st.composite
def outside(draw: st.DrawFn) -> Indexed:
    """A row that is not there."""
    value, num_shards = draw(tables())
    beyond = draw(st.integers(0, 2))
    return (
        value,
        num_shards,
        (draw(st.sampled_from([len(value) + beyond, -len(value) - 1 - beyond])),),
    )


@rule("R-VAR-1-outside", 2, "000", FULL, "create index", outside())
def rows_outside_are_refused(adapter: Calls, case: Indexed) -> None:
    """Indexing by a row that is not there is refused."""
    value, layout, key = case
    handle = made(adapter, value, layout)
    adapter.refuses("index", handle, key)


@rule("R-MATMUL-1", 2, "000", PRODUCT, "create matmul", tables(row_shapes=((1,), (3,))))
def products_are_of_the_whole(adapter: Calls, case: LaidOutCase) -> None:
    """A product with the variable is the product with the whole."""
    value, layout = case
    # Small integers: every product and sum is exact in float32, in any order of shards.
    left = counting((2, len(value)))
    expect_equal(adapter.matmul(left, made(adapter, value, layout)), left @ value)
