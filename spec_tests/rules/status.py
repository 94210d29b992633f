"""The status of a sentence: which of its tests run, and whether one of them is of this very
sentence.

    kept        a test that runs quotes the sentence beside a rule of it, or the rule comes from this sentence alone
    rule kept   tests of its rule run, and quote other sentences of the rule or none
    not tested  no test of its rule runs

A test runs if nothing can skip it: neither it nor its module is marked ``skip``, ``skipif`` or
``xfail``, and it calls neither ``pytest.skip`` nor ``pytest.importorskip``. ``mentions`` has
already left out tests that need other frameworks.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache

from spec_tests.helpers.paths import ROOT
from spec_tests.rules import mentions
from spec_tests.rules.extract import plain
from spec_tests.rules.mentions import Mention
from spec_tests.rules.sentences import Sentence, sentences_by_rule

KEPT, RULE_KEPT, NOT_TESTED = "kept", "rule kept", "not tested"
FEWEST_WORDS = 3
"""What is shorter is a name in quotation marks."""

_MARKS = re.compile("[`'\"\u201c\u201d]")
_SKIPS = re.compile(r"\b(skip|skipif|xfail|importorskip)\b")


def spoken(text: str) -> str:
    """Return a text without marks and without the stop at its end: what is equal where one quotes
    another.

    >>> spoken("`div` is used.") == spoken("DIV is used")
    True
    """
    return _MARKS.sub("", plain(text)).strip(" .,:;").lower()


def status_of(sentence: Sentence, tests: Iterable[Mention]) -> str:
    """Return the status of a sentence that has rules, given the tests that run."""
    own = [test for test in tests if test.rule in sentence.rules]
    if not own:
        return NOT_TESTED
    text = spoken(sentence.text)
    quoted = any(
        spoken(quote) in text
        for test in own
        for quote in test.quotes
        if len(quote.split()) >= FEWEST_WORDS
    )
    alone = any(len(sentences_by_rule().get(test.rule, ())) == 1 for test in own)
    return KEPT if quoted or alone else RULE_KEPT


@cache
def running_tests() -> tuple[Mention, ...]:
    """Return the mentions in tests that nothing can skip."""
    return tuple(
        test for test in mentions.tests() if test.is_test and test.name in _running_names(test.path)
    )


@cache
def _running_names(path: str) -> frozenset[str]:
    return frozenset(running_names((ROOT / path).read_text(encoding="utf-8")))


def running_names(text: str) -> set[str]:
    """Return the names of the tests of a module that nothing can skip.

    >>> sorted(running_names("def test_a(): 1\\n@pytest.mark.skip\\ndef test_b(): 2\\ndef test_c(): pytest.skip()"))
    ['test_a']
    """
    tree = ast.parse(text)
    marks = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0])
    ]
    if any(_SKIPS.search(ast.unparse(mark.value)) for mark in marks):
        return set()
    tests = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    return {test.name for test in tests if not _may_skip(test)}


def _may_skip(test: ast.FunctionDef) -> bool:
    calls = [ast.unparse(node.func) for node in ast.walk(test) if isinstance(node, ast.Call)]
    marks = [ast.unparse(mark) for mark in test.decorator_list]
    return any(_SKIPS.search(text.split("(")[0]) for text in marks) or any(
        call in ("pytest.skip", "pytest.importorskip", "pytest.xfail") for call in calls
    )
