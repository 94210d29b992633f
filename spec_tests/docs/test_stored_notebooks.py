"""Tests of the notebooks of docs/notebooks as they are stored: outputs, structure, quotations, alt
texts, scratch.

spec_tests/notebook executes them from top to bottom (``make tour``) and compares what they show
with what is stored.
"""

import ast
import re
from importlib import import_module
from typing import Any

import pytest

from spec_tests.helpers.notebooks import (
    NAMES,
    Cell,
    path_of,
    pictures,
    printed,
    source,
    stored_cells,
    tags,
)
from spec_tests.rules.extract import plain, sentences
from spec_tests.rules.sentences import documents

SHAPE = (
    ("code", r"\bnp\."),
    ("code", r"^(?:\w+, \w+ = )?draw_\w+\("),
    ("code", r"^law\("),
    ("markdown", r"^\*\*Something to change\.\*\* "),
    ("code", r"^# Scratch: "),
    ("markdown", r"^<details><summary>Answer</summary>"),
)
"""The structure of a section, in order: NumPy, a picture, a law, something to change, where, and
the answer."""

UNLIKE = {"4. The same in other words", "5. Your own checkpoint"}
"""Sections of another structure: a table of words, and the reader's own file."""


def sections(name: str) -> dict[str, list[Cell]]:
    """The numbered sections of a notebook by their titles."""
    found: dict[str, list[Cell]] = {}
    title = ""
    for cell in stored_cells(name):
        heading = re.match(r"## (.*)", source(cell)) if cell["cell_type"] == "markdown" else None
        title = heading[1] if heading else title
        if re.match(r"\d+\. ", title):
            found.setdefault(title, []).append(cell)
    return found


SECTIONS = [(name, title) for name in NAMES for title in sections(name)]
CODE = [cell for name in NAMES for cell in stored_cells(name) if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    ("name", "title"), [section for section in SECTIONS if section[1] not in UNLIKE]
)
def test_each_section_has_one_structure(name: str, title: str) -> None:
    section = sections(name)[title]
    places = []
    for kind, pattern in SHAPE:
        found = [
            place
            for place, cell in enumerate(section)
            if cell["cell_type"] == kind and re.search(pattern, source(cell), re.MULTILINE)
        ]
        assert found, f"{title} has no cell like {pattern}"
        places.append(found[0])
    assert places == sorted(places)


def test_sections_are_counted_from_one() -> None:
    for name in NAMES:
        assert [int(title.split(".")[0]) for title in sections(name)] == list(
            range(1, len(sections(name)) + 1)
        )


@pytest.mark.parametrize("name", NAMES)
def test_each_notebook_begins_with_its_time_and_ends_with_what_was_learned(name: str) -> None:
    first, last = source(stored_cells(name)[0]), source(stored_cells(name)[-1])
    assert re.search(r"^\*\*(20|25|35|45) minutes\.\*\*", first, re.MULTILINE)
    assert last.startswith("## What you can now say\n\n- ")


def test_pictures_are_stored() -> None:
    """So they show where a notebook is rendered without being executed. Cells that ask for an
    answer draw too."""
    drawing = [cell for cell in CODE if "mystnb" in cell["metadata"] or "scratch" in tags(cell)]
    without = [cell["id"] for cell in drawing if not pictures(cell) and not printed(cell)]
    assert without == []
    assert sum(map(len, map(pictures, CODE))) >= 30


def test_what_is_stored_depends_on_no_machine_and_no_time() -> None:
    for cell in CODE:
        text = str(cell["outputs"])
        assert cell["execution_count"] is None and "execution" not in cell["metadata"], cell["id"]
        assert not re.search(r"/tmp/|/home/|/root/|/Users/| at 0x[0-9a-f]+|dc:date", text), cell[
            "id"
        ]
        assert not any(
            each["output_type"] == "error" or each.get("name") == "stderr"
            for each in cell["outputs"]
        )


def test_notebooks_stay_small() -> None:
    """A hosted viewer renders a notebook of at most some megabytes; these are read in a second."""
    assert all(path_of(name).stat().st_size < 500_000 for name in NAMES)


