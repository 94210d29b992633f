"""No private name is dead: each module reads the ones that it defines, or another module imports
them; and something reads each field of a dataclass that is not public.

A tool that goes by name over the whole tree takes a name in one module for the use of the same name in
another one. So each module is asked for itself."""

import ast
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from spec_tests.helpers.source_code import MODULES, bound, exported, module_name, tree_of

Trees = Mapping[str, ast.Module]


def uses_of(tree: ast.AST) -> tuple[Counter[str], Counter[str]]:
    """The names that a tree reads as variables, and as attributes; both may also be in texts."""
    names, attributes = Counter[str](), Counter[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names[node.id] += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            attributes[node.attr] += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # As ``attrgetter`` and annotations name them, and no sentence does.
            if not re.search(r"[.,:;] |[.:]$", node.value):
                names.update(re.findall(r"\w+", node.value))
                attributes.update(re.findall(r"\w+", node.value) if " " not in node.value else ())
        elif isinstance(node, ast.MatchClass):
            attributes.update(node.kwd_attrs)
    return names, attributes


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", "_repr_")) and name != "_"


def is_dataclass(node: ast.ClassDef) -> bool:
    names = {"dataclass", "frozen", "entity", "mutable"}
    nodes = [each for decorator in node.decorator_list for each in ast.walk(decorator)]
    return any(isinstance(each, ast.Name) and each.id in names for each in nodes)


def find_dead(trees: Trees) -> set[str]:
    """Return "module: name" of what nothing reads."""
    uses = {name: uses_of(tree) for name, tree in trees.items()}
    everywhere = sum((attributes for _, attributes in uses.values()), Counter[str]())
    imported = {
        alias.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    classes = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    public, dead = exported(trees.values()), set()  # users read the fields of public classes
    for name, tree in trees.items():
        for each in (each for node in tree.body for each in bound(node)):
            read = uses[name][0][each] + uses[name][1][each]
            if is_private(each) and not read and each not in imported:
                dead.add(f"{name}: {each}")
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            # A class of another library calls what is overridden.
            is_own = all(isinstance(base, ast.Name | ast.Subscript) for base in node.bases) and all(
                getattr(base, "id", "Generic") in {*classes, "Generic", "ABC", "Protocol", "Enum"}
                for base in node.bases
            )
            for each in node.body:
                for attribute in bound(each):
                    is_method = isinstance(each, ast.FunctionDef)
                    # ``partialmethod(_f)`` in a class reads ``_f`` as a name.
                    read = everywhere[attribute] + uses[name][0][attribute]
                    if is_method and is_private(attribute) and is_own and not read:
                        dead.add(f"{name}: {node.name}.{attribute}")
                    if not isinstance(each, ast.AnnAssign) or not is_dataclass(node):
                        continue
                    is_shared = "ClassVar" in ast.dump(each.annotation)
                    if not everywhere[attribute] and node.name not in public and not is_shared:
                        dead.add(f"{name}: {node.name}.{attribute}")
    return dead


def test_nothing_private_is_dead() -> None:
    assert find_dead({module_name(path): tree_of(path) for path in MODULES}) == set()


ALIVE = """
from dataclasses import dataclass
_LIMIT = 3
def _check(n): return n < _LIMIT
@dataclass
class Row:
    key: str
    number: int
    def _text(self): return self.key
def use(row): return _check(row.number) and row._text()
"""


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        (("n < _LIMIT", "n < 3"), "a: _LIMIT"),
        (("_check(row.number)", "row.number"), "a: _check"),
        (("row._text()", "row.key"), "a: Row._text"),
        (("row.number", "3"), "a: Row.number"),
    ],
)
def test_each_kind_of_dead_name_is_found(change: Any, dead: str) -> None:
    """Also if another module has the same name and uses it."""
    other = "def _check(): return 1\n_LIMIT = 3\nprint(_check(), _LIMIT)"
    trees = {"a": ast.parse(ALIVE), "b": ast.parse(other)}
    assert find_dead(trees) == set()
    assert find_dead(trees | {"a": ast.parse(ALIVE.replace(*change))}) == {dead}
    user = ast.parse("from a import _check, _LIMIT\nx.number\nx._text()")
    assert find_dead(trees | {"a": ast.parse(ALIVE.replace(*change)), "c": user}) == set()
