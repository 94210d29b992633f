"""`shardvar.spec` as a book: each rule has its sentence or its source, one example and one
property; the book imports NumPy and the standard library."""

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from shardvar import spec
from shardvar.spec.partitions import coverage
from shardvar.spec.variables import assign
from spec_tests.helpers.paths import DOCS
from spec_tests.helpers.source_code import tree_of

CHAPTERS = sorted(
    path for path in Path(str(spec.__file__)).parent.glob("*.py") if path.stem != "__init__"
)
TESTS = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(__file__).parent.glob("*.py")]


def rules(path: Path) -> list[ast.FunctionDef]:
    """The public functions of a chapter."""
    return [
        node
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


def test_the_table_of_contents_lists_every_chapter_in_order() -> None:
    listed = re.findall(r"^    \d+ +(\w+)", str(spec.__doc__), re.MULTILINE)
    numbered = {
        int(found[1]): path.stem
        for path in CHAPTERS
        if (found := re.match(r"Chapter (\d+)\. ", str(ast.get_docstring(tree_of(path)))))
    }
    assert listed == [numbered[number] for number in sorted(numbered)]
    assert sorted([*listed, "decimals"]) == [path.stem for path in CHAPTERS] == spec.__all__


def test_the_site_shows_every_chapter() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "spec").glob("*.md"))
    assert sorted(re.findall(r"^```{chapter} (\w+)$", pages, re.MULTILINE)) == spec.__all__


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_imports_numpy_and_the_standard_library(path: Path) -> None:
    """And chapters before it, so that the book can be read from top to bottom."""
    known = {*sys.stdlib_module_names, "numpy", "shardvar"}
    modules = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert {str(module).split(".")[0] for module in modules} <= known
    ours = [str(module) for module in modules if str(module).startswith("shardvar")]
    assert all(module.startswith("shardvar.spec") for module in ours)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_rule_has_an_example_and_a_property(path: Path) -> None:
    named = {
        node.attr for tree in TESTS for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
    lacking = [
        node.name
        for node in rules(path)
        if ">>> " not in str(ast.get_docstring(node)) or node.name not in named
    ]
    # These are members of tables, by which the properties call them.
    assert [name for name in lacking if name not in IN_TABLES] == []


WORDS = {
    *("indices", "common", "difference", "row_nbytes", "whole", "halves", "to_elements"),
    *("applied", "fewest_files", "coordinates", "parts", "elements", "gathered"),
}
"""Functions that define a word of the book. No sentence asks for them."""


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_rule_stands_below_its_sentence_or_its_framework(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    bare = {rule.name for rule in rules(path) if not lines[rule.lineno - 2].startswith("#")}
    assert bare <= WORDS or path.stem == "decimals"


IN_TABLES = {
    *("sgd", "momentum", "nesterov", "adagrad", "adam", "rmsprop"),
    *("tensorflow_normal", "tensorflow_truncated", "indexed_normal", "indexed_truncated"),
    *("intervals", "assign", "assign_add", "assign_sub", "strided", "chunk", "to_elements"),
    *("most_filling", "whole", "row_nbytes", "counts", "applied"),
}
"""Rules that the properties reach through tables and other rules; the doctests call them."""


def test_parts_outside_of_a_shape_are_told_from_holes_and_overlaps() -> None:
    for parts, word in (
        ([((0,), (2,)), ((2,), (3,))], "tiled"),
        ([((0,), (2,)), ((3,), (2,))], "hole"),
        ([((0,), (3,)), ((2,), (3,))], "overlap"),
        ([((0,), (2,)), ((2,), (4,))], "outside"),
        ([((-1,), (6,))], "outside"),
        ([((0,), (5,)), ((6,), (0,))], "outside"),
        ([((0,), (5,)), ((5,), (0,))], "tiled"),
    ):
        assert coverage([5], parts) == word, parts


@pytest.mark.parametrize("part", [((0,), (2,)), ((0, 0, 0), (2, 2, 1)), ((0, 0), (2,))])
def test_a_part_of_another_rank_is_refused(part: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="zip"):
        coverage([2, 2], [part])


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), ()])
def test_a_value_of_another_shape_is_not_assigned(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        assign([np.zeros(2), np.zeros(1)], np.ones(shape))
