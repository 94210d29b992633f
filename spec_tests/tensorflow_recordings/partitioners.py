"""Counts of parts, from TensorFlow 2's classes and TensorFlow 1's functions.

TensorFlow's rule for a minimum is ``rounding="ceil"`` here; so it is asked.
"""

from collections.abc import Callable, Mapping
from typing import Any

import shardvar.layout.shard_counts as rules
from spec_tests.tensorflow_recordings.cases import Outcome, Rule


def _call(
    make: Callable[..., Any], *, has_axis: bool, **fixed: Any
) -> Callable[[Mapping[str, Any]], list[int]]:
    def op(inputs: Mapping[str, Any]) -> list[int]:
        partitioner = make(**inputs.get("ctor", {}), **fixed)
        shape = inputs["shape"] if inputs["shape"] is None else tuple(inputs["shape"])
        if inputs.get("shape_kind") == "list" and shape is not None:
            shape = list(shape)
        if inputs.get("positional_dtype") or not has_axis:
            return list(partitioner(shape, inputs["dtype"]))
        return list(partitioner(shape, inputs["dtype"], axis=inputs.get("axis", 0)))

    return op


OPS = {
    "Partitioner": _call(rules.Partitioner, has_axis=True),
    "FixedShardsPartitioner": _call(rules.FixedShardsPartitioner, has_axis=True),
    "MinSizePartitioner": _call(rules.MinSizePartitioner, has_axis=True, rounding="ceil"),
    "MaxSizePartitioner": _call(rules.MaxSizePartitioner, has_axis=True),
    "v1.fixed_size_partitioner": _call(rules.fixed_size_partitioner, has_axis=False),
    "v1.min_max_variable_partitioner": _call(
        rules.min_max_variable_partitioner, has_axis=False, rounding="ceil"
    ),
    "v1.variable_axis_size_partitioner": _call(
        rules.variable_axis_size_partitioner, has_axis=False
    ),
}


def _whole(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return outcome.value == [1] * len(case["inputs"]["shape"])


def _has_nothing_to_cut(case: Mapping[str, Any], outcome: Outcome) -> bool:
    shape = case["inputs"]["shape"]
    is_scalar_or_empty = shape is not None and (not shape or 0 in shape)
    sizeless = case["inputs"]["dtype"] in ("resource", "variant")
    return (is_scalar_or_empty or (sizeless and None not in (shape or [None]))) and _whole(
        case, outcome
    )


def _counts_below_one(case: Mapping[str, Any], outcome: Outcome) -> bool:
    values = [value for value in case["inputs"]["ctor"].values() if isinstance(value, int | float)]
    return outcome.refused and any(value < 1 or isinstance(value, float) for value in values)


def _plain_list_or_position(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """The answer must be that of a case that TensorFlow takes: the rule itself, by the class that
    the op stands for."""
    inputs = case["inputs"]
    if inputs.get("shape_kind") != "list" and not inputs.get("positional_dtype"):
        return False
    like = {**inputs, "shape_kind": "TensorShape", "positional_dtype": False}
    return outcome.error is None and outcome.value == OPS[case["op"]](like)


def _is_a_protocol(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["op"] == "Partitioner" and isinstance(outcome.error, TypeError)


RULES = [
    Rule("D-PART-1", _has_nothing_to_cut),
    Rule("D-PART-2", _counts_below_one),
    Rule("D-PART-3", _plain_list_or_position),
    Rule("D-PART-4", _is_a_protocol),
]
