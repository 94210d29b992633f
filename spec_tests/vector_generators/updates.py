"""Writes to sharded variables: sparse updates with rows that come twice, and assignments."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardvar.spec.variables import OPERATIONS, read, scatter
from spec_tests.vector_generators import special_values as special
from spec_tests.vector_generators.case import Case, Group, numbered
from spec_tests.vector_generators.encoding import array
from spec_tests.vector_generators.lookups import LAYOUTS

Array = np.ndarray[Any, Any]

_OPS = [f"scatter_{op}" for op in OPERATIONS]
_SHARDS = [3, 2, 2]
_ROWS: list[tuple[str, list[int], str]] = [
    ("once", [6, 0, 3], "Rows are those of the shard, not of the variable."),
    ("twice", [4, 1, 4, 4], "Of a row that comes several times only one update counts."),
    ("ends", [2, 3, 3, 2], "The last row of a shard and the first of the next are mixed up."),
    ("none", [], "No rows are an error, or write a row of zeros."),
]


_ASSIGNMENTS = {
    "assign": lambda value, other: other,
    "assign_add": np.add,
    "assign_sub": np.subtract,
}


def scattered(value: Array, rows: Sequence[int], updates: Array, op: str) -> Array:
    """The whole value after a scatter, of one shard."""
    with np.errstate(all="ignore"):
        return read(scatter([value], op.removeprefix("scatter_"), rows, updates))


def _scatter(
    name: str,
    op: str,
    value: Array,
    shards: Sequence[int],
    rows: Sequence[int],
    updates: Array,
    bug: str,
) -> Case:
    """A scatter; one whose rows do not fit is an error."""
    fits = updates.shape == (len(rows), *value.shape[1:])
    fits = fits and all(0 <= row < len(value) for row in rows)
    inputs = {"value": array(value), "shards": shards, "indices": array(rows, "int64")}
    inputs["updates"] = array(updates)
    after = array(scattered(value, rows, updates, op)) if fits else None
    return Case(name, "R-SV-3", op, inputs, bug, after, None if fits else "ArgumentError")


def _assigned(
    name: str, value: Array, other: Array, shards: Sequence[int], bug: str
) -> Iterator[Case]:
    """Each assignment of one value to another."""
    for op, function in _ASSIGNMENTS.items():
        inputs = {"value": array(value), "shards": shards, "other": array(other)}
        with np.errstate(all="ignore"):
            after = array(function(value, other))
        yield Case(f"{op}{name}", "R-SV-3", op, inputs, bug, after)


def _read(name: str, value: Array, shards: Sequence[int], bug: str) -> Case:
    inputs = {"value": array(value), "shards": shards}
    return Case(f"read{name}", "R-SV-1", "read_value", inputs, bug, array(value))


def _scatter_cases() -> Iterator[Case]:
    for dtype in ("float32", "int32", "float64"):
        value = (np.arange(14).reshape(7, 2) - 4).astype(dtype)
        for op in _OPS:
            if op == "scatter_div" and dtype == "int32":
                continue
            for name, rows, bug in _ROWS:
                updates = ((np.arange(2 * len(rows)).reshape(-1, 2) % 5) - 2).astype(dtype)
                updates[updates == 0] = 3
                if op == "scatter_div":
                    updates = np.abs(updates)
                yield _scatter(f"{op}-{dtype}-{name}", op, value, _SHARDS, rows, updates, bug)
    thirds = np.array([[0.1], [1e8], [0.1]], np.float32)
    updates = np.array([[0.1], [0.2], [0.3]], np.float32)
    bug = "Updates of one row are summed first: rounding depends on the order."
    yield _scatter("scatter_add-order", "scatter_add", thirds, [1, 2], [1, 1, 1], updates, bug)
    bug = "What does not fit is left out, read out of bounds, or written in part."
    for name, rows, shape in [
        ("past", [7], (1, 2)),
        ("negative", [-1], (1, 2)),
        ("shape", [0], (1, 3)),
        ("count", [0, 1], (1, 2)),
    ]:
        value, updates = np.zeros((7, 2), np.float32), np.ones(shape, np.float32)
        yield _scatter(f"bad-{name}", "scatter_add", value, _SHARDS, rows, updates, bug)


def _cases_in_layouts() -> Iterator[Case]:
    value = (np.arange(26).reshape(13, 2) - 9).astype(np.float32)
    rows = [12, 3, 0, 11, 3, 2]
    updates = np.array([[2, 4], [0.5, 2], [4, 1], [1, 8], [2, 0.5], [8, 2]], np.float32)
    outside = "Row 0 is written before the row that no shard holds is noticed."
    for layout, (shards, bug) in LAYOUTS.items():
        for op in _OPS:
            yield _scatter(f"{op}-{layout}", op, value, shards, rows, updates, bug)
        for row in (13, -1):
            name, two = f"bad-{layout}-{row}", np.ones((2, 2), np.float32)
            yield _scatter(name, "scatter_add", value, shards, [0, row], two, outside)
        yield from _assigned(f"-{layout}", value, value[::-1].copy(), shards, bug)
        yield _read(f"-{layout}", value, shards, bug)


def _assign_cases() -> Iterator[Case]:
    value, other = np.zeros((7, 2), np.float32), np.arange(14, dtype=np.float32).reshape(7, 2)
    yield from _assigned("", value, other, _SHARDS, "Every shard gets the first rows.")
    bug = (
        "What is too large is cropped; what is too small overwrites the first shards and fails "
        "then."
    )
    for name, rows in (("large", 9), ("small", 5)):
        inputs = {"value": array(value), "shards": _SHARDS}
        inputs["other"] = array(np.ones((rows, 2), np.float32))
        yield Case(f"assign-too-{name}", "R-SV-3", "assign", inputs, bug, error="ArgumentError")
    yield _read("", other, _SHARDS, "Shards are put together along another axis.")


def _of_dtypes() -> Iterator[Case]:
    """Every write in every dtype, of numbers that need the dtype: not finite, signed zeros,
    extremes, unsigned, and with all digits."""
    shards, rows = [1, 0, 3, 2], [5, 0, 3, 0, 2, 5]
    for dtype in special.DTYPES:
        value = special.table(dtype)
        for op in _OPS:
            if dtype in special.COMPLEX and op in ("scatter_min", "scatter_max"):
                continue  # complex numbers have no order
            before, updates, bug = _operands(op, dtype, value)
            yield _scatter(f"{op}-{dtype}-values", op, before, shards, rows, updates, bug)
        bug = "Numbers pass through another dtype, or the sign of zero is lost."
        yield from _assigned(f"-{dtype}-values", value, special.table(dtype, 5), shards, bug)
        bug = "NaN, an infinity or -0.0 is stored as another number."
        yield _read(f"-{dtype}-values", value, shards, bug)
    bug = "Updates of one row are added in a wider dtype and rounded once."
    for dtype, step in (("float16", 2048), ("bfloat16", 256), ("float64", 2**53)):
        value = np.array([[1], [step]], special.numpy_dtype(dtype))
        name, ones = f"scatter_add-{dtype}-order", np.ones((3, 1), value.dtype)
        yield _scatter(name, "scatter_add", value, [1, 1], [1, 1, 1], ones, bug)


def _operands(op: str, dtype: str, value: Array) -> tuple[Array, Array, str]:
    """Return a value, updates that it can meet in this operation, and the mistake."""
    if op in ("scatter_mul", "scatter_div") and dtype in special.COMPLEX:
        # Products of infinite parts, and the rounding of quotients, are not the same everywhere.
        bug = "The parts are multiplied and divided by themselves."
        return special.finite(dtype), special.finite(dtype, 3), bug
    if op == "scatter_div":
        bug = "Integers are divided as float32, or rounded down; NaN and infinities are left out."
        value = special.finite(dtype, 1) * 7 if dtype in special.INTEGERS else value
        return value, special.finite(dtype, 2), bug
    if op in ("scatter_min", "scatter_max"):
        # IEEE 754 has two answers for zeros of two signs: there is only one sign here.
        bug = "NaN loses to a number (fmin, fmax), unsigned is compared as signed, or in float32."
        return _one_zero(value), _one_zero(special.table(dtype, 3)), bug
    bug = "Another dtype inside: NaN, infinities, -0.0, the wrap of integers or digits are lost."
    return value, special.table(dtype, 5 if op == "scatter_sub" else 7), bug


def _one_zero(value: Array) -> Array:
    """The same with 0.0 in the place of -0.0."""
    return np.where(value == 0, np.zeros_like(value), value)


GROUP = Group(
    "updates",
    "The whole value of a sharded variable after a write. After an error it is what it was.",
    "One row after the other on the whole array; of each element one operation of IEEE 754.",
    numbered([*_scatter_cases(), *_cases_in_layouts(), *_assign_cases(), *_of_dtypes()]),
)
