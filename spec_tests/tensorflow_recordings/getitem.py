"""Indexing. What is right is NumPy's answer on the concatenated array, which the vectors give
beside TensorFlow's."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardvar.reference.devices import Device
from shardvar.reference.variables import Variable
from spec_tests.tensorflow_recordings.building import sharded
from spec_tests.tensorflow_recordings.cases import Outcome, Rule, decode, difference


def key_of(token: Any) -> Any:
    """The key that a token stands for."""
    if token in ("ellipsis", "newaxis"):
        return Ellipsis if token == "ellipsis" else None
    if not isinstance(token, dict):
        return token
    kind, value = next((kind, value) for kind, value in token.items() if kind != "np")
    if kind == "slice":
        return slice(*map(key_of, value))
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(map(key_of, value))
    if kind == "bool":
        return np.bool_(value) if token.get("np") else bool(value)
    if kind in ("int", "float"):
        return value
    if kind in ("mask", "array", "tensor"):
        return decode(value) if isinstance(value, dict) else np.asarray(value)
    if kind == "variable":
        return Variable(decode(value), device=Device("worker:0"))
    return np.int64(value) if kind == "np_int" else value


OPS = {"getitem": lambda inputs: sharded(inputs["shards"])[key_of(inputs["key"])]}


def _is_numpys(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Return True if the engine gave NumPy's value, or refused what NumPy refuses."""
    if "numpy" in case:
        return outcome.error is None and difference(outcome.value, case["numpy"]) is None
    return "numpy_error" in case and outcome.refused


def _tokens(case: Mapping[str, Any]) -> list[Any]:
    key = case["inputs"]["key"]
    return key["tuple"] if isinstance(key, dict) and "tuple" in key else [key]


def _has(case: Mapping[str, Any], *kinds: str) -> bool:
    return any(
        isinstance(token, dict) and kind in token for token in _tokens(case) for kind in kinds
    )


def _start_out_of_range(case: Mapping[str, Any], outcome: Outcome) -> bool:
    first = _tokens(case)[0] if _tokens(case) else None
    if not isinstance(first, dict) or "slice" not in first:
        return False
    start, _, step = first["slice"]
    rows = sum(shard["shape"][0] for shard in case["inputs"]["shards"])
    is_outside = isinstance(start, int) and not -rows <= start < rows
    return is_outside and isinstance(step, int) and abs(step) > 1 and _is_numpys(case, outcome)


def _ellipsis_for_no_axis(case: Mapping[str, Any], outcome: Outcome) -> bool:
    consuming = [token for token in _tokens(case) if token not in ("ellipsis", "newaxis")]
    rank = len(case["inputs"]["shards"][0]["shape"])
    return "ellipsis" in _tokens(case) and len(consuming) >= rank and _is_numpys(case, outcome)


def _newaxis_first(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return _tokens(case)[:1] == ["newaxis"] and _is_numpys(case, outcome)


def _no_rows(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """An empty slice of the first axis, or an empty key: TensorFlow forgets the rest of the key, or
    stumbles."""
    tokens = _tokens(case)
    empty_slice = (
        isinstance(case.get("expected"), dict)
        and case["expected"]["shape"][:1] == [0]
        and len(tokens) > 1
        and isinstance(tokens[0], dict)
        and "slice" in tokens[0]
    )
    return (empty_slice or not tokens or tokens == [{"list": []}]) and _is_numpys(case, outcome)


def _booleans_and_arrays(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return _has(case, "bool", "mask", "array", "tensor", "list") and _is_numpys(case, outcome)


def _tensor_as_bound(case: Mapping[str, Any], outcome: Outcome) -> bool:
    bounds = [
        bound
        for token in _tokens(case)
        if isinstance(token, dict)
        for bound in token.get("slice", [])
    ]
    return any(isinstance(bound, dict) for bound in bounds) and _is_numpys(case, outcome)


RULES = [
    Rule("D-GETITEM-1", _start_out_of_range),
    Rule("D-GETITEM-2", _ellipsis_for_no_axis),
    Rule("D-GETITEM-3", _newaxis_first),
    Rule("D-GETITEM-4", _no_rows),
    Rule("D-GETITEM-5", _booleans_and_arrays),
    Rule("D-GETITEM-6", _tensor_as_bound),
]
