"""Basic indexing of sharded variables: NumPy's answer on the whole array."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from spec_tests.vector_generators import special_values as special
from spec_tests.vector_generators.case import Case, Group, numbered
from spec_tests.vector_generators.encoding import array


def full(shape: Sequence[int], dtype: str = "int32") -> np.ndarray[Any, Any]:
    """Each element is its flat index."""
    return np.arange(int(np.prod(shape, dtype=np.int64)), dtype=dtype).reshape(shape)


def encode(key: Sequence[Any]) -> list[Any]:
    """An index item by item."""
    found: list[Any] = []
    for item in key:
        if isinstance(item, slice):
            found.append({"slice": [item.start, item.stop, item.step]})
        elif item is Ellipsis or item is None:
            found.append("ellipsis" if item is Ellipsis else "newaxis")
        else:
            found.append(item)
    return found


_S = slice
_KEYS: list[tuple[str, tuple[Any, ...], str]] = [
    ("row", (9,), "The row is sought in the first shard."),
    ("row-negative", (-1,), "Negative indices count from a shard's end."),
    ("row-first-negative", (-13,), "The least index is refused."),
    ("element", (3, 2), "Only rows can be taken."),
    ("element-negative", (-4, -2), "Negative indices of later axes are forgotten."),
    ("across", (_S(2, 7),), "A slice ends with its first shard."),
    ("across-column", (_S(2, 12), 1), "The column is taken of the first shard alone."),
    ("step", (_S(None, None, 3),), "A step begins anew in each shard."),
    ("step-offset", (_S(1, None, 4),), "A step begins anew in each shard."),
    (
        "backwards",
        (_S(None, None, -1),),
        "Shards are reversed and their rows not, or the other way round.",
    ),
    ("backwards-step", (_S(11, 1, -3),), "A backwards slice begins at the stop."),
    ("clamped", (_S(-100, 100),), "Bounds out of range are refused, or wrap around."),
    (
        "clamped-step",
        (_S(-100, 100, 2),),
        "A start out of range is not clamped where the step is not 1.",
    ),
    ("clamped-backwards", (_S(100, -100, -2),), "The same backwards: it begins at the wrong row."),
    ("empty", (_S(5, 5),), "No rows lose their dtype or the shape of a row."),
    ("empty-crossed", (_S(7, 2),), "Start after stop gives rows."),
    (
        "empty-column",
        (_S(5, 5), _S(0, 2)),
        "Where no row is selected the rest of the key is forgotten.",
    ),
    ("empty-key", (), "An empty key fails."),
    ("ellipsis", (Ellipsis, 1), "The column is taken as a row."),
    (
        "ellipsis-middle",
        (2, Ellipsis, 1),
        "An ellipsis that stands for no axis is applied to each shard.",
    ),
    ("ellipsis-alone", (Ellipsis,), "An ellipsis alone fails."),
    ("newaxis-first", (None, 3), "After a leading new axis the key applies to each shard."),
    ("newaxis-last", (_S(0, 6), None), "A new axis is put first."),
    ("newaxis-all", (None, Ellipsis, None), "A new axis is put first."),
    ("columns-backwards", (_S(None), _S(None, None, -2)), "Steps of later axes are forgotten."),
]
_BAD: list[tuple[str, tuple[Any, ...], str]] = [
    ("past", (13,), "An index past the end gives the last row, or zeros."),
    ("before", (-14,), "An index before the beginning wraps around."),
    ("column-past", (0, 4), "A column past the end is the next row's."),
    ("too-many", (0, 0, 0), "An index too many is ignored."),
    ("zero-step", (_S(None, None, 0),), "A step of zero never ends."),
]


def _cases() -> Iterator[Case]:
    for name, key, bug in _KEYS:
        for shards in ([3, 3, 3, 2, 2], [13], [1, 12], [5, 0, 8]):
            if len(shards) != 5 and name.startswith(("row-", "newaxis", "columns", "element")):
                continue
            inputs = {"value": array(full((13, 4))), "shards": shards, "key": encode(key)}
            expected = array(full((13, 4))[key])
            yield Case(
                f"{name}-{len(shards)}{shards[0]}", "R-VAR-1", "getitem", inputs, bug, expected
            )
    for name, key, bug in _BAD:
        inputs = {"value": array(full((13, 4))), "shards": [5, 4, 4], "key": encode(key)}
        error = "ArgumentError" if name == "zero-step" else "OutOfRange"
        yield Case(f"bad-{name}", "R-VAR-1", "getitem", inputs, bug, error=error)
    for dtype in special.DTYPES:
        value = special.table(dtype)
        keys: list[tuple[str, tuple[Any, ...]]] = [
            ("row", (1,)), ("column", (_S(None, None, -1), 1)), ("element", (3, 1)), ("all", ()),
        ]  # fmt: skip
        for name, key in keys:
            inputs = {"value": array(value), "shards": [1, 0, 3, 2], "key": encode(key)}
            bug = "Elements pass through another dtype: NaN, -0.0 or the last digits are lost."
            expected = array(value[key])
            yield Case(f"values-{dtype}-{name}", "R-VAR-1", "getitem", inputs, bug, expected)
    deep = full((4, 2, 3), "int64")
    for number, key in enumerate(
        [(1, _S(None), 2), (Ellipsis, 0), (_S(1, 3), Ellipsis, _S(None, None, 2))]
    ):
        inputs = {"value": array(deep), "shards": [2, 2], "key": encode(key)}
        bug = "Only matrices are indexed rightly."
        yield Case(f"deep-{number}", "R-VAR-1", "getitem", inputs, bug, array(deep[key]))


GROUP = Group(
    "indexing",
    "Basic indexing of a variable whose rows are dealt to shards of the given sizes.",
    "NumPy's answer on the whole array.",
    numbered(_cases()),
)
