"""The judge of an answer to a published vector: its value, an alternative, or an error of its class
is right."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import shardvar as sv
from shardvar.layout.dtypes import dtype_name, numpy_dtype

Array = np.ndarray[Any, Any]


def decode(value: Mapping[str, Any]) -> Array:
    """The array that ``{dtype, shape, data}`` encodes."""
    dtype, data = numpy_dtype(value["dtype"]), value["data"]
    if dtype.kind in "iu":
        flat = np.array([int(each) for each in data], dtype)
    elif dtype.kind == "c":
        flat = np.array([complex(float(a), float(b)) for a, b in data], dtype)
    elif dtype.kind == "b":
        flat = np.array(data, dtype)
    else:
        flat = np.array([float(each) for each in data], np.float64).astype(dtype)
    return flat.reshape(value["shape"])


def is_array(value: Any) -> bool:
    """Return True if a value is an array in the vectors' encoding."""
    return isinstance(value, Mapping) and value.keys() == {"dtype", "shape", "data"}


def difference(found: Any, expected: Any, ulps: int = 0, at: str = "") -> str | None:
    """Return the first place where an answer differs, or None."""
    if is_array(expected):
        return _array_difference(found, decode(expected), ulps, at)
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or found.keys() != expected.keys():
            return f"{at}: {found!r} is not {expected!r}"
        pairs = [(found[key], expected[key], f"{at}.{key}") for key in expected]
    elif isinstance(expected, list):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            return f"{at}: {found!r} is not {expected!r}"
        pairs = [(a, b, f"{at}[{i}]") for i, (a, b) in enumerate(zip(found, expected, strict=True))]
    else:
        if isinstance(found, int) and isinstance(expected, str):
            expected = int(expected)
        same = found == expected and isinstance(found, bool) is isinstance(expected, bool)
        return None if same else f"{at}: {found!r} is not {expected!r}"
    return next(
        (wrong for a, b, name in pairs if (wrong := difference(a, b, ulps, name)) is not None), None
    )


def _array_difference(found: Any, expected: Array, ulps: int, at: str) -> str | None:
    given = np.asarray(found)
    if dtype_name(given.dtype) != dtype_name(expected.dtype) or given.shape != expected.shape:
        return f"{at}: {given.dtype}{given.shape} is not {expected.dtype}{expected.shape}"
    same = given == expected
    if given.dtype.kind not in "biuc":
        same &= np.signbit(given) == np.signbit(expected)
    if ulps:
        unit = np.spacing(np.abs(expected)).astype(np.float64)
        same = np.abs(given.astype(np.float64) - expected.astype(np.float64)) <= ulps * unit
    return (
        None
        if np.all(same)
        else f"{at}: {given.tolist()} is not {expected.tolist()} within {ulps} ulps"
    )


def disagreement(case: Mapping[str, Any], answer: Any) -> str | None:
    """Return, in one line, how an answer (a value or an error) differs from all that the case
    allows, or None."""
    wrong = _outcome_difference(case, answer, case["ulps"])
    if wrong is None or any(
        _outcome_difference(each, answer, case["ulps"]) is None for each in case["acceptable"]
    ):
        return None
    return f"{case['id']}: {wrong}"


def _outcome_difference(outcome: Mapping[str, Any], answer: Any, ulps: int) -> str | None:
    if "error" in outcome:
        wanted = getattr(sv.errors, outcome["error"])
        return None if isinstance(answer, wanted) else f"{answer!r} is no {outcome['error']}"
    if isinstance(answer, Exception):
        return f"raised {answer!r}"
    return difference(answer, outcome["expected"], ulps)
