"""Dense lookups, which the group div_mod has beside the routing of rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardvar import nn
from spec_tests.tensorflow_recordings.cases import Outcome, Rule, any_integers, decode
from spec_tests.tensorflow_recordings.nn_tables import NO_STRATEGIES, by_its_own_layout, table


def _lookup(inputs: Mapping[str, Any]) -> Any:
    if "params" in inputs:
        return nn.embedding_lookup(inputs["params"], [0])
    if inputs["params_kind"] == "tuple":
        shards = tuple(
            np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            for shape in inputs["params_shapes"]
        )
        return nn.embedding_lookup(shards, inputs["ids"])
    ids = inputs["ids"]
    given = decode(ids) if isinstance(ids, Mapping) else ids
    return nn.embedding_lookup(table(inputs), given, inputs.get("max_norm"))


def _tuple_of_shards(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["inputs"].get("params_kind") == "tuple" and outcome.refused


OPS = {"embedding_lookup": _lookup}
RULES = [
    NO_STRATEGIES,
    Rule("D-NN-5", _tuple_of_shards),
    by_its_own_layout(_lookup),
    any_integers(OPS),
]
TOLERANCE = 1e-6
