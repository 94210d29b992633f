"""Words and values of the random streams."""

from collections.abc import Iterator
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 by its name then
import numpy as np

from shardvar.spec import initial_values as draws
from shardvar.spec.random_words import indexed_word, philox, tensorflow_words
from spec_tests.vector_generators.case import Case, Group, numbered
from spec_tests.vector_generators.encoding import array, integers

_SEEDS = [[7, 0], [0, 0], [-1, 2**63 - 1], [2**40 + 3, -(2**63)]]
_ULPS = 4
_ZERO_FIRST = 1_056_968
"""A seed of which the first word ends in 23 zeros."""


def _word_cases() -> Iterator[Case]:
    zero, ones = [0] * 4, [0xFFFFFFFF] * 4
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    for number, (counter, key) in enumerate(
        [(zero, [0, 0]), (ones, ones[:2]), (pi, [0xA4093822, 0x299F31D0])]
    ):
        inputs = {"counter": counter, "key": key}
        bug = "A word is out of its place, a round is missing, or products pass through a float64."
        yield Case(
            f"philox32-{number}", "V-RANDOM-1", "philox4x32", inputs, bug, philox(counter, key, 32)
        )
    for number, (seed, start) in enumerate([(0, 0), (7, 2), (2**64 - 1, 5), (2**53 + 1, 0)]):
        inputs = {"seed": integers(seed), "start": start, "count": 6}
        bug = "The counter begins at 0 in place of 1, or 64-bit products lose their low bits."
        expected = [str(indexed_word(seed, number)) for number in range(start, start + 6)]
        yield Case(f"philox64-{number}", "V-RANDOM-1", "indexed_words", inputs, bug, expected)
    for number, seed in enumerate(_SEEDS):
        words = tensorflow_words(seed)
        inputs = {"seed": integers(seed), "count": 9}
        bug = "The seed is used as it is, without the scramble, or blocks are counted in 32 bits."
        expected = [next(words) for _ in range(9)]
        yield Case(
            f"tensorflow-words-{number}", "V-RANDOM-2", "stateless_words", inputs, bug, expected
        )
    for seed in (0, 7, 2**32 + 7):
        inputs = {"seed": integers(seed), "count": 5}
        bits = draws.jax_bits(5, seed)
        bug = "Elements are made in pairs (the older stream), so that a prefix depends on the size."
        yield Case(f"jax-bits-{seed}", "V-RANDOM-4", "jax_bits", inputs, bug, bits)
        expected = array(draws.jax_uniform(5, seed), "float32")
        bug = "The low bits are taken, where JAX takes the high ones."
        yield Case(f"jax-uniform-{seed}", "V-RANDOM-4", "jax_uniform", inputs, bug, expected)


def _stateless_cases() -> Iterator[Case]:
    def case(
        name: str,
        op: str,
        values: list[Any],
        shape: list[int],
        bug: str,
        ulps: int = 0,
        **more: Any,
    ) -> Case:
        inputs = {"shape": shape, **more, "seed": integers(more["seed"])}
        expected = array(_shaped(values, shape, more["dtype"]))
        return Case(name, "V-RANDOM-2", op, inputs, bug, expected, ulps=ulps)

    for number, seed in enumerate(_SEEDS):
        for dtype in ("float32", "float64", "float16", "bfloat16"):
            values = draws.tensorflow_uniform(range(6), seed, -2.0, 3.0, dtype)
            bug = (
                "The high bits of a word are taken for the fraction, or limits are rounded after "
                "the product."
            )
            more: dict[str, Any] = {"seed": seed, "minval": -2.0, "maxval": 3.0, "dtype": dtype}
            yield case(
                f"uniform-{dtype}-{number}", "stateless_uniform", values, [2, 3], bug, **more
            )
        for dtype in ("int32", "int64"):
            values = draws.tensorflow_uniform(range(5), seed, -7, 12, dtype)
            bug = "The high word comes first, or the modulo of a signed number is negative."
            more = {"seed": seed, "minval": -7, "maxval": 12, "dtype": dtype}
            yield case(f"integers-{dtype}-{number}", "stateless_uniform", values, [5], bug, **more)
            values = draws.tensorflow_full_range(3, seed, dtype)
            more = {"seed": seed, "dtype": dtype}
            bug = "The full range loses its sign or its top bit."
            yield case(f"full-{dtype}-{number}", "stateless_full_range", values, [3], bug, **more)
        for dtype in ("float32", "float64"):
            more = {"seed": seed, "mean": 0.0, "stddev": 1.5, "dtype": dtype}
            values = draws.tensorflow_normal(range(7), seed, 0.0, 1.5, dtype)
            bug = "The cosine comes first, or the last of an odd number is drawn anew."
            yield case(
                f"normal-{dtype}-{number}", "stateless_normal", values, [7], bug, _ULPS, **more
            )
            values = draws.tensorflow_truncated(range(9), seed, 0.0, 1.5, dtype)
            bug = "What is too large is clipped, or groups share a stretch of the stream."
            yield case(
                f"truncated-{dtype}-{number}",
                "stateless_truncated_normal",
                values,
                [9],
                bug,
                _ULPS,
                **more,
            )


