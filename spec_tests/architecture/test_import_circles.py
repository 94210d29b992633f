"""No modules import each other in a circle, not even inside one layer; and a lazy import makes
start-up shorter.

`test_architecture` holds the order of the layers. Inside a layer an import under `TYPE_CHECKING` or
in a function may hide a circle of files, so here each counts as any other. With no circle left, an
import inside a function can have one reason only, a shorter start, which a test here holds. Ruff's
PLC0415 cannot tell the two reasons apart and is off.
"""

import ast
from collections.abc import Iterator, Mapping

import pytest

from spec_tests.helpers.source_code import (
    MODULES,
    imports,
    imports_of,
    module_name,
    package_of,
    reached,
    submodules,
    tree_of,
)

Graph = Mapping[str, set[str]]


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of two nodes or more that all reach each other.

    >>> circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})
    [['b', 'c']]
    """
    reach = {node: reached(node, graph) for node in graph}
    groups = {frozenset(other for other in reach[node] if node in reach[other]) for node in graph}
    return sorted(sorted(group) for group in groups if group)


def import_graph() -> Graph:
    """Return what each module imports of the package; the face, which imports lazily by name, is
    left out."""
    names = submodules() - {"shardvar"}
    graph = {
        module_name(path): {target for _, target in imports_of(path)} & names for path in MODULES
    }
    return {name: targets - {name} for name, targets in graph.items() if name in names}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(import_graph()) == []


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported; those under `TYPE_CHECKING` do
    not."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for inner in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from statements(getattr(node, inner, []))


def start_up_graph() -> Graph:
    """Return what importing a module imports at once, its packages included."""
    names = submodules()
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        name = module_name(path)
        nodes: list[ast.stmt] = [
            node
            for node in statements(tree_of(path).body)
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        targets = {target for _, target in imports(ast.Module(nodes, []), package_of(path))} & names
        above = {".".join(name.split(".")[:size]) for size in range(2, name.count(".") + 1)}
        graph[name] = (targets | above) - {name, "shardvar"}
    return graph


def test_an_import_inside_a_function_makes_the_start_shorter() -> None:
    """The importing module has not imported it by then."""
    graph = start_up_graph()
    found = set()
    for path in MODULES:
        name = module_name(path)
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                targets = {target for _, target in imports(node, package_of(path))}
                lazy = targets & submodules() - {"shardvar"}
                strings = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                found |= {
                    f"{name}.{node.name}: {target}"
                    for target in (lazy - strings) & reached(name, graph)
                }
    assert found == set()


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
        (
            {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}},
            [["a", "b", "c"], ["d", "e"]],
        ),
    ],
)
def test_circles_are_found(graph: Graph, expected: list[list[str]]) -> None:
    """The tests above are worth what `circles` finds."""
    assert circles(graph) == expected
