"""Initial values of the parts of a variable, in both modes of seeds."""

from collections.abc import Iterator, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from spec_tests.vector_generators import draws
from spec_tests.vector_generators.case import Case, Group, numbered
from spec_tests.vector_generators.encoding import array

_TRUNCATED = 0.87962566103423978
"""The standard deviation of a normal distribution truncated at 2."""

_LAWS: dict[str, tuple[float, str, str]] = {
    "GlorotUniform": (1.0, "fan_avg", "uniform"),
    "GlorotNormal": (1.0, "fan_avg", "truncated"),
    "HeUniform": (2.0, "fan_in", "uniform"),
    "LecunNormal": (1.0, "fan_in", "truncated"),
}
"""Scale, fan and distribution."""

_TENSORFLOW = {
    "uniform": draws.tensorflow_uniform,
    "normal": draws.tensorflow_normal,
    "truncated": draws.tensorflow_truncated,
}
_INDEXED = {
    "uniform": draws.indexed_uniform,
    "normal": draws.indexed_normal,
    "truncated": draws.indexed_truncated,
}


def law(name: str, arguments: dict[str, Any], shape: Sequence[int]) -> tuple[str, float, float]:
    """The distribution, and its two numbers."""
    if name == "RandomUniform":
        return "uniform", arguments["minval"], arguments["maxval"]
    if name in ("RandomNormal", "TruncatedNormal"):
        return (
            "normal" if name == "RandomNormal" else "truncated",
            arguments["mean"],
            arguments["stddev"],
        )
    scale, mode, distribution = _LAWS[name]
    receptive = prod(shape[:-2])
    fans = (
        (shape[-2] * receptive, shape[-1] * receptive)
        if len(shape) > 1
        else (prod(shape), prod(shape))
    )
    variance = scale / max(1.0, fans[0] if mode == "fan_in" else (fans[0] + fans[1]) / 2)
    if distribution == "uniform":
        return "uniform", -sqrt(3 * variance), sqrt(3 * variance)
    return "truncated", 0.0, sqrt(variance) / _TRUNCATED


def part(
    mode: str,
    name: str,
    arguments: dict[str, Any],
    shape: list[int],
    start: int,
    rows: int,
    dtype: str,
) -> Any:
    """Rows ``start`` to ``start + rows`` of the variable."""
    distribution, first, second = law(name, arguments, shape)
    row, seed = prod(shape[1:]), arguments["seed"]
    if mode == "global":
        values = _INDEXED[distribution](
            range(start * row, (start + rows) * row), seed, first, second, dtype
        )
    else:
        values = _TENSORFLOW[distribution](rows * row, [seed + start, 0], first, second, dtype)
    return np.array(values, draws.FLOAT[dtype]).reshape(rows, *shape[1:])


_DRAWS: list[tuple[str, dict[str, Any]]] = [
    ("RandomUniform", {"minval": -0.5, "maxval": 0.25}),
    ("RandomNormal", {"mean": 0.0, "stddev": 0.5}),
    ("TruncatedNormal", {"mean": 0.0, "stddev": 0.5}),
    *((name, {}) for name in _LAWS),
]


def _cases() -> Iterator[Case]:
    shape, parts = [5, 3], [(0, 5), (0, 2), (2, 2), (4, 1)]
    for name, numbers in _DRAWS:
        arguments = {**numbers, "seed": 7}
        ulps = 0 if law(name, arguments, shape)[0] == "uniform" else 4
        for mode in ("rfc", "global"):
            for start, rows in parts:
                expected = array(part(mode, name, arguments, shape, start, rows, "float32"))
                yield _case(name, mode, arguments, shape, (start, rows), "float32", expected, ulps)
    for dtype in ("float64", "float16", "bfloat16"):
        expected = array(
            part("global", "RandomUniform", {**_DRAWS[0][1], "seed": 3}, shape, 1, 3, dtype)
        )
        yield _case(
            "RandomUniform",
            "global",
            {**_DRAWS[0][1], "seed": 3},
            shape,
            (1, 3),
            dtype,
            expected,
            0,
        )
    for name, value in (("Zeros", 0.0), ("Ones", 1.0), ("Constant", 2.5)):
        arguments = {"value": value} if name == "Constant" else {}
        expected = array(np.full((2, 3), value, np.float32))
        bug = "The part has the shape of the whole, or the initializer refuses a partition."
        yield _case(name, None, arguments, shape, (2, 2), "float32", expected, 0, bug)


def _case(
    name: str, mode: str | None, arguments: dict[str, Any], shape: list[int], rows: tuple[int, int], dtype: str,
    expected: Any, ulps: int, bug: str = "",
) -> Case:  # fmt: skip
    start, count = rows
    region = {"offset": [start, 0], "shape": [count, *shape[1:]]}
    inputs = {
        "initializer": name,
        "arguments": arguments,
        "seed_mode": mode,
        "shape": shape,
        "dtype": dtype,
    }
    inputs["region"] = region
    if mode == "rfc":
        bug = (
            bug
            or "Every shard is drawn from the same seed, and holds the same values, as in "
            "TensorFlow."
        )
    bug = bug or "The fans are those of the part, or the stream begins anew in each part."
    rule = "R-INIT-6" if name in _LAWS else "R-INIT-5" if mode else "R-INIT-4"
    kind = mode or "constant"
    case = f"{name}-{kind}-{dtype}-{start}-{count}"
    return Case(case, rule, "initialize", inputs, bug, expected, ulps=ulps)


GROUP = Group(
    "initializers",
    "Initial values of a part of a variable: `rfc` seeds add the part's first row, `global` ones "
    "draw by index.",
    "The streams of random_numbers, and the laws of variance written out.",
    numbered(_cases()),
)
