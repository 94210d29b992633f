"""Sampled losses with given samples, and their gradients by the shards."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np

from shardvar import nn
from shardvar.reference.nn.losses import sampled_logits
from shardvar.reference.variables import IndexedSlices
from spec_tests.tensorflow_recordings.cases import (
    AnyOf,
    Outcome,
    Rule,
    any_integers,
    decode,
    is_array,
)
from spec_tests.tensorflow_recordings.gradients import encoded
from spec_tests.tensorflow_recordings.nn_tables import NO_STRATEGIES, equal, table


def _arguments(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments; those that a recording leaves to their defaults are left to ours."""
    weights = table(inputs, "weights_shards")
    given = {
        "weights": weights,
        "biases": table(inputs, "biases_shards"),
        "labels": decode(inputs["labels"]),
        "inputs": decode(inputs["inputs"]),
        "num_sampled": inputs.get("num_sampled", len(inputs.get("sampled") or [0])),
        "num_classes": inputs.get("num_classes", weights.shape[0]),
    }
    if inputs.get("sampled") is not None:
        counts = (decode(inputs[f"{kind}_expected_count"]) for kind in ("true", "sampled"))
        given["sampled_values"] = (inputs["sampled"], *counts)
    optional = ("num_true", "remove_accidental_hits", "seed", "name")
    return given | {name: inputs[name] for name in optional if inputs.get(name) is not None}


def _loss(function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    def op(inputs: Mapping[str, Any]) -> dict[str, Any]:
        given = _arguments(inputs)
        defaults = _defaults(function)
        every = {name: given.get(name, defaults[name]) for name in _OF_LOGITS} | given
        sampled = sampled_logits(**every)
        return {
            "loss": function(**_arguments(inputs)),
            "logits": sampled.logits,
            "labels": sampled.labels,
        }

    return op


def _gradient(function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    def op(inputs: Mapping[str, Any]) -> dict[str, Any]:
        loss, pullback = nn.vjp(function, **_arguments(inputs))
        weights, biases, features = pullback(np.ones_like(loss))
        return {
            "weights_grads": encoded(weights),
            "biases_grads": encoded(biases),
            "inputs_grad": features,
        }

    return op


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in signature(function).parameters.items()
        if parameter.default is not parameter.empty
    }


_OF_LOGITS = ("num_true", "sampled_values", "remove_accidental_hits", "seed", "name")


def _by_default(function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    """The defaults themselves, or a loss whose arguments have them, alone or with its parts."""

    def op(inputs: Mapping[str, Any]) -> Any:
        if "weights_shards" not in inputs:
            return _defaults(function)
        parts = _loss(function)(inputs)
        return AnyOf((parts, parts["loss"]))

    return op


OPS = {
    "nce_loss": _loss(nn.nce_loss),
    "sampled_softmax_loss": _loss(nn.sampled_softmax_loss),
    "nce_loss_defaults": _by_default(nn.nce_loss),
    "sampled_softmax_defaults": _by_default(nn.sampled_softmax_loss),
    "sampled_softmax_loss_defaults": _by_default(nn.sampled_softmax_loss),
    "nce_loss_grad": _gradient(nn.nce_loss),
    "sampled_softmax_loss_grad": _gradient(nn.sampled_softmax_loss),
}


def _by_its_own_layout(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Right is the loss of the same case by div, which is how both variables are laid out."""
    inputs = case["inputs"]
    if inputs.get("partition_strategy") == "div" or outcome.error is not None:
        return False
    return equal(outcome.value, OPS[case["op"]]({**inputs, "partition_strategy": "div"}))


def _gradient_of_the_converted_table(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Right is the same gradient of the whole table: theirs put together by mod is ours put
    together by div."""
    if "mod" not in case["inputs"].get("partition_strategy", "") or "weights_grads" not in case.get(
        "expected", {}
    ):
        return False
    theirs, ours = (
        [_dense(part) for part in grads]
        for grads in (case["expected"]["weights_grads"], _grads(outcome))
    )
    by_mod = np.zeros_like(np.concatenate(theirs))
    for number, part in enumerate(theirs):
        by_mod[number :: len(theirs)] = part
    return equal(np.concatenate(ours), by_mod)


def _grads(outcome: Outcome) -> list[Any]:
    return [] if outcome.error is not None else outcome.value["weights_grads"]


def _dense(part: Mapping[str, Any]) -> Any:
    values, indices = (
        decode(part[key]) if is_array(part[key]) else part[key] for key in ("values", "indices")
    )
    return IndexedSlices(values, indices, part["dense_shape"]).to_dense()


RULES = [
    NO_STRATEGIES,
    Rule("D-NN-1", _by_its_own_layout),
    Rule("D-NN-4", _gradient_of_the_converted_table),
    any_integers(OPS),
]
TOLERANCE = 1e-5
