"""The places where the code names a rule: function, test and quotation.

An id is seen in comments and in strings, docstrings above all. What stands in quotation marks
behind it, up to the next id or the end of the paragraph, is a quotation of the rule's sentences.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spec_tests.helpers.paths import ROOT
from spec_tests.rules.extract import plain
from spec_tests.rules.sentences import ID

_OPENS = r"(?:(?<=[\s(:;,=])|^)"
_CLOSES = r"(?=[\s.,;:)]|$)"
_QUOTED = re.compile(rf"{_OPENS}(?:'(.+?)'{_CLOSES}|\"(.+?)\"{_CLOSES})", re.DOTALL)
_ELLIPSIS = re.compile(r"\[?\.\.\.\]?")


@dataclass(frozen=True, slots=True)
class Mention:
    """One place where a rule is named."""

    rule: str
    """The id."""
    path: str
    """The file, from the root of the repository."""
    line: int
    """The line of the id."""
    name: str
    """The function or class around it, dotted; empty where it is the module's."""
    quotes: tuple[str, ...]
    """The quotations behind the id."""

    @property
    def is_plain(self) -> bool:
        """True in ``shardvar.spec``, whose functions are the plain ones."""
        return self.path.startswith("shardvar/spec/")

    @property
    def module(self) -> str:
        """``reference/variables/sharded.py`` of the package, ``test_cut.py`` of the tests."""
        return self.path.split("/", 1)[1]

    @property
    def is_test(self) -> bool:
        """True in a test that runs without other frameworks."""
        return self.name.startswith("test_") and "/peers/" not in self.path


@cache
def functions() -> tuple[Mention, ...]:
    """Return the places where the library says that it obeys a rule; the kit, which judges others,
    obeys none."""
    package = ROOT / "shardvar"
    paths = sorted(
        path for path in package.rglob("*.py") if package / "conformance" not in path.parents
    )
    return tuple(one for path in paths for one in mentions_of(path))


@cache
def tests() -> tuple[Mention, ...]:
    """Return the tests that say that they hold a rule; tests of the rules and of the kit mention
    ids and hold none."""
    paths = sorted((ROOT / "spec_tests").rglob("test_*.py"))
    of_the_kit = ("test_rules", "test_conformance", "test_wrong_adapters")
    paths = [path for path in paths if not path.name.startswith(of_the_kit)]
    return tuple(one for path in paths for one in mentions_of(path) if one.name.startswith("test_"))


def mentions_of(path: Path) -> list[Mention]:
    """Every id of a file, in order."""
    text = path.read_text(encoding="utf-8")
    if not ID.search(text):
        return []
    tree, where = ast.parse(text), str(path.relative_to(ROOT).as_posix())
    found = []
    for line, said in _said(path):
        for hit, following in _segments(said):
            at = line + said.count("\n", 0, hit.start())
            # A comment right above a function is the function's.
            below = line + said.count("\n") + 1
            name = _around(tree, below if _begins(tree, below) else at)
            found.append(Mention(hit.group(), where, at, name, tuple(quotes(following))))
    return found


def _said(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each string and of each run of comments."""
    comments: list[str] = []
    begun = last = 0
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                if comments and token.start[0] != last + 1:
                    yield begun, "\n".join(comments)
                    comments = []
                begun, last = token.start[0] if not comments else begun, token.start[0]
                comments.append(token.string.lstrip("# "))
            elif token.type == tokenize.STRING and ID.search(token.string):
                yield token.start[0], token.string.strip("\"'")
    if comments:
        yield begun, "\n".join(comments)


def _segments(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each id and what follows it: up to the next one, or to the end of the paragraph."""
    hits = list(ID.finditer(text))
    ends = [*(hit.start() for hit in hits), len(text)][1:]
    for hit, end in zip(hits, ends, strict=True):
        rest = text[hit.end() : end]
        yield hit, re.split(r"\n\s*\n", rest, maxsplit=1)[0]


def quotes(text: str) -> Iterator[str]:
    """Yield the quotations of a text, in parts where something was left out.

    >>> list(quotes(' (RFC 000): "strategies ... can choose", as \\'the "mod" one\\' does.'))
    ['strategies', 'can choose', 'the "mod" one']
    """
    for quoted in _QUOTED.finditer(text):
        for piece in _ELLIPSIS.split(quoted[1] or quoted[2]):
            if piece.strip():
                yield plain(piece)


def _begins(tree: ast.Module, line: int) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.lineno == line for node in tree.body)


def _around(tree: ast.Module, line: int) -> str:
    names: list[str] = []
    node: ast.AST = tree
    while True:
        inside = [
            child
            for child in ast.walk(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef)
            and child is not node
            and child.lineno <= line <= (child.end_lineno or line)
        ]
        if not inside:
            return ".".join(names)
        node = min(inside, key=lambda child: child.lineno)
        names.append(node.name)
        if node.name.startswith("test_"):
            return node.name
