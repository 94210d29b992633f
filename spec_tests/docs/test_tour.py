"""Tests of the stored notebook docs/tour.ipynb: no outputs, one structure for all sections, alt texts for pictures.

spec_tests/notebook executes it from top to bottom (``make tour``).
"""

import json
import re
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from spec_tests.helpers import paths
from spec_tests.rules.extract import plain, sentences
from spec_tests.rules.sentences import documents

ROOT = paths.ROOT
NOTEBOOK = ROOT / "docs" / "tour.ipynb"

Cell = dict[str, Any]

SHAPE = (
    ("markdown", r'^> RFC 00[0-3]: "'),
    ("code", r"^show\("),
    ("code", r"^(?:\w+, \w+ = )?draw_\w+\("),
    ("code", r"^law\("),
    ("markdown", r"^\*\*Something to change\.\*\* "),
)
"""The structure of a section, in order: the sentence, the code, a picture, a law, something to change."""


@cache
def cells() -> tuple[Cell, ...]:
    return tuple(json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"])


def text(cell: Cell) -> str:
    return "".join(cell["source"])


def sections() -> dict[str, list[Cell]]:
    """The numbered sections by their titles."""
    found: dict[str, list[Cell]] = {}
    title = ""
    for cell in cells():
        heading = re.match(r"## (.*)", text(cell)) if cell["cell_type"] == "markdown" else None
        title = heading[1] if heading else title
        if re.match(r"\d+\. ", title):
            found.setdefault(title, []).append(cell)
    return found


def first_with(section: list[Cell], kind: str, pattern: str) -> int | None:
    places = (place for place, cell in enumerate(section) if cell["cell_type"] == kind)
    return next((place for place in places if re.search(pattern, text(section[place]), re.MULTILINE)), None)


def test_the_notebook_is_kept_without_outputs() -> None:
    """Stored outputs become out of date, and turn a change of a word into a change of a picture."""
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []


def test_it_goes_from_one_array_to_tensorflow() -> None:
    assert [int(title.split(".")[0]) for title in sections()] == list(range(1, 14))


@pytest.mark.parametrize("title", sections())
def test_each_section_has_one_shape(title: str) -> None:
    """The RFC's sentence, the function's source, a picture, a law, something to change."""
    places = [first_with(sections()[title], kind, pattern) for kind, pattern in SHAPE]
    assert None not in places, f"{title} has no cell like {SHAPE[places.index(None)]}"
    assert places == sorted(places, key=lambda place: place or 0)
    assert places[-1] == len(sections()[title]) - 1, "the section ends with something to change"


def quotations() -> list[tuple[str, str]]:
    """The quotations of the notebook as pairs (RFC, text), with their lines joined."""
    prose = [re.sub(r"^> ", "", text(cell), flags=re.MULTILINE) for cell in cells() if cell["cell_type"] == "markdown"]
    return re.findall(r'RFC (00\d): "(.+?)"(?=\n\n|\)| Put |$)', "\n\n".join(prose), re.DOTALL)


def test_what_is_quoted_is_said_there() -> None:
    """Each quoted sentence, or quoted part of one, occurs in the table of the RFCs' sentences."""
    said = {document.number: [sentence.text for sentence in document.sentences] for document in documents()}
    assert len(quotations()) >= 20
    made_up = [
        (number, part)
        for number, quotation in quotations()
        for part in sentences(plain(quotation))
        if not any(plain(part) in plain(each) for each in said[number])
    ]
    assert made_up == []


def test_each_picture_is_told_in_words() -> None:
    """The alt text serves readers who cannot see the picture."""
    pictures = [cell for cell in cells() if cell["cell_type"] == "code" and re.search(SHAPE[2][1], text(cell), re.M)]
    assert len(pictures) >= 13
    assert [cell["id"] for cell in pictures if len(cell["metadata"]["mystnb"]["image"]["alt"]) < 40] == []


def test_what_is_shown_is_in_the_package() -> None:
    places = re.findall(r'"(shardvar[\w.]*):([\w.]+)"', "\n".join(map(text, cells())))
    assert len(places) >= 13
    for module, name in places:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        assert found.__module__ == module


def test_each_exercise_has_a_solution_that_is_checked() -> None:
    source = "\n".join(map(text, cells()))
    exercises = re.findall(r"^\*\*Exercise (\d)", source, re.MULTILINE)
    assert exercises == re.findall(r"^assert check_(\d)\(solved_", source, re.MULTILINE) == list("123456")


def test_solutions_are_folded() -> None:
    """In JupyterLab by ``source_hidden``, on the site by the tag."""
    solutions = [cell for cell in cells() if text(cell).startswith("# Solution")]
    assert len(solutions) == 6
    for cell in solutions:
        assert cell["metadata"]["jupyter"] == {"source_hidden": True} and "hide-input" in cell["metadata"]["tags"]
