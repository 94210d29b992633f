"""Initial values of TensorFlow's initializers, called part by part as its parameter server strategy
calls them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardvar.layout.partition import Partition
from shardvar.layout.region import Region
from shardvar.reference.variables import initializers
from spec_tests.tensorflow_recordings.cases import Outcome, Rule, decode

NAMES = {
    "he_normal": "HeNormal",
    "he_uniform": "HeUniform",
    "lecun_normal": "LecunNormal",
    "lecun_uniform": "LecunUniform",
}
"""TensorFlow's functions of TensorFlow 1's time, and the classes that they are."""

ULP = 4
"""Units in the last place by which drawn values may differ: libraries round logarithms and sines
differently."""


def SUMMAND(inputs: Mapping[str, Any]) -> float:
    """The mean or the lower limit, which is added last."""
    ctor = inputs.get("ctor", {})
    return max(abs(float(ctor.get(name, 0.0))) for name in ("mean", "minval"))


def make(name: str, ctor: Mapping[str, Any]) -> initializers.Initializer:
    """The initializer that a vector names."""
    # Every initializer takes a partition here, so there is no argument that allows it.
    given = {key: value for key, value in ctor.items() if key != "support_partition"}
    made: initializers.Initializer = getattr(initializers, NAMES.get(name, name))(**given)
    return made


def _value(inputs: Mapping[str, Any], name: str, ctor: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    partition = None
    if inputs.get("partition_shape") is not None:
        partition = Region(inputs["partition_offset"], inputs["partition_shape"])
    return make(name, ctor)(inputs["shape"], inputs.get("dtype"), partition)


def _call(name: str) -> Callable[[Mapping[str, Any]], np.ndarray[Any, Any]]:
    return lambda inputs: _value(inputs, name, inputs.get("ctor", {}))


def _facts(inputs: Mapping[str, Any]) -> dict[str, bool]:
    """Return the relations of the shards of one variable, made by separate calls as a creator makes
    them."""
    init, shape = make(inputs["initializer"], inputs["ctor"]), inputs["shape"]
    counts = [inputs["parts"], *(1 for _ in shape[1:])]
    whole, joined = init(shape), init.joined()
    shards = [joined(shape, partition=part) for part in Partition.from_counts(shape, counts)]
    if inputs["initializer"] == "Orthogonal":
        whole = joined(shape)
    rows = min(map(len, shards))
    return {
        "common_prefix_equal": all(
            np.array_equal(shard[:rows], shards[0][:rows]) for shard in shards
        ),
        "concat_equals_unpartitioned": np.array_equal(np.concatenate(shards), whole),
        "shard0_is_prefix_of_full": np.array_equal(shards[0], whole[: len(shards[0])]),
    }


_NAMED = "Zeros Ones Constant RandomUniform RandomNormal TruncatedNormal VarianceScaling Orthogonal Identity".split()
_FANS = "GlorotUniform GlorotNormal HeNormal HeUniform LecunNormal LecunUniform".split()

OPS: dict[str, Callable[[Any], Any]] = {
    **{f"tf.{name}": _call(name) for name in [*_NAMED, *_FANS, *NAMES]},
    **{f"keras3.{name}": _call(name) for name in [*_NAMED, *_FANS]},
    "two_shard_facts": _facts,
}


def _each_shard_has_its_seed(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """The shard is what TensorFlow draws from the seed plus its first row."""
    inputs = case["inputs"]
    if case["op"] == "two_shard_facts":
        wanted = {
            "common_prefix_equal": False,
            "concat_equals_unpartitioned": False,
            "shard0_is_prefix_of_full": True,
        }
        return "seed" in inputs["ctor"] and outcome.value == wanted
    if (
        outcome.error is not None
        or not inputs.get("partition_offset")
        or inputs.get("ctor", {}).get("seed") is None
    ):
        return False
    first_row = inputs["partition_offset"][0]
    ctor = {**inputs["ctor"], "seed": inputs["ctor"]["seed"] + first_row}
    first = {**inputs, "ctor": ctor, "partition_offset": [0 for _ in inputs["shape"]]}
    return first_row > 0 and np.array_equal(outcome.value, OPS[case["op"]](first))


def _takes_a_partition(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """The part has the part's shape, and is the part of the whole where the whole is the same at
    every call."""
    shape = case["inputs"].get("partition_shape")
    if outcome.error is not None or shape is None or "error" not in case:
        return False
    if case["op"].split(".")[1] not in ("Zeros", "Ones", "Constant", "Identity", "Orthogonal"):
        return np.shape(outcome.value) == tuple(shape)
    return _is_the_part(case, outcome)


def _is_the_part(case: Mapping[str, Any], outcome: Outcome) -> bool:
    inputs = case["inputs"]
    part = Region(inputs["partition_offset"], inputs["partition_shape"])
    whole = OPS[case["op"]]({**inputs, "partition_shape": None})
    return outcome.error is None and np.array_equal(outcome.value, whole[part.slices])


def _gives_the_part(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """With `support_partition`, TensorFlow's constants accept a partition and give the whole."""
    inputs = case["inputs"]
    if "support_partition" not in inputs.get("ctor", {}) or inputs.get("partition_shape") is None:
        return False
    return _is_the_part(case, outcome)


def _needs_a_seed(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """A part of an unseeded orthogonal matrix fits no other part."""
    is_orthogonal = (
        case["op"].endswith("Orthogonal") and case["inputs"].get("partition_shape") is not None
    )
    return is_orthogonal and outcome.refused and case["inputs"].get("ctor", {}).get("seed") is None


def _decomposed_by_another_library(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """An orthogonal matrix is made by a QR decomposition, which libraries round differently; right
    is orthogonal."""
    if not case["op"].endswith("Orthogonal") or "expected" not in case or outcome.error is not None:
        return False
    ours, theirs = (
        np.asarray(outcome.value, np.float64),
        decode(case["expected"]).astype(np.float64),
    )
    return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, rtol=1e-5, atol=1e-5))


def _of_any_dtype(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow makes no identity matrix of integers, and no orthogonal one of bfloat16."""
    inputs = case["inputs"]
    if "error" not in case or outcome.error is not None:
        return False
    if case["op"].endswith("Orthogonal"):
        wide = OPS[case["op"]]({**inputs, "dtype": "float32"})
        return inputs["dtype"] == "bfloat16" and np.array_equal(
            outcome.value, wide.astype(outcome.value.dtype)
        )
    if not case["op"].endswith("Identity"):
        return False
    part = Region(
        inputs.get("partition_offset") or (0, 0), inputs.get("partition_shape") or inputs["shape"]
    )
    whole = np.eye(*inputs["shape"]) * inputs.get("ctor", {}).get("gain", 1)
    return np.array_equal(outcome.value, whole[part.slices].astype(outcome.value.dtype))


RULES = [
    Rule("D-INIT-1", _each_shard_has_its_seed),
    Rule("D-INIT-2", _takes_a_partition),
    Rule("D-INIT-3", _needs_a_seed),
    Rule("D-INIT-4", _of_any_dtype),
    Rule("D-INIT-5", _decomposed_by_another_library),
    Rule("D-INIT-6", _gives_the_part),
]
