"""Deltas: what they make of their base, and which ones must be refused.

The files come from ``spec_tests/golden/native_deltas`` and ``spec_tests/hostile/deltas``, where they
were made by hand. What a result holds comes from NumPy.
"""

import json
from collections.abc import Iterator

from spec_tests.helpers.paths import GOLDEN
from spec_tests.vector_generators.case import Case, Group, numbered
from spec_tests.vector_generators.checkpoints import HOSTILE, files_of, hostile_rows

FILES: dict[str, bytes] = {}


def _golden_cases() -> Iterator[Case]:
    for directory in sorted((GOLDEN / "native_deltas").iterdir()):
        told = json.loads((directory / "expected.json").read_text(encoding="utf-8"))
        target = f"checkpoints/delta_{directory.name}"
        FILES.update({f"{target}/{name}": octets for name, octets in files_of(directory).items()})

        def of(
            *deltas: str, target: str = target, base: str = told["base"]
        ) -> dict[str, str | list[str]]:
            form = "npz" if base.endswith(".npz") else "shardvar"
            paths = [f"{target}/{each}" for each in deltas]
            return {"format": form, "path": f"{target}/{base}", "deltas": paths}

        expected = {"tensors": told["tensors"]}
        inputs = of(*told["deltas"])
        yield Case(directory.name, "V-DELTA-1", "apply_delta", inputs, told["how"], expected)
        if directory.name == "chain":
            for name, deltas, bug in (
                ("order", ["d2", "d1", "d3"], "Deltas in another order are applied as they come."),
                ("gap", ["d1", "d3"], "A delta of a chain is missing."),
                ("begin", ["d2", "d3"], "A chain that begins with the second delta."),
            ):
                inputs = of(*deltas)
                yield Case(
                    f"chain_{name}", "V-DELTA-2", "apply_delta", inputs, bug, error="ArgumentError"
                )


def _hostile_cases() -> Iterator[Case]:
    usual: dict[str, bytes] = {}
    for name, error, bug in hostile_rows("deltas/"):
        files = files_of(HOSTILE / "deltas" / name)
        base = {path: octets for path, octets in files.items() if path.startswith("base.")}
        usual = usual or base
        # Most of them have one base.
        target = f"checkpoints/hostile_delta_{name}"
        place = "checkpoints/hostile_delta_base" if base == usual else target
        FILES.update({f"{place}/{path}": octets for path, octets in base.items()})
        delta = {path: octets for path, octets in files.items() if path not in base}
        FILES.update({f"{target}/{path}": octets for path, octets in delta.items()})
        inputs = {"format": "shardvar", "path": f"{place}/base", "deltas": [f"{target}/d"]}
        yield Case(f"hostile_{name}", "V-DELTA-2", "apply_delta", inputs, bug, error=error)


_CASES = numbered([*_golden_cases(), *_hostile_cases()])

GROUP = Group(
    "deltas",
    "Bases and deltas, with what the deltas make of the base, and deltas that must be refused.",
    "The files were made by hand from docs/delta.md. NumPy made the tensors of the results.",
    _CASES,
    FILES,
)
