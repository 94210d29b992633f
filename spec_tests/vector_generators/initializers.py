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
    shape, parts = [5, 3], [(0, 5), (0, 2), (2, 2), (4, 1)]
    for name, numbers in _DRAWS:
        arguments = {**numbers, "seed": 7}
        ulps = 0 if distribution_of(name, list(numbers.values()), shape)[0] == "uniform" else 4
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
    rule = "R-INIT-6" if name in SCALED else "R-INIT-5" if mode else "R-INIT-4"
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
