"""Lookups by id, and bags of ids with weights, in a table whose rows are dealt to shards."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardvar.spec.lookups import Entry, embedding_lookup, embedding_lookup_sparse
from spec_tests.vector_generators import special_values as special
from spec_tests.vector_generators.case import Acceptable, Case, Group, numbered
from spec_tests.vector_generators.encoding import array, real

_SHARDS = [3, 3, 3, 2, 2]
LAYOUTS: dict[str, tuple[list[int], str]] = {
    "uneven": ([1, 7, 2, 3], "Shards are found by the div rule, whatever their sizes."),
    "empty": (
        [0, 3, 0, 0, 8, 2, 0],
        "A row is sought in the first shard that begins there, be it empty.",
    ),
    "many": ([1, 1, 2, *[1] * 9], "Shards are put in the order of their names: 0, 1, 10, 11, 2."),
}
"""Layouts that the div rule does not give, and the mistake that each is there to catch."""
_TABLE = np.array([[row + 0.5, -row * 2.0, 2.0 ** (row % 5)] for row in range(13)], np.float32)
_FLAT = np.array([[3.0, 4.0], [0.0, 0.0], [0.3, -0.4], [6.0, 8.0], [0.0, -2.0]], np.float32)


def _lookup_cases() -> Iterator[Case]:
    ids_of: list[tuple[str, Any, str]] = [
        (
            "in-order",
            [0, 3, 6, 9, 11],
            "The first row of each shard is the first row of the first.",
        ),
        (
            "shuffled",
            [12, 0, 7, 3, 10],
            "Rows come in the order of the shards, not of the ids (sparse_read in 2.21).",
        ),
        ("duplicates", [5, 5, 0, 5], "Ids are made unique, and the answer has fewer rows."),
        ("one-shard", [4, 3, 5], "A shard without ids gives an error or a row."),
        ("none", [], "No ids are an error, or lose the shape of a row."),
        ("matrix", [[12, 1], [1, 8], [0, 9]], "The shape of the ids is lost."),
        ("scalar", 8, "One id gives a matrix of one row."),
        ("mod", [1, 2, 3, 4], "Ids are dealt by id % shards, not by div."),
    ]
    for name, ids, bug in ids_of:
        yield _lookup(name, _SHARDS, ids, bug)
    bug = "An id that no shard holds gives zeros, or another row."
    for name, ids in _OUTSIDE.items():
        yield _lookup(f"bad-{name}", _SHARDS, ids, bug, error="OutOfRange")
    bug = "Every row is scaled to the norm, a row of zeros becomes NaN, or the norm is that of all rows."
    for max_norm in (5.0, 1.0, 100.0):
        name, ids = f"norm-{max_norm:g}", [0, 1, 2, 3, 4, 0]
        yield _lookup(name, [2, 2, 1], ids, bug, max_norm, table=_FLAT)


_OUTSIDE = {"past": [0, 13], "negative": [-1]}


def _lookup(
    name: str,
    shards: Sequence[int],
    ids: Any,
    bug: str,
    max_norm: float | None = None,
    *,
    table: np.ndarray[Any, Any] = _TABLE,
    error: str | None = None,
) -> Case:
    inputs = {"table": array(table), "shards": shards, "ids": array(ids, "int64")}
    inputs["max_norm"] = max_norm
    expected = array(embedding_lookup([table], ids, max_norm)) if error is None else None
    rule, ulps = ("R-LOOKUP-3", 0) if max_norm is None else ("R-LOOKUP-4", 4)
    return Case(f"lookup-{name}", rule, "embedding_lookup", inputs, bug, expected, error, ulps=ulps)


def _lookups_in_layouts() -> Iterator[Case]:
    ids_of = {"all": [*range(13)], "shuffled": [12, 0, 7, 3, 10, 3], "matrix": [[11, 1], [2, 8]]}
    outside = "An id that no shard holds is looked up in an empty shard, or in the last."
    for layout, (shards, bug) in LAYOUTS.items():
        for name, ids in ids_of.items():
            yield _lookup(f"{layout}-{name}", shards, ids, bug)
        for name, ids in _OUTSIDE.items():
            yield _lookup(f"{layout}-bad-{name}", shards, ids, outside, error="OutOfRange")
        yield _lookup(f"{layout}-norm", shards, [12, 0, 3, 4], bug, 4.0)


_BAGS: list[tuple[str, list[Entry], int, str]] = [
    (
        "plain",
        [(0, 12, None), (0, 3, None), (1, 7, None)],
        2,
        "A bag's rows in several shards are not summed.",
    ),
    (
        "weights",
        [(0, 1, 2.0), (0, 10, 0.5), (1, 5, -1.0), (1, 6, 3.0)],
        2,
        "Means divide by the count, not the weights.",
    ),
    (
        "twice",
        [(0, 4, 1.0), (0, 4, 1.0), (0, 9, 0.25)],
        1,
        "An id that comes twice in a bag counts once.",
    ),
    ("empty-between", [(0, 2, None), (2, 11, None)], 3, "Bags after an empty one move up."),
    ("empty-first", [(1, 2, None), (1, 8, None)], 2, "An empty bag divides by zero."),
    ("empty-last", [(0, 2, None)], 3, "The last bags are dropped where they are empty."),
]


def _sparse_cases() -> Iterator[Case]:
    for name, entries, rows, bug in _BAGS:
        for combiner in ("sum", "mean", "sqrtn"):
            yield _sparse_case(f"bags-{name}-{combiner}", entries, rows, combiner, bug)
    bug = "The sum is clipped in place of each row, or after its weight."
    yield _sparse_case("bags-norm", _BAGS[1][1], 2, "sum", bug, max_norm=3.0)
    for layout, (shards, bug) in LAYOUTS.items():
        for combiner in ("sum", "mean", "sqrtn"):
            entries = [
                (0, 12, 2.0),
                (0, 3, 0.5),
                (1, 0, -1.0),
                (1, 7, 3.0),
                (1, 7, 1.0),
                (3, 10, 0.25),
            ]
            yield _sparse_case(
                f"bags-{layout}-{combiner}", entries, 4, combiner, bug, shards=shards
            )
    inputs = _sparse_inputs([(0, 13, None)], 1, "sum", None)
    bug = "An id that no shard holds adds nothing."
    yield Case(
        "bags-bad-id", "R-LOOKUP-3", "embedding_lookup_sparse", inputs, bug, error="OutOfRange"
    )
    inputs = _sparse_inputs([(0, 1, None)], 1, "max", None)
    bug = "An unknown combiner is taken for the mean."
    yield Case(
        "bags-bad-combiner",
        "R-VAR-1",
        "embedding_lookup_sparse",
        inputs,
        bug,
        error="ArgumentError",
    )


def _of_dtypes() -> Iterator[Case]:
    shards = [1, 0, 3, 2]
    for dtype in special.DTYPES:
        bug = "Rows pass through another dtype: NaN, -0.0, complex parts or digits are lost."
        ids, table = [[5, 0, 3], [0, 4, 1]], special.table(dtype)
        yield _lookup(f"{dtype}-values", shards, ids, bug, table=table)
    for dtype in special.REAL:
        # The norm of the first row is 5, of the second 0, and the last ones are not finite.
        rows = [[3, 4], [-0.0, 0], [0.1, -0.3], [np.inf, 1], [np.nan, 1], [-1, np.nan]]
        table = np.array(rows).astype(special.numpy_dtype(dtype))
        bug = "The norm is computed in fewer digits, or a row of zeros becomes NaN."
        yield _lookup(f"{dtype}-norm", shards, [0, 1, 2, 0], bug, 0.25, table=table)
        for combiner in ("sum", "mean", "sqrtn"):
            entries: list[Entry] = [
                (0, 0, 2.0), (0, 2, 0.5), (1, 2, 0.75), (1, 1, 3.0), (1, 2, 1.0),
                (2, 3, 1.0), (2, 0, 1.0), (3, 4, 2.0), (3, 0, 0.25),
            ]  # fmt: skip
            bug = "Bags are summed in fewer digits, or NaN and infinities of one bag reach another."
            yield _sparse_case(
                f"bags-{dtype}-{combiner}", entries, 4, combiner, bug, shards=shards, table=table
            )


def _sparse_inputs(
    entries: Sequence[Entry],
    rows: int,
    combiner: str,
    max_norm: float | None,
    shards: Sequence[int] = _SHARDS,
    table: np.ndarray[Any, Any] = _TABLE,
) -> dict[str, Any]:
    columns: dict[int, int] = {}
    indices = []
    for row, _, _ in entries:
        indices.append([row, columns.setdefault(row, 0)])
        columns[row] += 1
    has_weights = entries[0][2] is not None
    return {
        "table": array(table),
        "shards": list(shards),
        "indices": indices,
        "ids": array([each for _, each, _ in entries], "int64"),
        "weights": array([weight or 0.0 for _, _, weight in entries], "float32")
        if has_weights
        else None,
        "dense_shape": [rows, max(columns.values())],
        "combiner": combiner,
        "max_norm": max_norm if max_norm is None else real(max_norm),
    }


def _sparse_case(
    name: str,
    entries: Sequence[Entry],
    rows: int,
    combiner: str,
    bug: str,
    max_norm: float | None = None,
    shards: Sequence[int] = _SHARDS,
    table: np.ndarray[Any, Any] = _TABLE,
) -> Case:
    expected = embedding_lookup_sparse([table], entries, rows, combiner, max_norm)
    inputs = _sparse_inputs(entries, rows, combiner, max_norm, shards, table)
    last = max(row for row, _, _ in entries) + 1
    also = []
    if last < rows:
        why = (
            "TensorFlow drops the empty rows at the end: the answer is for those who asked for no "
            "shape."
        )
        also = [Acceptable(why, array(expected[:last]))]
    rule = "R-VAR-1" if max_norm is None else "R-LOOKUP-4"
    return Case(
        name, rule, "embedding_lookup_sparse", inputs, bug, array(expected), acceptable=also, ulps=4
    )


GROUP = Group(
    "lookups",
    "Rows of a sharded table by ids, and bags of ids combined by sum, mean or sqrtn.",
    "NumPy's rows of the whole table; of a bag the sums are exact, and are rounded once divided.",
    numbered([*_lookup_cases(), *_lookups_in_layouts(), *_sparse_cases(), *_of_dtypes()]),
)
