"""A file is read at one sitting, a function on one screen; docstrings count in a file only."""

import ast

import pytest

from spec_tests.helpers.source_code import MODULES, module_name, tree_of
from spec_tests.helpers.way_counts import WAYS, Function, listing, warm_way

MOST_LINES_OF_A_FILE = 900
MOST_LINES_OF_A_FUNCTION = 60


def lines_of_docstrings(tree: ast.AST) -> int:
    """Return the number of lines of all texts that are statements: docstrings of modules, functions
    and attributes."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def test_no_file_is_longer_than_a_sitting() -> None:
    long = {
        f"{module_name(path)}: {count} lines with docstrings, of at most {MOST_LINES_OF_A_FILE}"
        for path in MODULES
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES_OF_A_FILE
    }
    assert long == set()


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{module_name(path)}.{node.name}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (node.end_lineno or node.lineno) - node.lineno + 1 - lines_of_docstrings(node)
        > MOST_LINES_OF_A_FUNCTION
    }
    assert long == set()


def test_only_docstrings_do_not_count() -> None:
    source = 'def f():\n    """One\n    two."""\n    x = """a\n    b"""\n    return x\n'
    assert lines_of_docstrings(ast.parse(source)) == 2


MOST_FILES = {"save": 35, "load": 29, "reshard": 43, "save as torch": 41, "verify": 34, "diff": 38}


def files(times: dict[Function, int]) -> set[str]:
    return {function.module for function in times}


@pytest.mark.parametrize("way", WAYS)
def test_a_way_enters_few_files(way: str) -> None:
    times = warm_way(way)
    assert len(files(times)) <= MOST_FILES[way], f"{way}:\n{listing(times)}"


def test_functions_are_counted_once_and_by_their_files() -> None:
    times = {
        Function("a.py", "f"): 3,
        Function("b.py", "f"): 1,
        Function("a.py", "g.<locals>.<lambda>"): 2,
    }
    assert files(times) == {"a.py", "b.py"}
    assert listing(times) == "a.py\n       3 f\n       2 g.<locals>.<lambda>\nb.py\n       1 f"
