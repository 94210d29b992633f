"""TensorFlow's text of a slice."""

from collections.abc import Iterator
from typing import Any

from shardvar.spec.checkpoints import format_slice_text, parse_slice_text
from spec_tests.vector_generators.case import Case, Group, maker, numbered
from spec_tests.vector_generators.encoding import integers
from spec_tests.vector_generators.regions import region

_GOOD: list[tuple[str, list[int], tuple[list[int], list[int]], str]] = [
    ("13 4 3,3:0,4", [13, 4], ([3, 0], [3, 4]), "Length is taken for stop."),
    ("13 4 3,3:-", [13, 4], ([3, 0], [3, 4]), "A dash is not the whole axis."),
    ("13 4 -:-", [13, 4], ([0, 0], [13, 4]), "A dash is not the whole axis."),
    ("5 4,1", [5], ([4], [1]), "The last index is taken to lie outside."),
    ("2 3 4 1,1:0,3:2,2", [2, 3, 4], ([1, 0, 2], [1, 3, 2]), "Only two axes are known."),
    (
        "9007199254740993 9007199254740992,1",
        [2**53 + 1],
        ([2**53], [1]),
        "Numbers pass through a float64.",
    ),
]
_BAD = {
    "": "Nothing is a scalar.",
    "13 4": "A shape alone is a whole tensor.",
    "13 4 3,3": "Axes that are left out are whole.",
    "13 4 3,3:0,4:0,1": "An axis too many is ignored.",
    "13 4 12,2:0,4": "A slice is cropped to the shape.",
    "13 4 3,0:0,4": "A slice without elements stands for one.",
    "13 4 -1,3:0,4": "Negative starts count from the end.",
    "13 4 3:0,4": "An index alone is a slice.",
    "13 4 a,3:0,4": "What is no number is 0.",
    "13  4 3,3:0,4": "Two blanks are one.",
    "13 4 3,3,3:0,4": "A third number is a step.",
    "99999999999999999999 0,1": "Numbers wrap around 64 bits.",
    "5 4,9223372036854775807": "start + length overflows and is small.",
}


def _cases() -> Iterator[Case]:
    parse = maker("parse_slice_text", "V-TEXT-1", "parse-")
    form = maker("format_slice_text", "V-TEXT-1", "format-")
    for number, (text, shape, box, bug) in enumerate(_GOOD):
        assert parse_slice_text(text) == (shape, box), text
        expected: dict[str, Any] = {"shape": integers(shape), "region": region(box)}
        yield parse(number, {"text": text}, bug, expected)
        yield form(number, expected, "Whole axes are left out.", format_slice_text(shape, box))
    for number, (text, bug) in enumerate(_BAD.items()):
        yield parse(f"bad-{number}", {"text": text}, bug, error="LayoutError")
    bug = "A text is made that no reader takes, or that means another slice."
    for number, (shape, box) in enumerate([([], ([], [])), ([4], ([3], [2])), ([4], ([2], [0]))]):
        inputs = {"shape": shape, "region": region(box)}
        yield form(f"bad-{number}", inputs, bug, error="LayoutError")


GROUP = Group(
    "slice_text",
    'The text of a slice in TensorFlow\'s checkpoints, `"13 4 3,3:0,4"`.',
    "Written by hand, and read again by a regular expression.",
    numbered(_cases()),
)
