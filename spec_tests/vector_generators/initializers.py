"""Initial values of the parts of a variable, in both modes of seeds."""

from collections.abc import Iterator
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 by its name then
import numpy as np

from shardvar.spec.initial_values import SCALED, distribution_of, initial_value
from spec_tests.vector_generators.case import Case, Group, numbered
from spec_tests.vector_generators.encoding import array


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
    numbers = [value for key, value in arguments.items() if key != "seed"]
    region = [start, *[0] * (len(shape) - 1)], [rows, *shape[1:]]
    return initial_value(
        name, numbers, arguments["seed"], shape, region, dtype, by_index=mode == "global"
    )


_DRAWS: list[tuple[str, dict[str, Any]]] = [
    ("RandomUniform", {"minval": -0.5, "maxval": 0.25}),
    ("RandomNormal", {"mean": 0.0, "stddev": 0.5}),
    ("TruncatedNormal", {"mean": 0.0, "stddev": 0.5}),
    *((name, {}) for name in SCALED),
]


def _cases() -> Iterator[Case]:
    parts, uniform = [(0, 5), (0, 2), (2, 2), (4, 1)], {**_DRAWS[0][1], "seed": 3}
    for name, numbers in _DRAWS:
        arguments = {**numbers, "seed": 7}
        for mode in ("rfc", "global"):
            for rows in parts:
                yield _drawn(name, mode, arguments, rows, "float32")
    for dtype in ("float64", "float16", "bfloat16"):
        yield _drawn("RandomUniform", "global", uniform, (1, 3), dtype)
    bug = "The part has the shape of the whole, or the initializer refuses a partition."
    for name, value in (("Zeros", 0.0), ("Ones", 1.0), ("Constant", 2.5)):
        arguments = {"value": value} if name == "Constant" else {}
        expected = array(np.full((2, 3), value, np.float32))
        yield _case(name, None, arguments, (2, 2), "float32", expected, bug)


_SHAPE = [5, 3]


def _drawn(
    name: str, mode: str, arguments: dict[str, Any], rows: tuple[int, int], dtype: str
) -> Case:
    numbers = [value for key, value in arguments.items() if key != "seed"]
    ulps = 0 if distribution_of(name, numbers, _SHAPE)[0] == "uniform" else 4
    expected = array(part(mode, name, arguments, _SHAPE, *rows, dtype))
    bug = "The fans are those of the part, or the stream begins anew in each part."
    if mode == "rfc":
        bug = (
            "Every shard is drawn from the same seed, and holds the same values, as in TensorFlow."
        )
    return _case(name, mode, arguments, rows, dtype, expected, bug, ulps)


def _case(
    name: str, mode: str | None, arguments: dict[str, Any], rows: tuple[int, int], dtype: str,
    expected: Any, bug: str, ulps: int = 0,
) -> Case:  # fmt: skip
    start, count = rows
    inputs = {"initializer": name, "arguments": arguments, "seed_mode": mode, "shape": _SHAPE}
    inputs |= {"dtype": dtype, "region": {"offset": [start, 0], "shape": [count, *_SHAPE[1:]]}}
    rule = "R-INIT-6" if name in SCALED else "R-INIT-5" if mode else "R-INIT-4"
    case = f"{name}-{mode or 'constant'}-{dtype}-{start}-{count}"
    return Case(case, rule, "initialize", inputs, bug, expected, ulps=ulps)


GROUP = Group(
    "initializers",
    "Initial values of a part of a variable: `rfc` seeds add the part's first row, `global` ones "
    "draw by index.",
    "The streams of random_numbers, and the laws of variance written out.",
    numbered(_cases()),
)
