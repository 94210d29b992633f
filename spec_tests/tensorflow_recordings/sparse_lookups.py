"""Sparse lookups: bags of ids with weights over sharded tables."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardvar import nn
from spec_tests.tensorflow_recordings.cases import (
    Allowance,
    Outcome,
    Rule,
    any_integers,
    decode,
    difference,
)
from spec_tests.tensorflow_recordings.nn_tables import (
    NO_STRATEGIES,
    by_its_own_layout,
    equal,
    sparse,
    table,
)


def _sparse(inputs: Mapping[str, Any], **more: Any) -> Any:
    if inputs.get("sp_weights") == "python list":
        return nn.embedding_lookup_sparse(_one(), _ids(), [1.0], "sum")
    ids, weights = sparse(inputs["sp_ids"]), sparse(inputs["sp_weights"])
    return nn.embedding_lookup_sparse(
        table(inputs), ids, weights, inputs["combiner"], inputs["max_norm"], **more
    )


def _safe(inputs: Mapping[str, Any]) -> Any:
    if "embedding_weights" in inputs:
        return nn.safe_embedding_lookup_sparse(inputs["embedding_weights"], _ids())
    return nn.safe_embedding_lookup_sparse(
        table(inputs),
        sparse(inputs["sp_ids"]),
        sparse(inputs["sp_weights"]),
        inputs["combiner"],
        inputs["default_id"],
        inputs["max_norm"],
    )


def _one() -> Any:
    return table({"shards": [{"dtype": "float32", "shape": [1, 1], "data": [[1.0]]}]})


def _ids() -> nn.SparseTensor:
    return nn.SparseTensor([[0, 0]], [0], [1, 1])


def _keeps_last_rows(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Right is TensorFlow's answer with zeros behind it, as many rows as there are rows of ids."""
    if (
        case["op"] != "embedding_lookup_sparse"
        or "expected" not in case
        or outcome.error is not None
    ):
        return False
    theirs, rows = decode(case["expected"]), case["inputs"]["sp_ids"]["dense_shape"][0]
    return (
        len(theirs) < rows == len(outcome.value)
        and not np.any(outcome.value[len(theirs) :])
        and np.array_equal(_sparse(case["inputs"], compat="tf"), outcome.value[: len(theirs)])
        and difference(
            outcome.value[: len(theirs)], case["expected"], allowance=Allowance(tolerance=TOLERANCE)
        )
        is None
    )


def _rows_of_any_rank(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow puts zeros only into rows of one axis. Right is the answer for the same numbers in
    such rows."""
    inputs = case["inputs"]
    shape = inputs["shards"][0]["shape"]
    if len(shape) == 2 or "error" not in case or outcome.error is not None:
        return False
    flat = [
        {**part, "shape": [part["shape"][0], math.prod(shape[1:])]} for part in inputs["shards"]
    ]
    same = OPS[case["op"]]({**inputs, "shards": flat})
    return equal(outcome.value, same.reshape((*inputs["sp_ids"]["dense_shape"][:-1], *shape[1:])))


OPS = {"embedding_lookup_sparse": _sparse, "safe_embedding_lookup_sparse": _safe}
RULES = [
    NO_STRATEGIES,
    Rule("D-NN-2", _keeps_last_rows),
    Rule("D-NN-6", _rows_of_any_rank),
    by_its_own_layout(_safe),
    by_its_own_layout(_sparse),
    any_integers(OPS),
]
TOLERANCE = 1e-6
