"""PartitionSpec, Partition and the partitioners: from counts, sizes and bytes to parts."""

from collections.abc import Iterator
from typing import Any

from shardvar.spec.partitioners import fixed_shards, max_size, min_size
from shardvar.spec.partitions import axis_sizes, grid
from spec_tests.vector_generators.case import Case, Group, numbered
from spec_tests.vector_generators.encoding import integer, integers
from spec_tests.vector_generators.regions import region

ITEMSIZE = {
    "bool": 1,
    "int8": 1,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex128": 16,
    "string": 16,
}
"""The bytes of an element; a string counts as 16 unless it is said otherwise."""


_SPECS: list[tuple[str, list[int], list[int] | None, list[list[int]] | None, str]] = [
    ("rows", [13, 4], [5, 1], None, "The remainder is given to the last parts."),
    ("grid", [5, 7], [2, 3], None, "Parts are listed in Fortran order, or one axis alone is cut."),
    ("fewer-axes", [13, 4], [3], None, "Axes that are left out must be 1 for all to agree."),
    ("scalar", [], [], None, "A scalar has no parts."),
    (
        "more-than-rows",
        [2, 3],
        [4, 1],
        None,
        "Empty parts are dropped, and the number of parts is another.",
    ),
    ("uneven", [13, 4], None, [[1, 8, 4]], "Sizes are evened out."),
    (
        "uneven-grid",
        [4, 5],
        None,
        [[3, 1], [2, 2, 1]],
        "Sizes of one axis are applied to the other.",
    ),
    ("zero-size", [4], None, [[2, 0, 2]], "A part without rows ends the list."),
]
_BAD_SPECS: list[tuple[str, list[int], list[int] | None, list[list[int]] | None, str, str]] = [
    ("both", [4], [2], [[2, 2]], "One of the two is ignored.", "ArgumentError"),
    ("neither", [4], None, None, "Nothing is taken for one part.", "ArgumentError"),
    (
        "too-many-axes",
        [4],
        [2, 2],
        None,
        "Axes that the shape does not have are dropped.",
        "LayoutError",
    ),
    ("short", [5], None, [[2, 2]], "The last row is in no part.", "LayoutError"),
    ("long", [5], None, [[3, 3]], "The last part is cropped.", "LayoutError"),
    ("negative", [5], None, [[7, -2]], "The sum is right.", "LayoutError"),
    ("no-parts", [5], [0], None, "A division by zero, or no parts.", "ArgumentError"),
]


def _spec_cases() -> Iterator[Case]:
    for name, shape, partitions, splits, bug in _SPECS:
        inputs = {"shape": shape, "partitions": partitions, "splits": splits}
        parts = [region(part) for part in grid(axis_sizes(shape, partitions, splits))]
        yield Case(f"parts-{name}", "R-SPEC-1", "partition", inputs, bug, parts)
    for name, shape, partitions, splits, bug, error in _BAD_SPECS:
        inputs = {"shape": shape, "partitions": partitions, "splits": splits}
        yield Case(f"parts-bad-{name}", "R-SPEC-1", "partition", inputs, bug, error=error)


_SHAPES: list[tuple[list[int], str]] = [
    ([13, 4], "float32"), ([3], "float32"), ([1, 9], "float64"), ([], "float32"), ([0, 4], "float32"),
    ([16, 4], "bfloat16"), ([7, 3], "string"), ([5, 2, 3], "complex128"), ([13, 4], "bool"),
]  # fmt: skip


def _partitioner_cases() -> Iterator[Case]:
    for number, (shape, dtype) in enumerate(_SHAPES):
        for num_shards in (1, 5):
            inputs = {"shape": shape, "dtype": dtype, "axis": 0, "num_shards": num_shards}
            fixed = fixed_shards(shape, num_shards)
            bug = (
                "More parts than rows, so that some have none; a scalar or an empty variable "
                "divides by zero."
            )
            yield Case(
                f"fixed-{number}-{num_shards}", "R-PART-1", "fixed_shards", inputs, bug, fixed
            )
        for limit in (1, 24, 100):
            yield _max_case(f"max-{number}-{limit}", shape, dtype, limit, None)
            yield _min_case(f"min-{number}-{limit}", shape, dtype, limit, 4)
    yield _max_case("max-most", [13, 7], "float32", 100, 2)
    for rows in (600_000, 60_000):
        yield _min_case(f"min-rfc-{rows}", [rows, 1000], "float32", 64 << 20, 10)
    yield _min_case("min-past-32-bits", [4, 2**40], "float32", 2**41, 10)
    inputs = {"shape": [6, 5], "dtype": "float32", "axis": 1, "num_shards": 3}
    yield Case("fixed-axis-1", "R-PART-1", "fixed_shards", inputs, "The axis is ignored.", [1, 3])
    for name, op, values in _BAD:
        inputs = {"shape": [4], "dtype": "float32", "axis": 0, **values}
        bug = "A number that means nothing is taken as it is."
        yield Case(f"bad-{name}", "R-PART-1", op, inputs, bug, error="ArgumentError")


_BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("no-shards", "fixed_shards", {"num_shards": 0}),
    ("negative-max", "max_size", {"max_shard_bytes": -1, "max_shards": None}),
    ("zero-min", "min_size", {"min_shard_bytes": 0, "max_shards": 4}),
]


def _max_case(name: str, shape: list[int], dtype: str, limit: int, most: int | None) -> Case:
    expected = max_size(shape, ITEMSIZE[dtype], limit, most)
    inputs = {
        "shape": shape,
        "dtype": dtype,
        "axis": 0,
        "max_shard_bytes": limit,
        "max_shards": most,
    }
    bug = (
        "Bytes are divided where rows are what can be: a part holds a fraction of a row, or is "
        "above the limit."
    )
    return Case(name, "R-PART-1", "max_size", inputs, bug, expected)


def _min_case(name: str, shape: list[int], dtype: str, limit: int, most: int) -> Case:
    expected = min_size(shape, ITEMSIZE[dtype], limit, most)
    inputs = {
        "shape": integers(shape), "dtype": dtype, "axis": 0, "min_shard_bytes": integer(limit), "max_shards": most
    }  # fmt: skip
    bug = (
        "The number of parts is rounded up, as in TensorFlow, so that parts are smaller than the "
        "minimum."
    )
    return Case(name, "R-PART-3", "min_size", inputs, bug, expected)


GROUP = Group(
    "partitioning",
    "From counts, sizes and bytes to parts: partition specs, partitions and partitioners.",
    "Grids are enumerated; of the numbers of parts, each is tried until the rule holds.",
    numbered([*_spec_cases(), *_partitioner_cases()]),
)
