"""Every public name is used by a test or shown on a page."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations

from shardvar.planning import policies
from spec_tests.helpers.api_reference import PAGES, names_of
from spec_tests.helpers.documents import blocks
from spec_tests.helpers.paths import DOCS, ROOT, SPEC_TESTS
from spec_tests.helpers.source_code import MODULES, definitions, module_name, tree_of

NOT_USERS = ("architecture", "rules")
"""Folders of tests that look at the text of the package, and call nothing."""


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield what code names: variables, attributes and what it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]


def used_names() -> set[str]:
    """Return the names in the code of tests, examples, notebooks, and pages but for the reference, which lists all."""
    found: set[str] = set()
    for folder in (SPEC_TESTS, ROOT / "examples"):
        for path in folder.rglob("*.py"):
            if path.relative_to(folder).parts[0] not in NOT_USERS:
                found.update(names_in(ast.parse(path.read_text(encoding="utf-8"))))
    for page in {*ROOT.glob("*.md"), *DOCS.rglob("*.md")} - {*PAGES}:
        for block in blocks(page.read_text(encoding="utf-8"), "python"):
            found.update(re.findall(r"\w+", block.body))
    return found


def new_policies() -> Iterator[str]:
    """Yield the classes of policies, which users reach by options before they have a public name."""
    for name in policies.__all__:
        value = getattr(policies, name)
        if isinstance(value, type) and issubclass(value, policies.ColumnarPolicy):
            yield f"{policies.__name__}.{name}"


def test_every_public_name_is_used_by_a_test_or_a_page() -> None:
    public = sorted({name for page in PAGES for name in names_of(page)} | {*new_policies()})
    used = used_names()
    unused = [
        f"{name}: no test and no page uses it; add a test to spec_tests/, or take the name from its "
        "`__all__` and docs/api"
        for name in public
        if name.rpartition(".")[2] not in used
    ]
    assert not unused, "\n".join(["", *unused])


def test_only_code_counts() -> None:
    """The test above is worth what `names_in` sees."""
    source = "from a.b import c as d\ne.f(g)\n'''h'''  # i"
    assert set(names_in(ast.parse(source))) == {"c", "e", "f", "g"}


ALLOWED = {"Adapter", "Policy", "difference", "execute"}
"""Each of the kit's adapters is an `Adapter`, each command of the command line has its `execute`,
and `shardvar.testing` exports `Policy` and `difference`."""


def test_no_public_name_is_defined_in_two_modules() -> None:
    """Of functions, classes and aliases; two formats may each have a constant `MAGIC`.

    A plain rule of `shardvar.spec` may have the name of the fast function that it explains.
    """
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for name in {name for name in definitions(tree_of(path)) if not name.isupper()} - ALLOWED:
            is_plain = ".spec." in module_name(path)
            places[f"spec.{name}" if is_plain else name].append(module_name(path))
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_no_two_modules_of_a_package_differ_only_by_suffix() -> None:
    """Of pairs like `diff` and `diff_report`, or `index` and `indexing`, a reader must guess which
    holds what."""
    found = {
        f"{module_name(short)}, {long.stem}"
        for short, long in permutations(MODULES, 2)
        if short.parent == long.parent and re.fullmatch(rf"{short.stem}(_[a-z]+|[a-z]+)", long.stem)
    }
    assert found == set()


def test_every_kind_of_definition_is_seen() -> None:
    """The tests above are worth what `definitions` sees."""
    source = (
        "def f(): pass\nclass C: pass\nA = int\nB: int = 3\nx, y = 1, 2\n_z = 3\ndef _g(): pass"
    )
    assert sorted(definitions(ast.parse(source))) == ["A", "B", "C", "f", "x", "y"]
