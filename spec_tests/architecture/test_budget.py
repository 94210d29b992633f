"""The package has a budget of size, in ``budget.toml``: nothing comes unless something goes."""

import ast
import io
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from spec_tests.helpers.source_code import MODULES, PACKAGE, exported

BUDGET = tomllib.loads(Path(__file__).with_name("budget.toml").read_text(encoding="utf-8"))
LAYOUT = {
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT
}  # fmt: skip
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def public_names(texts: Iterable[str]) -> set[str]:
    """Return the names that users import: in each ``__all__``, and imported under their own name."""
    trees = [ast.parse(text) for text in texts]
    nodes = [node for tree in trees for node in tree.body if isinstance(node, ast.ImportFrom)]
    imports = [name for node in nodes for name in node.names]
    return exported(trees) | {name.name for name in imports if name.asname == name.name}


def size(texts: Iterable[str], public: set[str]) -> Counter[str]:
    """Return the size of modules, by the names of the budget."""
    found: Counter[str] = Counter()
    private = once = 0
    for text in texts:
        tree = ast.parse(text)
        nodes = [*ast.walk(tree)]
        documents = {
            (node.lineno, node.col_offset)
            for node in nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        found["modules"] += 1
        found["lines"] += len(text.splitlines())
        found["functions"] += sum(isinstance(node, FUNCTION) for node in nodes)
        found["tokens"] += sum(
            token.type not in LAYOUT
            and not (token.type == tokenize.STRING and token.start in documents)
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
        )
        found["docstring_lines"] += sum(
            (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            for node in nodes
            if isinstance(node, FUNCTION | ast.ClassDef)
            and node.name not in public
            and ast.get_docstring(node) is not None
        )
        names = Counter(node.id for node in nodes if isinstance(node, ast.Name))
        own = [n.name for n in tree.body if isinstance(n, FUNCTION) and n.name.startswith("_")]
        private += len(own)
        once += sum(names[name] == 1 for name in own)
    found["called_once"] = round(100 * once / private) if private else 0
    return found


def test_the_package_is_within_its_budget() -> None:
    texts = [path.read_text(encoding="utf-8") for path in MODULES]
    public = public_names([*texts, (PACKAGE / "__init__.pyi").read_text(encoding="utf-8")])
    found = size(texts, public)
    assert {name: count for name, count in found.items() if count > BUDGET[name]} == {}


def test_sizes_are_counted() -> None:
    text = (
        '"""One."""\n\ndef f():  # a comment\n    """Two\n    lines."""\n    return _g()\n\n\n'
        'def _g():\n    """Own."""\n    return "text"\n\n\n__all__ = ["f"]\n'
    )
    assert public_names([text]) == {"f"}
    assert size([text], {"f"}) == {
        "modules": 1, "lines": 14, "functions": 2, "tokens": 21, "docstring_lines": 1, "called_once": 100
    }  # fmt: skip
