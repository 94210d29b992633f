"""Optimizers: three steps each, dense and sparse, on sharded variables; the expected values are
those of the whole."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from shardvar.reference.training import optimizers
from shardvar.reference.variables import IndexedSlices
from spec_tests.helpers.embedding_tables import shard
from spec_tests.tensorflow_recordings.cases import Outcome, Rule, decode, is_array

_CLASSES = {
    "sgd": optimizers.SGD,
    "momentum": optimizers.Momentum,
    "adagrad": optimizers.Adagrad,
    "adam": optimizers.Adam,
    "rmsprop": optimizers.RMSprop,
}
_ARGUMENTS = {"use_nesterov": "nesterov", "beta1": "beta_1", "beta2": "beta_2"}
_SLOTS = {"keras3.adam": {"momentum": "m", "velocity": "v"}}


def _run(compat: str, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    hyper = {_ARGUMENTS.get(key, key): value for key, value in inputs["hyper"].items()}
    optimizer = _CLASSES[name](**hyper, compat=compat)
    table = shard(decode(inputs["initial"]), inputs["shard_sizes"], local=True)
    slots = _SLOTS.get(f"{compat}.{name}", {key: key for key in optimizer._slot_values()})
    steps: dict[str, Any] = {"var": [], "slots": {key: [] for key in slots}}
    for parts in inputs["shard_grads"]:
        optimizer.apply_gradients(zip(map(_gradient, parts), table.variables, strict=True))
        steps["var"].append(table.numpy())
        for key, slot in slots.items():
            steps["slots"][key].append(optimizer.get_slot(table, slot).numpy())
    return steps


def _gradient(part: Mapping[str, Any]) -> Any:
    if is_array(part):
        return decode(part)
    return IndexedSlices(decode(part["values"]), decode(part["indices"]), part["dense_shape"])


OPS = {
    f"{compat}.{name}": partial(_run, compat, name)
    for compat in ("v1", "keras_legacy", "keras3")
    for name in _CLASSES
}


def _rounds_its_bias_correction(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """In float32, 1 - 0.999 is wrong in the fifth digit, and Adam's steps with it; here such
    numbers are Python's."""
    if not case["op"].endswith(".adam") or outcome.error is not None:
        return False
    step = 2e-5 * case["inputs"]["hyper"].get("learning_rate", 1e-3) * len(outcome.value["var"])
    pairs = zip(outcome.value["var"], map(decode, case["expected"]["var"]), strict=True)
    return all(np.allclose(ours, theirs, rtol=2e-6, atol=step) for ours, theirs in pairs)


RULES = [Rule("D-OPT-1", _rounds_its_bias_correction)]
TOLERANCE = 2e-6
