"""The source text of the package as data: its modules, their syntax trees, their imports, their
definitions."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from spec_tests.helpers.paths import ROOT

PACKAGE = ROOT / "shardvar"
MODULES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """Return the dotted name of a file's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NESTED = {"reference", "layout"}
"""The folders that hold layers; what lies in them directly is of the layer `layout`, or of none."""


def layer_of(path: Path) -> str:
    """Return the layer of a file: `formats` for `shardvar/formats/files.py`; the face has none, an
    empty name."""
    return layer_of_module(module_name(path))


def layer_of_module(name: str) -> str:
    """Return the layer of a module.

    >>> [layer_of_module(f"shardvar.{name}") for name in ("formats.files", "reference.nn.mod", "layout.region")]
    ['formats', 'reference.nn', 'layout']
    """
    parts = name.split(".")[1:]
    inner = "/".join(parts[:2])
    if parts and parts[0] in NESTED and (PACKAGE / inner).is_dir():
        return ".".join(parts[:2]) if len(parts) > 1 else parts[0] * (parts[0] == "layout")
    return parts[0] if parts else ""


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def submodules() -> frozenset[str]:
    """Return the names of all modules of the package."""
    return frozenset(module_name(path) for path in MODULES)


def imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of each import in a module; `package` is the one that its relative
    imports start from."""
    known = submodules()
    for node in ast.walk(tree):
        yield from _imports_by(node, package, known)


def _imports_by(node: ast.AST, package: str, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of the imports that one node is."""
    if isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            deeper = f"{base}.{alias.name}"
            yield node.lineno, deeper if deeper in known else base
    elif (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value in known - {"shardvar"}
    ):
        yield node.lineno, node.value


def package_of(path: Path) -> str:
    """Return the package that the relative imports of a file start from."""
    name = module_name(path)
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of each import of a file."""
    return imports(tree_of(path), package_of(path))


def importers(modules: set[str], paths: Iterable[Path]) -> list[str]:
    """Return the places in files that import one of these top-level modules, with its name."""
    return [
        f"{at(path, line)}: {target}"
        for path in paths
        for line, target in imports_of(path)
        if target.split(".")[0] in modules
    ]


def reached(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    """Return the nodes of a graph at the end of one arrow or more."""
    found: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        node = ahead.pop()
        if node not in found:
            found.add(node)
            ahead.extend(graph[node])
    return found


def at(path: Path, line: int) -> str:
    """Return a place as messages name it: `shardvar/errors.py:12`."""
    return f"{path.relative_to(ROOT)}:{line}"


def bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module or a class binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (x.id for each in targets for x in ast.walk(each) if isinstance(x, ast.Name))


def definitions(tree: ast.Module) -> Iterator[str]:
    """Yield the public functions, classes, aliases and constants that a module defines at its top
    level."""
    names = (name for node in tree.body for name in bound(node))
    return (name for name in names if not name.startswith("_"))


def exported(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names in the ``__all__`` of modules."""
    return {
        each.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and [*bound(node)] == ["__all__"]
        for each in ast.walk(node.value)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
