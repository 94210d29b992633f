"""The places of rows: div and mod, and the ids that reach each shard. Lookups join with their
layer."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardvar.errors import LayoutError
from shardvar.layout.partition import div
from shardvar.reference.nn.rebalance import mod_sizes, mod_to_div
from shardvar.reference.variables import ShardedVariable, Variable
from shardvar.reference.variables.rows import RowLayout, check_rows
from spec_tests.tensorflow_recordings import lookups
from spec_tests.tensorflow_recordings.cases import Outcome, Rule, Skipped


def _div_split(inputs: Mapping[str, Any]) -> Any:
    parts = div(inputs["rows"], inputs["parts"])
    return {
        "offsets": [start for start, _ in parts],
        "sizes": [stop - start for start, stop in parts],
    }


def _id_map(inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Rows that say where they lie, looked up."""
    sizes = inputs["shard_sizes"]
    shards = [
        np.array([[p, r] for r in range(size)], np.int32).reshape(-1, 2)
        for p, size in enumerate(sizes)
    ]
    ids = np.array(inputs["ids"], inputs.get("ids_dtype", "int64"))
    if inputs["partition_strategy"] == "div":
        return ShardedVariable([Variable(shard) for shard in shards]).sparse_read(ids)
    if inputs["partition_strategy"] != "mod":
        raise Skipped(inputs["partition_strategy"])
    return mod_to_div([Variable(shard) for shard in shards]).sparse_read(ids)


def _decompose(inputs: Mapping[str, Any]) -> Any:
    if "shard_sizes" in inputs:
        layout = RowLayout.of_sizes(inputs["shard_sizes"])
    else:
        layout = RowLayout.of_sizes(
            [stop - start for start, stop in div(inputs["rows"], inputs["parts"])]
        )
    ids = check_rows(inputs["ids"], layout.num_rows)
    owner, local = layout.owner(ids)
    return {
        "per_shard": [local[owner == shard].tolist() for shard in range(layout.num_shards)],
        "assignment": owner.tolist(),
    }


OPS: dict[str, Callable[[Any], Any]] = {
    "div_split": _div_split,
    "id_map": _id_map,
    "decompose_indices": _decompose,
    **lookups.OPS,
}
TOLERANCE = lookups.TOLERANCE


def _sizes(case: Mapping[str, Any]) -> list[int]:
    inputs = case["inputs"]
    if "shard_sizes" in inputs:
        return list(inputs["shard_sizes"])
    if "shards" in inputs:
        return [shard["shape"][0] for shard in inputs["shards"]]
    return [stop - start for start, stop in div(inputs["rows"], inputs["parts"])]


def _any_layout(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Rows are found by the bounds of the shards, so that every contiguous layout is right, and
    nobody divides by 0."""
    if (
        case["op"] not in ("id_map", "decompose_indices")
        or case["inputs"].get("partition_strategy") == "mod"
    ):
        return False
    sizes = _sizes(case)
    canonical = [stop - start for start, stop in div(sum(sizes), len(sizes))]
    if sizes == canonical and sum(sizes) >= len(sizes):
        return False
    where = [(p, r) for p, size in enumerate(sizes) for r in range(size)]
    ids = case["inputs"]["ids"]
    if any(not 0 <= i < len(where) for i in ids):
        return outcome.refused
    if outcome.error is not None:
        return False
    if case["op"] == "id_map":
        return [tuple(row) for row in np.asarray(outcome.value).tolist()] == [where[i] for i in ids]
    return outcome.value["assignment"] == [where[i][0] for i in ids]


def _not_cut_by_mod(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """A list that mod cannot have cut is refused where it is converted, not looked up in wrong
    rows."""
    if not str(case["inputs"].get("partition_strategy")).startswith("mod"):
        return False
    sizes = _sizes(case)
    return tuple(sizes) != mod_sizes(sum(sizes), len(sizes)) and isinstance(
        outcome.error, LayoutError
    )


RULES = [
    Rule("D-LAYOUT-1", _any_layout),
    Rule("D-LAYOUT-2", _not_cut_by_mod),
    *lookups.RULES,
]
