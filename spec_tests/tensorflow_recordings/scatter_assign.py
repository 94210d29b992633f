"""Dense and sparse writes, and sparse reads. What is right is NumPy on the concatenated array, all
or nothing."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardvar.errors import ArgumentTypeError
from shardvar.layout.partition import div
from shardvar.reference.variables import IndexedSlices, ShardedVariable
from spec_tests.tensorflow_recordings.building import contents, sharded, told
from spec_tests.tensorflow_recordings.cases import (
    Outcome,
    Rule,
    any_integers,
    decode,
    difference,
    encoded,
    is_array,
)


def _value(inputs: Mapping[str, Any]) -> Any:
    if inputs["value"] == "ShardedVariable":
        return sharded(inputs["value_shards"])
    if isinstance(inputs["value"], str):
        return told(inputs["value"], _full(inputs).shape)
    return decode(inputs["value"]) if is_array(inputs["value"]) else inputs["value"]


def _slices(inputs: Mapping[str, Any]) -> Any:
    if "sparse_delta" in inputs:
        return told(inputs["sparse_delta"].partition(" instead of ")[0], (8, 2))
    return IndexedSlices(_array(inputs["values"]), _array(inputs["indices"]))


def _array(value: Any) -> Any:
    return decode(value) if is_array(value) else value


def _write(
    method: str, argument: Callable[[Mapping[str, Any]], Any]
) -> Callable[[Mapping[str, Any]], Any]:
    def op(inputs: Mapping[str, Any]) -> Any:
        variable = sharded(inputs["shards"])
        try:
            returned = getattr(variable, method)(argument(inputs), **inputs.get("kwargs", {}))
        except Exception:
            _check_unchanged(variable, inputs)
            raise
        return {"shards": contents(variable), "returns_self": returned is variable}

    return op


def _check_unchanged(variable: ShardedVariable, inputs: Mapping[str, Any]) -> None:
    """All or nothing: a write that is refused has changed no shard. This is the engine's law, in
    every case."""
    wrong = difference(contents(variable), inputs["shards"])
    if wrong is not None:
        raise AssertionError(f"a refused write changed a shard: {wrong}")


_DENSE = ("assign", "assign_add", "assign_sub")
_SPARSE = (
    *(f"scatter_{verb}" for verb in "add sub mul div max min update".split()),
    "batch_scatter_update",
)

OPS: dict[str, Callable[[Any], Any]] = {
    **{name: _write(name, _value) for name in _DENSE},
    **{name: _write(name, _slices) for name in _SPARSE},
    "sparse_read": lambda inputs: sharded(inputs["shards"]).sparse_read(_array(inputs["indices"])),
}


def _full(inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([decode(shard) for shard in inputs["shards"]])


def _shape_differs(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow crops what is larger, and writes the first shards before it finds that the rest is
    missing."""
    value = case["inputs"].get("value")
    return (
        is_array(value) and value["shape"] != list(_full(case["inputs"]).shape) and outcome.refused
    )


def _dtype_is_cast(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """One rule for plain and sharded variables: a value is cast where its kind allows."""
    inputs = case["inputs"]
    value = inputs.get("value", inputs.get("values"))
    wanted = inputs["shards"][0]["dtype"]
    if isinstance(value, list):
        value = encoded(np.asarray(value))
    if not is_array(value) or value["dtype"] == wanted or "shards" not in (outcome.value or {}):
        return False
    cast = {"dtype": wanted, "shape": value["shape"], "data": value["data"]}
    like = {**inputs, ("value" if "value" in inputs else "values"): cast}
    same = OPS[case["op"]](like)
    return (
        difference(np.concatenate(outcome.value["shards"]), encoded(np.concatenate(same["shards"])))
        is None
    )


def _rows_in_order_of_ids(case: Mapping[str, Any], outcome: Outcome) -> bool:
    if case["op"] != "sparse_read" or outcome.error is not None:
        return False
    return np.array_equal(outcome.value, _full(case["inputs"])[decode(case["inputs"]["indices"])])


def _ids_of_any_rank(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """As plain variables do, and as the lookup of RFC 002 does."""
    return _rows_in_order_of_ids(case, outcome) and len(case["inputs"]["indices"]["shape"]) != 1


def _any_layout(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow finds rows by div's closed form, and gives up on other layouts and on fewer rows
    than shards."""
    inputs = case["inputs"]
    sizes = [shard["shape"][0] for shard in inputs["shards"]]
    canonical = [stop - start for start, stop in div(sum(sizes), len(sizes))]
    if "indices" not in inputs or (sizes == canonical and sum(sizes) >= len(sizes)):
        return False
    joined = {
        "dtype": inputs["shards"][0]["dtype"],
        "shape": [sum(sizes), *inputs["shards"][0]["shape"][1:]],
    }
    whole = {**inputs, "shards": [{**joined, "data": _full(inputs).tolist()}]}
    try:
        same = OPS[case["op"]](whole)
    except ValueError:
        return outcome.refused
    found = outcome.value
    if isinstance(same, dict) and isinstance(found, dict):
        same, found = same["shards"][0], np.concatenate(found["shards"])
    return outcome.error is None and difference(found, encoded(same)) is None


def _no_slices(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow stumbles over what is no IndexedSlices; here it is said."""
    return "sparse_delta" in case["inputs"] and isinstance(outcome.error, ArgumentTypeError)


def _row_shape_differs(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow's kernel reads and writes other rows' memory, or takes a part of the values."""
    inputs = case["inputs"]
    if "values" not in inputs:
        return False
    wanted = [*inputs["indices"]["shape"], *inputs["shards"][0]["shape"][1:]]
    return inputs["values"]["shape"] != wanted and outcome.refused


def _ids_that_are_no_integers(case: Mapping[str, Any], outcome: Outcome) -> bool:
    indices = case["inputs"].get("indices")
    return (
        indices is not None and not indices["dtype"].startswith(("int", "uint")) and outcome.refused
    )


def _left_half_done(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow writes shard after shard and keeps what it wrote before the error; here nothing is
    written."""
    return "state_after" in case and outcome.refused


def _lists_of_ids(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow wants tensors, and stumbles over lists; here a list of ids is ids."""
    ids = case["inputs"].get("indices")
    return isinstance(ids, list) and "error" in case and outcome.error is None


RULES = [
    Rule("D-ASSIGN-1", _shape_differs),
    Rule("D-ASSIGN-2", _dtype_is_cast),
    Rule("D-ASSIGN-3", _left_half_done),
    Rule("D-SCATTER-1", _row_shape_differs),
    Rule("D-SCATTER-2", _no_slices),
    any_integers(OPS),
    Rule("D-ID-2", _ids_of_any_rank),
    Rule("D-ID-3", _ids_that_are_no_integers),
    Rule("D-ID-4", _lists_of_ids),
    Rule("D-LAYOUT-1", _any_layout),
    Rule("D-READ-1", _rows_in_order_of_ids),
]
