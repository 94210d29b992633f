"""Every option of the command line is exercised: a test, a transcript or a page runs its command
with it."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from shardvar.cli.options import COMMANDS
from spec_tests.helpers.cli_pages import parsers
from spec_tests.helpers.documents import blocks, commands
from spec_tests.helpers.paths import DOCS, GOLDEN, ROOT, SPEC_TESTS

EVERYWHERE = {"-h", "--help"}
"""Options that argparse adds and tests."""

Uses = dict[str, set[str]]
"""Command -> the options with which it is run."""


def options() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (command, the spellings of an option) of the whole command line."""
    for command, parser in parsers().items():
        for action in parser._actions:
            spellings = tuple(set(action.option_strings) - EVERYWHERE)
            if spellings:
                yield command, spellings


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts of code that it may run: not what it expects in an output, nor docstrings.

    Expected are texts to the left of ``in``, of ``match=`` and of ``==``.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        is_expected = isinstance(node, ast.Compare) and isinstance(child, ast.Constant)
        if not is_expected and not (isinstance(child, ast.keyword) and child.arg == "match"):
            yield from texts(child)


def uses_in(tree: ast.Module) -> Uses:
    """Return the options that each top-level function or class has together with a command.

    A constant of the module counts where it is named.
    """
    constants = {
        target.id: node
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
        if isinstance(target, ast.Name)
    }
    found: Uses = defaultdict(set)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        named = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        parts = [node, *(constants[name] for name in named & constants.keys())]
        words = {word for part in parts for text in texts(part) for word in text.split()}
        for command in words & {*COMMANDS}:
            found[command] |= {word.partition("=")[0] for word in words if word.startswith("-")}
    return found


def uses_on(page: str) -> Uses:
    """Return the options of the commands of a page, which `docs/test_documents.py` runs."""
    found: Uses = defaultdict(set)
    for block in blocks(page, "console"):
        for command, _ in commands(block.body):
            words = re.split(r"[\s=]+", command)
            for at, word in enumerate(words[:-1]):
                if word == "shardvar":
                    found[words[at + 1]] |= {each for each in words[at:] if each.startswith("-")}
    return found


def uses_in_transcript(text: str) -> Uses:
    """Return the options of the commands of a transcript, which `cli/test_transcripts.py` runs."""
    found: Uses = defaultdict(set)
    for command, rest in re.findall(r"^(?:\d.* )?\$ (\w+)(.*)", text, flags=re.MULTILINE):
        found[command] |= {each for each in re.split(r"[\s=]+", rest) if each.startswith("-")}
    return found


def all_uses() -> Uses:
    found: Uses = defaultdict(set)
    tests = [path for path in SPEC_TESTS.glob("*/test_*.py") if path.parent.name != "architecture"]
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    for uses in (
        *(uses_in(ast.parse(path.read_text(encoding="utf-8"))) for path in tests),
        *(uses_on(path.read_text(encoding="utf-8")) for path in pages),
        *(uses_in_transcript(path.read_text(encoding="utf-8")) for path in GOLDEN.glob("cli/*")),
    ):
        for command, words in uses.items():
            found[command] |= words
    return found


def home_of(command: str) -> Path:
    """Return the test file of a command, or that of the command line."""
    own = SPEC_TESTS / "cli" / f"test_{command}_verb.py"
    return own if own.exists() else SPEC_TESTS / "cli" / "test_cli.py"


def test_every_option_is_exercised_by_a_test_or_a_page() -> None:
    used = all_uses()
    untried = [
        f"shardvar {command} {max(spellings, key=len)}: no test runs it; add one to "
        f"{home_of(command).relative_to(ROOT)}"
        for command, spellings in options()
        if used[command].isdisjoint(spellings)
    ]
    assert not untried, "\n".join(["", *untried])


def test_only_options_that_are_run_count() -> None:
    """The test above is worth what `uses_in` sees."""
    source = '''
OUT = ["--out", "x"]
def test_a(run):
    """A docstring with verify --strict."""
    assert main(["verify", "--json", *OUT]) == 0 and "--force" in told.err
    with raises(Error, match="--quiet"):
        run("verify --workers=2 path".split())
'''
    assert dict(uses_in(ast.parse(source))) == {"verify": {"--json", "--out", "--workers"}}