def test_one_law_is_broken_on_purpose_and_says_by_what() -> None:
    broken = [cell for cell in CODE if "NOT a law" in printed(cell) and "scratch" not in tags(cell)]
    assert [printed(cell) for cell in broken] == [
        "NOT a law: All shards have the same size.\n     Broken for 1, 2: the sizes are [1, 0].\n"
    ]


def quotations() -> list[tuple[str, str]]:
    """The quotations of the notebooks as pairs (RFC, text), with their lines joined."""
    texts = [
        source(cell)
        for name in NAMES
        for cell in stored_cells(name)
        if cell["cell_type"] == "markdown"
    ]
    prose = "\n\n".join(re.sub(r"^> ", "", text, flags=re.MULTILINE) for text in texts)
    return re.findall(r'RFC (00\d): "(.+?)"(?=\n\n| `AllIn|$)', prose, re.DOTALL)


def test_what_is_quoted_is_said_there() -> None:
    """Each quoted sentence, or quoted part of one, occurs in the table of the RFCs' sentences."""
    said = {
        document.number: [sentence.text for sentence in document.sentences]
        for document in documents()
    }
    assert len(quotations()) >= 25
    made_up = [
        (number, part)
        for number, quotation in quotations()
        for part in sentences(plain(quotation))
        if not any(plain(part) in plain(each) for each in said[number])
    ]
    assert made_up == []


def test_each_picture_is_told_in_words() -> None:
    """The alt text serves readers who cannot see the picture; scratch cells draw what their reader
    chooses."""
    drawing = [cell for cell in CODE if pictures(cell) and "scratch" not in tags(cell)]
    assert [
        cell["id"] for cell in drawing if len(cell["metadata"]["mystnb"]["image"]["alt"]) < 40
    ] == []


def test_what_is_shown_is_in_the_package() -> None:
    places = re.findall(r'"(shardvar[\w.]*):([\w.]+)"', "\n".join(map(source, CODE)))
    assert len(places) >= 15
    for module, name in places:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        assert found.__module__ == module


def bound(tree: ast.AST) -> set[str]:
    """The names that a cell gives a value, at any depth."""
    names = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return names | {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize("name", NAMES)
def test_nothing_uses_what_a_scratch_cell_defines(name: str) -> None:
    """A change in a scratch cell cannot break what follows."""
    code = [cell for cell in stored_cells(name) if cell["cell_type"] == "code"]
    others = [ast.parse(source(cell)) for cell in code if "scratch" not in tags(cell)]
    used = {node.id for tree in others for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
        each for tree in others for each in bound(tree)
    }
    scratch = [cell for cell in code if "scratch" in tags(cell)]
    assert len(scratch) >= 3
    for cell in scratch:
        assert not bound(ast.parse(source(cell))) & used, cell["id"]


@pytest.mark.parametrize("name", NAMES)
def test_each_exercise_is_in_its_section_with_a_folded_solution_behind_it(name: str) -> None:
    """Folded in JupyterLab by ``source_hidden``, on the site by the tag."""
    order = [cell["id"] for cell in stored_cells(name)]
    numbers = [int(each.split("-")[1]) for each in order if re.fullmatch(r"exercise-\d", each)]
    assert numbers == list(range(1, len(numbers) + 1)) and numbers
    for number in numbers:
        first = order.index(f"exercise-{number}")
        kinds = ("", "-check", "-answer")
        assert order[first : first + 4] == [f"exercise-{number}{kind}" for kind in kinds] + [
            f"solution-{number}"
        ]
        solution = stored_cells(name)[first + 3]
        assert solution["metadata"]["jupyter"] == {"source_hidden": True} and "hide-input" in tags(
            solution
        )
        assert f"assert check_{number}(solved_" in source(solution)
        assert printed(solution).startswith("Right, in ")
        answer = stored_cells(name)[first + 2]
        assert printed(answer) == "Not written yet.\n" and len(pictures(answer)) == 1
