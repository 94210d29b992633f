"""Gradients by the shards: of lookups, products, indexing."""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from shardvar import nn
from shardvar.reference.variables import IndexedSlices
from spec_tests.tensorflow_recordings.cases import AnyOf, Outcome, Rule, any_integers, decode
from spec_tests.tensorflow_recordings.nn_tables import sparse, table


def encoded(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    """The gradients as the vectors write them."""
    return [
        {"indices": value.indices, "values": value.values, "dense_shape": list(value.dense_shape)}
        if isinstance(value, IndexedSlices)
        else value
        for value, _ in pairs
    ]


def _ids(inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    return np.array(inputs["ids"], np.int32)


def _upstream(inputs: Mapping[str, Any], rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    weights = np.array(inputs.get("weights") or np.ones(len(rows)), rows.dtype)
    return np.ones_like(rows) * weights.reshape(-1, *(1 for _ in rows.shape[1:]))


def _lookup(inputs: Mapping[str, Any]) -> list[Any]:
    rows, pullback = nn.vjp(
        nn.embedding_lookup, table(inputs), _ids(inputs), inputs.get("max_norm")
    )
    return encoded(pullback(_upstream(inputs, rows))[0])


def _lookup_sparse(inputs: Mapping[str, Any]) -> list[Any]:
    ids, weights = sparse(inputs["sp_ids"]), sparse(inputs.get("sp_weights"))
    rows, pullback = nn.vjp(
        nn.embedding_lookup_sparse, table(inputs), ids, weights, inputs["combiner"]
    )
    return encoded(pullback(np.ones_like(rows))[0])


def _matmul(inputs: Mapping[str, Any]) -> list[Any]:
    """The vector's product is with the numbers of the rows, one row of them."""
    params = table(inputs)
    left = np.arange(params.shape[0], dtype=params.dtype).reshape(1, -1)
    value, pullback = nn.vjp(nn.matmul, left, params)
    return encoded(pullback(np.ones_like(value))[1])


def _getitem(key: Any) -> Any:
    def op(inputs: Mapping[str, Any]) -> list[Any]:
        value, pullback = nn.vjp(operator.getitem, table(inputs), key)
        return encoded(pullback(np.ones_like(value))[0])

    return op


def _getitem_int(inputs: Mapping[str, Any]) -> Any:
    """Of one row, which some recordings do not name."""
    rows = [inputs[name] for name in ("key", "index", "row", "i") if name in inputs]
    return AnyOf(tuple(_getitem(row)(inputs) for row in rows or range(table(inputs).shape[0])))


def _square_sum(inputs: Mapping[str, Any]) -> list[Any]:
    """Of the sum of the squares of all elements: the gradient by the elements is twice each."""
    value, pullback = nn.vjp(operator.getitem, table(inputs), ...)
    return encoded(pullback(2 * value)[0])


OPS: dict[str, Callable[[Any], Any]] = {
    # Of the sum of all elements, or of the rows at the ids, by the variable: by its shards.
    "grad_wrt_sharded_variable_itself": lambda inputs: (
        _lookup if inputs.get("ids") else _getitem(...)
    )(inputs),
    "grad_sum_of_weighted_lookup": _lookup,
    "grad_lookup_max_norm": _lookup,
    "grad_sparse_read": _lookup,
    "grad_gather_dense": _lookup,
    "grad_embedding_lookup_sparse": _lookup_sparse,
    "grad_dense_matmul": _matmul,
    "grad_getitem_int": _getitem_int,
    "grad_square_sum": _square_sum,
    **{f"grad_getitem_{row}": _getitem(row) for row in range(14)},
    **{
        f"grad_getitem_{start}_{stop}": _getitem(slice(start, stop))
        for start in range(14)
        for stop in range(14)
    },
}


def _weights_in_the_order_of_ids(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Right is the gradient of the lookup of the same ids, whose rows stand in the order of the
    ids."""
    if case["op"] != "grad_sparse_read" or outcome.error is not None:
        return False
    theirs = [part["indices"]["data"] for part in case["expected"]]
    ours = [part["indices"].tolist() for part in outcome.value]
    weights = case["inputs"]["weights"]
    total = sum(float(np.sum(part["values"])) for part in outcome.value)
    row = decode(case["inputs"]["shards"][0])[:1].size
    return ours == theirs and np.isclose(total, sum(weights) * row)


def _by_its_shards(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["op"] == "grad_wrt_sharded_variable_itself" and len(outcome.value) == len(
        case["inputs"]["shards"]
    )


RULES = [
    Rule("D-NN-7", _by_its_shards),
    Rule("D-NN-3", _weights_in_the_order_of_ids),
    any_integers(OPS),
]
TOLERANCE = 1e-6
