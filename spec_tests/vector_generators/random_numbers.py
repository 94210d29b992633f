"""Words and values of the random streams."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 by its name then
import numpy as np

from shardvar.spec import initial_values as draws
from shardvar.spec.random_words import indexed_word, philox, tensorflow_words
from spec_tests.vector_generators.case import Case, Group, maker, numbered
from spec_tests.vector_generators.encoding import array, integers

_SEEDS = [[7, 0], [0, 0], [-1, 2**63 - 1], [2**40 + 3, -(2**63)]]
_ULPS = 4
_ZERO_FIRST = 1_056_968
"""A seed of which the first word ends in 23 zeros."""


def _word_cases() -> Iterator[Case]:
    zero, ones = [0] * 4, [0xFFFFFFFF] * 4
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    case = maker("philox4x32", "V-RANDOM-1", "philox32-")
    bug = "A word is out of its place, a round is missing, or products pass through a float64."
    for number, (counter, key) in enumerate(
        [(zero, [0, 0]), (ones, ones[:2]), (pi, [0xA4093822, 0x299F31D0])]
    ):
        yield case(number, {"counter": counter, "key": key}, bug, philox(counter, key, 32))
    case = maker("indexed_words", "V-RANDOM-1", "philox64-")
    bug = "The counter begins at 0 in place of 1, or 64-bit products lose their low bits."
    for number, (seed, start) in enumerate([(0, 0), (7, 2), (2**64 - 1, 5), (2**53 + 1, 0)]):
        inputs = {"seed": integers(seed), "start": start, "count": 6}
        yield case(
            number, inputs, bug, [str(indexed_word(seed, n)) for n in range(start, start + 6)]
        )
    case = maker("stateless_words", "V-RANDOM-2", "tensorflow-words-")
    bug = "The seed is used as it is, without the scramble, or blocks are counted in 32 bits."
    for number, seed in enumerate(_SEEDS):
        words = [*islice(tensorflow_words(seed), 9)]
        yield case(number, {"seed": integers(seed), "count": 9}, bug, words)
    of_bits = maker("jax_bits", "V-RANDOM-4", "jax-bits-")
    of_reals = maker("jax_uniform", "V-RANDOM-4", "jax-uniform-")
    for seed in (0, 7, 2**32 + 7):
        inputs = {"seed": integers(seed), "count": 5}
        bug = "Elements are made in pairs (the older stream), so that a prefix depends on the size."
        yield of_bits(seed, inputs, bug, draws.jax_bits(5, seed))
        bug = "The low bits are taken, where JAX takes the high ones."
        yield of_reals(seed, inputs, bug, array(draws.jax_uniform(5, seed), "float32"))


def _case(
    name: str, rule: str, op: str, values: list[Any], shape: list[int], bug: str, ulps: int, inputs: Any
) -> Case:  # fmt: skip
    expected = array(np.array(values, np.dtype(inputs["dtype"])).reshape(shape))
    return Case(name, rule, op, inputs, bug, expected, ulps=ulps)


_KINDS: list[tuple[str, str, Sequence[str], int, dict[str, Any], int, str]] = [
    ("uniform", "stateless_uniform", ("float32", "float64", "float16", "bfloat16"), 6,
     {"minval": -2.0, "maxval": 3.0}, 0,
     "The high bits of a word are taken for the fraction, or limits are rounded after the product."),
    ("integers", "stateless_uniform", ("int32", "int64"), 5, {"minval": -7, "maxval": 12}, 0,
     "The high word comes first, or the modulo of a signed number is negative."),
    ("full", "stateless_full_range", ("int32", "int64"), 3, {}, 0,
     "The full range loses its sign or its top bit."),
    ("normal", "stateless_normal", ("float32", "float64"), 7, {"mean": 0.0, "stddev": 1.5}, _ULPS,
     "The cosine comes first, or the last of an odd number is drawn anew."),
    ("truncated", "stateless_truncated_normal", ("float32", "float64"), 9,
     {"mean": 0.0, "stddev": 1.5}, _ULPS,
     "What is too large is clipped, or groups share a stretch of the stream."),
]  # fmt: skip
"""Name, operation, dtypes, number of values, limits, units in the last place, and the mistake."""


def _stateless_cases() -> Iterator[Case]:
    for number, seed in enumerate(_SEEDS):
        for group in (_KINDS[:1], _KINDS[1:3], _KINDS[3:]):
            for dtype in group[0][2]:
                for name, op, _, count, limits, ulps, bug in group:
                    values = _drawn(name, range(count), seed, [*limits.values()], dtype)
                    shape = [2, 3] if name == "uniform" else [count]
                    inputs = {"shape": shape, "seed": seed, **limits, "dtype": dtype}
                    inputs["seed"] = integers(seed)
                    case = f"{name}-{dtype}-{number}"
                    yield _case(case, "V-RANDOM-2", op, values, shape, bug, ulps, inputs)


def _drawn(name: str, where: range, seed: list[int], limits: list[Any], dtype: str) -> list[Any]:
    if name == "full":
        return draws.tensorflow_full_range(len(where), seed, dtype)
    kind = "uniform" if name == "integers" else name
    return draws.TENSORFLOW[kind](where, seed, *limits, dtype)


def _edge_cases() -> Iterator[Case]:
    """Yield draws that occur once in millions: a zero under the logarithm, and sums that round to
    the limit."""
    seed = [_ZERO_FIRST, 0]
    inputs: dict[str, Any] = {"shape": [4], "seed": seed, "mean": 0.0, "stddev": 1.0}
    inputs["dtype"] = "float32"
    values = draws.tensorflow_normal(range(4), seed, 0.0, 1.0, "float32")
    bug = (
        "The logarithm of 0 is taken, and the value is infinite or NaN; or the floor is another "
        "than 1e-7."
    )
    yield _case("normal-of-zero", "V-RANDOM-2", "stateless_normal", values, [4], bug, _ULPS, inputs)
    next_to_one, region = 1 + 2**-23, {"offset": [0], "shape": [8]}
    inputs = {"shape": [8], "seed": 7, "minval": 1.0, "maxval": next_to_one, "dtype": "float32"}
    inputs["region"] = region
    values = draws.indexed_uniform(range(8), 7, 1.0, next_to_one, "float32")
    bug = "The sum rounds to the upper limit, which is not in the range."
    name = "indexed-uniform-limit"
    yield _case(name, "V-RANDOM-3", "indexed_uniform", values, [8], bug, 0, inputs)


_INDEXED: list[tuple[str, Sequence[str], int, dict[str, Any], int, str]] = [
    ("uniform", ("float32", "float64", "float16", "bfloat16", "int32", "int64"), 7,
     {"minval": -1, "maxval": 3}, 0,
     "A part begins the stream anew, or its elements count from the part's corner."),
    ("normal", ("float32", "float64"), 11, {"mean": 0.0, "stddev": 2.0}, _ULPS,
     "A part that begins with the second of a pair draws another pair."),
    ("truncated_normal", ("float32", "float64"), 11, {"mean": 0.0, "stddev": 2.0}, _ULPS,
     "A part that begins with the second of a pair draws another pair."),
]  # fmt: skip
"""Name, dtypes, seed, limits, units in the last place, and the mistake."""


def _indexed_cases() -> Iterator[Case]:
    parts = [
        ("whole", [0, 0], [4, 3]),
        ("middle", [1, 0], [2, 3]),
        ("column", [0, 2], [4, 1]),
        ("none", [2, 0], [0, 3]),
    ]
    for part, offset, shape in parts:
        region = {"offset": offset, "shape": shape}
        indices = draws.flat_indices([4, 3], (offset, shape))
        for group in (_INDEXED[:1], _INDEXED[1:]):
            for dtype in group[0][1]:
                for kind, _, seed, limits, ulps, bug in group:
                    draw = draws.INDEXED[kind.partition("_")[0]]
                    values = draw(indices, seed, *limits.values(), dtype)
                    inputs = {"shape": [4, 3], "seed": seed, **limits, "dtype": dtype}
                    inputs["region"] = region
                    name, op = f"indexed-{kind}-{dtype}-{part}", f"indexed_{kind}"
                    yield _case(name, "V-RANDOM-3", op, values, shape, bug, ulps, inputs)


GROUP = Group(
    "random_numbers",
    "Random words and values, as docs/random.md has them: every one a function of a seed.",
    "Generators in plain integers; logarithm, sine and cosine with fifty digits. Normal values "
    "carry ulps, since "
    "libraries round these functions differently.",
    numbered([*_word_cases(), *_stateless_cases(), *_edge_cases(), *_indexed_cases()]),
)
