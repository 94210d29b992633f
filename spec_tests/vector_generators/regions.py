"""Regions as sets of indices: intersections, differences, covers; and whether regions tile a
shape."""

from collections.abc import Iterator
from typing import Any

from shardvar.spec.partitions import Region, common, coverage, difference
from spec_tests.vector_generators.case import Case, Group, maker, numbered
from spec_tests.vector_generators.encoding import integers


def region(box: Region) -> dict[str, Any]:
    """A box as JSON."""
    return {"offset": integers(list(box[0])), "shape": integers(list(box[1]))}


_PAIRS: list[tuple[str, Region, Region, str]] = [
    ("corner", ((0, 0), (3, 3)), ((2, 1), (4, 4)), "Stops are taken for sizes."),
    ("inside", ((0, 0), (5, 6)), ((1, 2), (2, 3)), "The outer one is returned."),
    (
        "same",
        ((2, 1), (3, 2)),
        ((2, 1), (3, 2)),
        "Equal boxes are taken for disjoint ones, or a rest is left.",
    ),
    (
        "touching",
        ((0,), (3,)),
        ((3,), (2,)),
        "Ranges are taken as closed: boxes that touch share an index.",
    ),
    (
        "apart",
        ((0, 0), (2, 2)),
        ((0, 5), (2, 2)),
        "Disjoint along one axis alone is not seen; sizes become negative.",
    ),
    ("empty", ((1,), (0,)), ((0,), (4,)), "A box without indices is given one."),
    (
        "cross",
        ((0, 2), (5, 1)),
        ((2, 0), (1, 5)),
        "A corner of one must lie in the other: a cross has none.",
    ),
    (
        "scalar",
        ((), ()),
        ((), ()),
        "Rank 0 has one index, the empty one, and is taken for nothing.",
    ),
    (
        "cube",
        ((0, 0, 0), (3, 3, 3)),
        ((1, 1, 1), (1, 1, 1)),
        "Pieces of a difference overlap at the corners.",
    ),
    ("slab", ((0, 0), (4, 4)), ((1, 0), (2, 4)), "Of what remains on two sides only one is kept."),
    (
        "wider",
        ((1, 1), (2, 2)),
        ((0, 0), (4, 4)),
        "Everything is taken away, and a piece of negative size is left.",
    ),
]

_TILINGS: list[tuple[str, list[int], list[Region], str]] = [
    ("rows", [5, 2], [((0, 0), (3, 2)), ((3, 0), (2, 2))], "A right layout is refused."),
    ("grid", [4, 4], [((0, 0), (1, 3)), ((0, 3), (1, 1)), ((1, 0), (3, 3)), ((1, 3), (3, 1))], "Only rows are known."),
    ("pinwheel", [3, 3], [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))],
     "A tiling that no sequence of straight cuts makes is refused."),
    ("order", [4], [((2,), (2,)), ((0,), (2,))], "Parts are taken to stand in order."),
    ("hole", [5], [((0,), (2,)), ((3,), (2,))], "A hole is read as zeros."),
    ("hole-end", [5], [((0,), (4,))], "The end of the last part is not compared with the shape."),
    ("hole-corner", [2, 2], [((0, 0), (1, 2)), ((1, 0), (1, 1))], "Only the first axis is looked at."),
    ("overlap", [5], [((0,), (3,)), ((2,), (3,))], "Whichever part comes last wins."),
    ("overlap-hidden", [4], [((0,), (2,)), ((1,), (2,))], "Sizes add up to the whole, which is all that is counted."),
    ("overlap-2d", [3, 3], [((0, 0), (2, 3)), ((1, 1), (2, 2)), ((2, 0), (1, 1))], "Only neighbours are compared."),
    ("twice", [2], [((0,), (2,)), ((0,), (2,))], "A part that is listed twice counts once."),
    ("outside", [4], [((0,), (2,)), ((2,), (3,))], "A part is cropped to the shape."),
    ("nothing", [3], [], "No parts tile everything."),
    ("empty", [0, 4], [], "Without elements nothing is missing, and an error is raised."),
    ("empty-parts", [2], [((0,), (1,)), ((1,), (0,)), ((1,), (1,))], "A part without elements is an overlap."),
    ("scalar", [], [((), ())], "Rank 0 has no first axis to compare."),
    ("scalar-twice", [], [((), ()), ((), ())], "Scalars never overlap."),
]  # fmt: skip


def _pair_cases() -> Iterator[Case]:
    intersect = maker("intersect", "V-REGION-1", "intersect-")
    for name, a, b, bug in _PAIRS:
        inputs = {"a": region(a), "b": region(b)}
        both = common(a, b)
        expected = None if both is None else region(both)
        yield intersect(name, inputs, bug, expected)
        swapped = {"a": inputs["b"], "b": inputs["a"]}
        yield intersect(f"{name}-swapped", swapped, "It is not symmetric.", expected)
        rest = integers(difference(a, b))
        yield Case(f"subtract-{name}", "V-REGION-1", "subtract", inputs, bug, rest)
    far = 2**40
    huge_a, huge_b = ((0, far), (far, far)), ((far - 1, far + 5), (far, 2))
    inputs = {"a": region(huge_a), "b": region(huge_b)}
    both = region(((far - 1, far + 5), (1, 2)))
    yield intersect("huge", inputs, "Indices pass through 32 bits.", both)
    last = 2**63 - 2
    inputs = {"a": region(((last,), (1,))), "b": region(((0,), (2**63 - 1,)))}
    bug = "Indices pass through a float64, or stops overflow."
    yield intersect("last", inputs, bug, region(((last,), (1,))))


def _tiling_cases() -> Iterator[Case]:
    for name, shape, boxes, bug in _TILINGS:
        inputs = {"shape": shape, "parts": [region(box) for box in boxes]}
        found = coverage(shape, boxes)
        yield Case(f"tiling-{name}", "R-POLICY-1", "coverage", inputs, bug, found)


GROUP = Group(
    "regions",
    "Regions: what two have in common, what one has that another has not, and whether some tile "
    "a shape.",
    "Sets of indices, listed one by one.",
    numbered([*_pair_cases(), *_tiling_cases()]),
)
