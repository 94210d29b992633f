"""Which tests notice which mutants of a layer: what a test adds to the others.

``record`` keeps the whole matrix in ``build/mutation``, and its sums in ``matrix.json``: how many
mutants the functions of each file notice, and which functions are the only ones to notice one. A
parametrized test is one function.

``show`` lists spare functions. A function is spare if the others that stay notice every mutant that
it notices and execute every line that it executes, and if it holds no rule and names no page.
A sample does not see everything: whether a spare test says something that no other says is for a
reader to decide. A test that runs programs executes no line here, and is never listed.
"""

import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from spec_tests.helpers.paths import ROOT, SPEC_TESTS
from spec_tests.mutation.sample import Mutant
from spec_tests.mutation.trace import RECORDS, Trace
from spec_tests.rules import mentions

_HOLDS = re.compile(r"R-[A-Z]+-\d|\bRFC\b|\.md\b|\"[^\"]{12,}\"|\bdocs/")
TABLE = SPEC_TESTS / "mutation" / "matrix.json"


class _Function(NamedTuple):
    """A test function as its text shows it; of two the lesser one is deleted before the other."""

    holds: bool
    """It names a rule of the RFCs, a page of the docs, or quotes a sentence."""
    kind: int
    """2: a property, 1: a table, 0: one example."""
    lines: int
    """Its lines, with decorators."""


@cache
def _functions(file: str) -> Mapping[str, _Function]:
    path = ROOT / file
    rules = {one.name for one in mentions.mentions_of(path)}
    return {
        f"{file}::{node.name}": _Function(
            node.name in rules or bool(_HOLDS.search(ast.get_docstring(node) or "")),
            _kind(node),
            (node.end_lineno or 0) - _first(node) + 1,
        )
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def _first(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _kind(node: ast.FunctionDef) -> int:
    marks = " ".join(ast.unparse(each) for each in node.decorator_list)
    return 2 if "given(" in marks else 1 if "parametrize" in marks else 0


def function_of(test: str) -> str:
    """Return the function of a test: its id without the parameters and without how it ended.

    >>> function_of("spec_tests/wire/test_crc.py::test_a[1 (hangs)]"), function_of("a::b (hangs)")
    ('spec_tests/wire/test_crc.py::test_a', 'a::b')
    """
    return test.partition("[")[0].partition(" (")[0]


def record(
    layer: str, seed: int, commit: str, trace: Trace, found: Sequence[tuple[Mutant, list[str]]]
) -> None:
    """Keep the matrix of a layer, and its sums in the table."""
    seconds: Counter[str] = Counter()
    for test, each in trace.seconds.items():
        seconds[function_of(test)] += each  # type: ignore[assignment]
    rows = [
        {
            "place": mutant.place,
            "change": mutant.difference(),
            "functions": sorted({function_of(test) for test in tests}),
        }
        for mutant, tests in found
    ]
    noticed = [row["functions"] for row in rows if row["functions"]]
    spare = spare_functions(noticed, _executed(trace), seconds)
    whole = {"seconds": seconds, "rows": rows, "spare": spare}
    _whole(layer).write_text(json.dumps(whole, indent=1), encoding="utf-8")
    alone = Counter(functions[0] for functions in noticed if len(functions) == 1)
    by_file: dict[str, int] = Counter(
        file for functions in noticed for file in {one.partition("::")[0] for one in functions}
    )
    table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    table[layer] = {
        "seed": seed,
        "commit": commit,
        "mutants": len(rows),
        "noticed": len(noticed),
        "alone": dict(sorted(alone.items())),
        "files": dict(sorted(by_file.items())),
    }
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _whole(layer: str) -> Any:
    return RECORDS / f"matrix-{layer}.json"


def _executed(trace: Trace) -> list[set[str]]:
    """Return the functions that execute each line, where any does in a test."""
    lines = (tests for by_line in trace.lines.values() for tests in by_line.values() if tests)
    found = {frozenset(map(function_of, tests)) for tests in lines}
    return [set(functions) for functions in found]


def spare_functions(
    noticed: Iterable[Iterable[str]],
    executed: Iterable[Iterable[str]],
    seconds: Mapping[str, float],
) -> list[str]:
    """Return functions without which the others still notice every mutant and execute every line."""
    groups = [set(functions) for functions in (*noticed, *executed)]
    of_function: dict[str, list[set[str]]] = defaultdict(list)
    for group in groups:
        for function in group:
            of_function[function].append(group)
    texts: dict[str, _Function] = {}
    for file in sorted({name.partition("::")[0] for name in seconds}):
        texts |= _functions(file)
    candidates = [name for name, text in texts.items() if not text.holds and name in of_function]
    spare = []
    for name in sorted(candidates, key=lambda one: (texts[one].kind, -texts[one].lines, one)):
        if all(len(group) > 1 for group in of_function[name]):
            spare.append(name)
            for group in of_function[name]:
                group.discard(name)
    return spare


def show(layer: str) -> Iterator[str]:
    """Yield the lines that show the matrix of a layer: survivors, sums, and what is spare."""
    whole = json.loads(_whole(layer).read_text(encoding="utf-8"))
    rows, seconds = whole["rows"], whole["seconds"]
    noticed = [row["functions"] for row in rows if row["functions"]]
    yield f"{layer}: {len(noticed)} of {len(rows)} mutants noticed"
    for row in rows:
        if not row["functions"]:
            yield "  survives {}\n    - {}\n    + {}".format(row["place"], *row["change"])
    counts = Counter(one for functions in noticed for one in functions)
    by_file: dict[str, list[str]] = defaultdict(list)
    for name in whole["spare"]:
        by_file[name.partition("::")[0]].append(name)
    for file, names in sorted(by_file.items()):
        functions = _functions(file)
        yield f"  {file}: {len(names)} spare of {len(functions)}"
        for name in sorted(names):
            text = functions[name]
            yield (
                f"    {text.lines:3} lines {seconds[name]:6.1f} s {counts[name]:3} noticed  "
                f"{('one example', 'table', 'property')[text.kind]}  {name.partition('::')[2]}"
            )
