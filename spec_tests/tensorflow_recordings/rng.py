"""Random numbers of TensorFlow's stateless functions and of JAX, from their seeds."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardvar import random
from shardvar.reference.random.stateless import PhiloxStream
from spec_tests.tensorflow_recordings.cases import Rule

ULP = 4
"""Units in the last place by which normal values may differ: libraries round logarithms and sines
differently."""


def SUMMAND(inputs: Mapping[str, Any]) -> float:
    """The mean, which is added to what was drawn: its rounding stays where the sum is small."""
    return abs(float(inputs.get("mean", 0.0)))


Inputs = Mapping[str, Any]


def _seed(inputs: Inputs) -> np.ndarray[Any, Any]:
    return np.array(inputs["seed"], inputs.get("seed_dtype", "int64"))


def _key_counter(inputs: Inputs) -> Any:
    stream = PhiloxStream.of(_seed(inputs))
    counter = [stream.counter >> 32 * word & 0xFFFFFFFF for word in range(4)]
    return {"key_words": list(stream.key), "counter_words": counter}


def _uniform(inputs: Inputs) -> Any:
    limits = inputs.get("minval", 0), inputs.get("maxval", None if "minval" in inputs else 1)
    return random.stateless_uniform(
        inputs["shape"], _seed(inputs), *limits, inputs.get("dtype", "float32")
    )


def _normal(draw: Callable[..., Any]) -> Callable[[Inputs], Any]:
    def op(inputs: Inputs) -> Any:
        moments = inputs.get("mean", 0.0), inputs.get("stddev", 1.0)
        return draw(inputs["shape"], _seed(inputs), *moments, inputs.get("dtype", "float32"))

    return op


def _jax_uniform(inputs: Inputs) -> Any:
    limits = inputs.get("minval", 0.0), inputs.get("maxval", 1.0)
    return random.jax_uniform(
        _key(inputs), inputs["shape"], inputs.get("dtype", "float32"), *limits
    )


def _jax_uniform_prefix(inputs: Inputs) -> bool:
    small, large = (
        random.jax_uniform(_key(inputs), inputs[f"shape_{size}"]) for size in ("small", "large")
    )
    return np.array_equal(large.ravel()[: small.size], small.ravel())


def _key(inputs: Inputs) -> Any:
    return inputs.get("key") or random.jax_key(inputs["seed"])


OPS: dict[str, Callable[[Any], Any]] = {
    "key_counter": _key_counter,
    "uint32_words": lambda inputs: PhiloxStream.of(_seed(inputs)).words(0, inputs["n"]).tolist(),
    "uniform": _uniform,
    "full_range": lambda inputs: _uniform({**inputs, "minval": None, "maxval": None}),
    "float16_uniform": _uniform,
    "bfloat16_uniform": _uniform,
    "uniform_big_tail": lambda inputs: _uniform(inputs).ravel()[-inputs["last"] :],
    "normal": _normal(random.stateless_normal),
    "truncated_normal": _normal(random.stateless_truncated_normal),
    "split": lambda inputs: random.split(_seed(inputs), inputs["num"]),
    "fold_in": lambda inputs: random.fold_in(_seed(inputs), inputs["data"]),
    "jax_bits": lambda inputs: random.jax_bits(_key(inputs), inputs["shape"]).tolist(),
    "jax_uniform": _jax_uniform,
    "jax_uniform_prefix": _jax_uniform_prefix,
}

RULES: list[Rule] = []
