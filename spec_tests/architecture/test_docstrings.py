"""A docstring begins with an imperative or with a noun phrase, not with a question."""

import ast
import re
from collections.abc import Iterator

import pytest

from spec_tests.helpers.source_code import MODULES, module_name, tree_of

QUESTION = re.compile(r"(What|Whether|How|Who|Whom|Whose|Where|Why)\b")


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each docstring: of the module, its classes and functions, and their attributes."""
    names = {tree: ""}
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        for number, child in enumerate(body if isinstance(body, list) else []):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names[child] = f"{names.get(node, '')}.{child.name}"
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                before = ast.unparse(body[number - 1]).split(":")[0].split(" =")[0] if number else ""
                if isinstance(child.value.value, str):
                    yield f"{names.get(node, '')}{f'.{before}' if before else ''}", child.value.value


def find_docstring_openings() -> set[str]:
    return {
        f"{module_name(path)}{name}: {opening[0]}"
        for path in MODULES
        for name, text in docstrings(tree_of(path))
        if (opening := QUESTION.match(text.strip()))
    }


def test_no_docstring_begins_with_a_question() -> None:
    assert find_docstring_openings() == set()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('"""Why."""', ""),
        ('class C:\n    """Why."""', ".C"),
        ('class C:\n    def f(self):\n        """Why."""', ".C.f"),
        ('class C:\n    x: int\n    """Why."""', ".C.x"),
        ('X = 3\n"""Why."""', ".X"),
    ],
)
def test_every_kind_of_docstring_is_seen(source: str, name: str) -> None:
    """The test above is worth what `docstrings` sees."""
    assert list(docstrings(ast.parse(source))) == [(name, "Why.")]
