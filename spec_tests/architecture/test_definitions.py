"""A public name is defined in one module, and modules of one package have names that say how they
differ."""

import ast
import re
from collections import defaultdict
from itertools import permutations

from spec_tests.helpers.source_code import MODULES, definitions, module_name, tree_of

ALLOWED = {"Adapter", "Policy", "difference", "execute"}
"""Each of the kit's adapters is an `Adapter`, each command of the command line has its `execute`,
and `shardvar.testing` exports `Policy` and `difference`."""


def find_names_defined_twice() -> set[str]:
    """Return "name: modules" of functions, classes and aliases; two formats may each have a
    constant `MAGIC`.

    A plain rule of `shardvar.spec` may have the name of the fast function that it explains.
    """
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for name in {name for name in definitions(tree_of(path)) if not name.isupper()} - ALLOWED:
            is_plain = ".spec." in module_name(path)
            places[f"spec.{name}" if is_plain else name].append(module_name(path))
    return {f"{name}: {', '.join(modules)}" for name, modules in places.items() if len(modules) > 1}


def test_no_public_name_is_defined_in_two_modules() -> None:
    assert find_names_defined_twice() == set()


def find_modules_that_differ_by_suffix() -> set[str]:
    """Return pairs like `diff` and `diff_report`, or `index` and `indexing`: a reader must guess
    which holds what."""
    return {
        f"{module_name(short)}, {long.stem}"
        for short, long in permutations(MODULES, 2)
        if short.parent == long.parent and re.fullmatch(rf"{short.stem}(_[a-z]+|[a-z]+)", long.stem)
    }


def test_no_two_modules_of_a_package_differ_only_by_suffix() -> None:
    assert find_modules_that_differ_by_suffix() == set()


def test_every_kind_of_definition_is_seen() -> None:
    """The tests above are worth what `definitions` sees."""
    source = (
        "def f(): pass\nclass C: pass\nA = int\nB: int = 3\nx, y = 1, 2\n_z = 3\ndef _g(): pass"
    )
    assert sorted(definitions(ast.parse(source))) == ["A", "B", "C", "f", "x", "y"]
