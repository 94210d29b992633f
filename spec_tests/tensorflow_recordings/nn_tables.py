"""Tables of nn's vectors: what TensorFlow calls a list, a ShardedVariable, one variable."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardvar import nn
from shardvar.reference.variables import Variable
from spec_tests.tensorflow_recordings.building import sharded
from spec_tests.tensorflow_recordings.cases import Outcome, Rule, Skipped, decode


def table(inputs: Mapping[str, Any], key: str = "shards") -> Any:
    """The table of a case. A list that TensorFlow reads by mod is converted by ``mod_to_div``, as a
    user would."""
    kind, strategy = inputs.get("params_kind", "list"), inputs.get("partition_strategy") or "div"
    if not strategy.startswith(("div", "mod")):
        raise Skipped(strategy)
    if kind in ("single", "dense"):
        return Variable(np.concatenate([decode(array) for array in inputs[key]]))
    params = sharded(inputs[key])
    if kind == "list" and strategy.startswith("mod"):
        return nn.mod_to_div(
            [Variable(shard.numpy(), device=shard.device) for shard in params.variables]
        )
    return params


def sparse(value: Mapping[str, Any] | None) -> nn.SparseTensor | None:
    """A sparse tensor from its three parts."""
    if value is None:
        return None
    return nn.SparseTensor(value["indices"], decode(value["values"]), value["dense_shape"])


def _full(inputs: Mapping[str, Any], key: str) -> np.ndarray[Any, Any]:
    return np.concatenate([decode(array) for array in inputs[key]])


def by_its_own_layout(run: Any, key: str = "shards") -> Rule:
    """D-NN-1: where TensorFlow reads a sharded variable by a strategy that is not its layout, the
    right rows are read.

    Right is what the same op gives for the whole table in one variable.
    """

    def covers(case: Mapping[str, Any], outcome: Outcome) -> bool:
        inputs = case["inputs"]
        if key not in inputs or outcome.error is not None:
            return False
        strategy = inputs.get("partition_strategy") or "div"
        sizes = [array["shape"][0] for array in inputs[key]]
        is_div = sizes == [len(part) for part in np.array_split(np.arange(sum(sizes)), len(sizes))]
        if strategy == "div" and is_div and 0 not in sizes:
            return False
        return equal(outcome.value, run({**inputs, "params_kind": "single"}))

    return Rule("D-NN-1", covers)


def _no_strategies(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 002: "we will remove partition_strategy from all v2 symbols": there is no argument to get
    wrong."""
    strategy = case["inputs"].get("partition_strategy") or "div"
    return not strategy.startswith(("div", "mod")) and isinstance(outcome.error, Skipped)


NO_STRATEGIES = Rule("D-LAYOUT-3", _no_strategies)


def equal(first: Any, second: Any) -> bool:
    """Equal values, arrays to five digits."""
    if isinstance(first, Mapping):
        return all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(equal, first, second))
    first, second = np.asarray(first), np.asarray(second)
    if first.shape != second.shape or first.dtype == object:
        return np.array_equal(first, second)
    return bool(
        np.allclose(first.astype(complex), second.astype(complex), 1e-5, 1e-6, equal_nan=True)
    )