def _edge_cases() -> Iterator[Case]:
    """Yield draws that occur once in millions: a zero under the logarithm, and sums that round to
    the limit."""
    inputs: dict[str, Any] = {
        "shape": [4],
        "seed": [_ZERO_FIRST, 0],
        "mean": 0.0,
        "stddev": 1.0,
        "dtype": "float32",
    }
    expected = array(
        _shaped(
            draws.tensorflow_normal(range(4), [_ZERO_FIRST, 0], 0.0, 1.0, "float32"), [4], "float32"
        )
    )
    bug = (
        "The logarithm of 0 is taken, and the value is infinite or NaN; or the floor is another "
        "than 1e-7."
    )
    yield Case(
        "normal-of-zero", "V-RANDOM-2", "stateless_normal", inputs, bug, expected, ulps=_ULPS
    )
    next_to_one = 1 + 2**-23
    region = {"offset": [0], "shape": [8]}
    inputs = {
        "shape": [8],
        "seed": 7,
        "minval": 1.0,
        "maxval": next_to_one,
        "dtype": "float32",
        "region": region,
    }
    expected = array(
        _shaped(draws.indexed_uniform(range(8), 7, 1.0, next_to_one, "float32"), [8], "float32")
    )
    bug = "The sum rounds to the upper limit, which is not in the range."
    yield Case("indexed-uniform-limit", "V-RANDOM-3", "indexed_uniform", inputs, bug, expected)


def _indexed_cases() -> Iterator[Case]:
    parts = [
        ("whole", [0, 0], [4, 3]),
        ("middle", [1, 0], [2, 3]),
        ("column", [0, 2], [4, 1]),
        ("none", [2, 0], [0, 3]),
    ]
    for name, offset, shape in parts:
        region = {"offset": offset, "shape": shape}
        indices = [
            3 * (offset[0] + i) + offset[1] + j for i in range(shape[0]) for j in range(shape[1])
        ]
        for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64"):
            inputs: dict[str, Any] = {
                "shape": [4, 3],
                "seed": 7,
                "minval": -1,
                "maxval": 3,
                "dtype": dtype,
            }
            values = draws.indexed_uniform(indices, 7, -1, 3, dtype)
            expected = array(_shaped(values, shape, dtype))
            bug = "A part begins the stream anew, or its elements count from the part's corner."
            inputs["region"] = region
            yield Case(
                f"indexed-uniform-{dtype}-{name}",
                "V-RANDOM-3",
                "indexed_uniform",
                inputs,
                bug,
                expected,
            )
        for dtype in ("float32", "float64"):
            for op, draw in (
                ("normal", draws.indexed_normal),
                ("truncated_normal", draws.indexed_truncated),
            ):
                inputs = {
                    "shape": [4, 3],
                    "seed": 11,
                    "mean": 0.0,
                    "stddev": 2.0,
                    "dtype": dtype,
                    "region": region,
                }
                expected = array(_shaped(draw(indices, 11, 0.0, 2.0, dtype), shape, dtype))
                bug = "A part that begins with the second of a pair draws another pair."
                yield Case(
                    f"indexed-{op}-{dtype}-{name}",
                    "V-RANDOM-3",
                    f"indexed_{op}",
                    inputs,
                    bug,
                    expected,
                    ulps=_ULPS,
                )


def _shaped(values: list[Any], shape: list[int], dtype: str) -> Any:
    return np.array(values, np.dtype(dtype)).reshape(shape)


GROUP = Group(
    "random_numbers",
    "Random words and values, as docs/random.md has them: every one a function of a seed.",
    "Generators in plain integers; logarithm, sine and cosine with fifty digits. Normal values "
    "carry ulps, since "
    "libraries round these functions differently.",
    numbered([*_word_cases(), *_stateless_cases(), *_edge_cases(), *_indexed_cases()]),
)
