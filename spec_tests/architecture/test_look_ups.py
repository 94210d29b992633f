"""A member of an interface of formats is never looked up by its name."""

import ast

from shardvar.formats.protocol import Format, Sink
from spec_tests.formats.test_sources import members
from spec_tests.helpers.source_code import MODULES, at, tree_of

DECLARED = members() | members(Sink) | members(Format)
"""The members of the interfaces, which mypy sees where they are used by their names."""


def look_ups(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the members of an interface that are looked up by a constant name, each with its line."""
    return [
        (node.lineno, str(node.args[1].value))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr", "setattr")
        and isinstance(node.args[1], ast.Constant)
        and node.args[1].value in DECLARED
    ]


MEANT_OTHERWISE = {"name", "index", "start"}
"""Members whose names other objects have too, such as enumerations and tensors of frameworks."""


def test_no_member_of_an_interface_is_looked_up_by_name() -> None:
    """A misspelt name would switch something off in silence."""
    found = [
        f"{at(path, line)}: {name}"
        for path in MODULES
        for line, name in look_ups(tree_of(path))
        if name not in MEANT_OTHERWISE
    ]
    assert found == []


def test_a_look_up_is_seen() -> None:
    source = 'getattr(source, "traits", None)\nhasattr(form, "locate")\ngetattr(x, name)'
    assert look_ups(ast.parse(source)) == [(1, "traits"), (2, "locate")]
