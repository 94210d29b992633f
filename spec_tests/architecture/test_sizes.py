"""A file is read at one sitting, a function on one screen."""

import ast

from spec_tests.helpers.source_code import MODULES, module_name, tree_of

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 40


def find_long_files() -> set[str]:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    return {module_name(path) for path, length in lengths.items() if length > MOST_LINES_OF_A_FILE}


def test_no_file_is_longer_than_a_sitting() -> None:
    assert find_long_files() == set()


def find_long_functions() -> set[str]:
    return {
        f"{module_name(path)}.{node.name}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    }


def test_no_function_is_longer_than_a_screen() -> None:
    assert find_long_functions() == set()
