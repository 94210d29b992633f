"""Sharded variables: indexing, lookups, updates, initial values, optimizers; and the random
streams."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

import shardvar as sv
from shardvar import random
from shardvar.layout.dtypes import Array
from shardvar.reference.random.indexed import IndexedStream
from shardvar.reference.random.stateless import PhiloxStream
from shardvar.reference.variables import ShardedVariable, Variable
from shardvar.vectors.run import decode_array
from spec_tests.vector_answers.geometry import region

Inputs = Mapping[str, Any]


def sharded(value: Array, rows: list[int]) -> ShardedVariable:
    bounds = np.cumsum([0, *rows]).tolist()
    return ShardedVariable([Variable(value[start:stop]) for start, stop in pairwise(bounds)])


def _getitem(inputs: Inputs) -> Any:
    items = {"ellipsis": Ellipsis, "newaxis": None}
    key = tuple(
        slice(*item["slice"])
        if isinstance(item, dict)
        else items[item]
        if isinstance(item, str)
        else item
        for item in inputs["key"]
    )
    return np.asarray(sharded(decode_array(inputs["value"]), inputs["shards"])[key])


def _lookup(inputs: Inputs) -> Any:
    table = sharded(decode_array(inputs["table"]), inputs["shards"])
    return sv.nn.embedding_lookup(table, decode_array(inputs["ids"]), inputs["max_norm"])


def _sparse_lookup(inputs: Inputs) -> Any:
    table = sharded(decode_array(inputs["table"]), inputs["shards"])
    places = np.array(inputs["indices"], np.int64).reshape(-1, 2)

    def sparse(values: Any) -> Any:
        return (
            None
            if values is None
            else sv.nn.SparseTensor(places, decode_array(values), inputs["dense_shape"])
        )

    ids, weights = sparse(inputs["ids"]), sparse(inputs["weights"])
    return sv.nn.embedding_lookup_sparse(
        table, ids, weights, inputs["combiner"], inputs["max_norm"]
    )


def _write(op: str) -> Callable[[Inputs], Any]:
    """Scatter the updates, or assign the other value."""

    def run(inputs: Inputs) -> Any:
        before = decode_array(inputs["value"])
        table = sharded(before, inputs["shards"])
        given: Any = decode_array(inputs["other" if "other" in inputs else "updates"])
        if "updates" in inputs:
            given = sv.IndexedSlices(given, decode_array(inputs["indices"]))
        try:
            getattr(table, op)(given)
        except sv.errors.ShardvarError:
            assert np.array_equal(table.numpy(), before), "an error left a part of the write behind"
            raise
        return table.numpy()

    return run


def _seed(inputs: Inputs) -> Any:
    seed = inputs["seed"]
    return [int(each) for each in seed] if isinstance(seed, list) else int(seed)


def _philox(inputs: Inputs) -> Any:
    counter = sum(word << 32 * place for place, word in enumerate(inputs["counter"]))
    stream = PhiloxStream(tuple(inputs["key"]), counter)
    return stream.words(0, 4).tolist()


def _draw(function: Callable[..., Array], *names: str) -> Callable[[Inputs], Any]:
    def run(inputs: Inputs) -> Any:
        more = {"region": region(inputs["region"])} if "region" in inputs else {}
        numbers = [inputs.get(name) for name in names]
        return function(inputs["shape"], _seed(inputs), *numbers, inputs["dtype"], **more)

    return run


def _initialize(inputs: Inputs) -> Any:
    more = {} if inputs["seed_mode"] is None else {"seed_mode": inputs["seed_mode"]}
    make = getattr(sv.initializers, inputs["initializer"])
    return make(**inputs["arguments"], **more)(
        inputs["shape"], inputs["dtype"], region(inputs["region"])
    )


def _optimize(inputs: Inputs) -> Any:
    initial, slots = inputs["initial_slots"], inputs["initial_slots"].keys()
    more = {"initial_accumulator_value": initial["accumulator"]} if "accumulator" in initial else {}
    optimizer = getattr(sv.optimizers, inputs["optimizer"])(**inputs["hyperparameters"], **more)
    table = sharded(decode_array(inputs["value"]), inputs["shards"])
    bounds = np.cumsum([0, *inputs["shards"]])
    found = []
    for gradient in inputs["gradients"]:
        values, pairs = decode_array(gradient["values"]), []
        rows = None if gradient["indices"] is None else decode_array(gradient["indices"])
        for (start, stop), shard in zip(pairwise(bounds), table.variables, strict=True):
            if rows is None:
                pairs.append((values[start:stop], shard))
            else:
                here = (rows >= start) & (rows < stop)
                pairs.append((sv.IndexedSlices(values[here], rows[here] - start), shard))
        optimizer.apply_gradients(pairs)
        after = {name: optimizer.get_slot(table, name).numpy() for name in slots}
        found.append({"value": table.numpy(), "slots": after})
    return found


_LIMITS, _MOMENTS = ("minval", "maxval"), ("mean", "stddev")
_SCATTERS = [f"scatter_{op}" for op in ("add", "sub", "mul", "div", "min", "max", "update")]

OPS: dict[str, Callable[[Inputs], Any]] = {
    "getitem": _getitem,
    "embedding_lookup": _lookup,
    "embedding_lookup_sparse": _sparse_lookup,
    **{op: _write(op) for op in (*_SCATTERS, "assign", "assign_add", "assign_sub")},
    "read_value": lambda inputs: sharded(
        decode_array(inputs["value"]), inputs["shards"]
    ).read_value(),
    "philox4x32": _philox,
    "indexed_words": lambda inputs: (
        IndexedStream.of(_seed(inputs)).words(inputs["start"], inputs["count"]).tolist()
    ),
    "stateless_words": lambda inputs: (
        PhiloxStream.of(_seed(inputs)).words(0, inputs["count"]).tolist()
    ),
    "stateless_uniform": _draw(random.stateless_uniform, *_LIMITS),
    "stateless_full_range": _draw(random.stateless_uniform, *_LIMITS),
    "stateless_normal": _draw(random.stateless_normal, *_MOMENTS),
    "stateless_truncated_normal": _draw(random.stateless_truncated_normal, *_MOMENTS),
    "indexed_uniform": _draw(random.indexed_uniform, *_LIMITS),
    "indexed_normal": _draw(random.indexed_normal, *_MOMENTS),
    "indexed_truncated_normal": _draw(random.indexed_truncated_normal, *_MOMENTS),
    "jax_bits": lambda inputs: random.jax_bits(
        random.jax_key(_seed(inputs)), [inputs["count"]]
    ).tolist(),
    "jax_uniform": lambda inputs: random.jax_uniform(
        random.jax_key(_seed(inputs)), [inputs["count"]]
    ),
    "initialize": _initialize,
    "optimize": _optimize,
}
