"""Layouts of meshes: the indices that each device holds, and those that it must receive to hold
others."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from shardvar.spec import meshes
from shardvar.spec.meshes import Held
from shardvar.spec.redistribution import must_receive
from spec_tests.vector_generators.case import Case, Group, maker, numbered

Placement = Any
"""``"replicate"``, ``{"shard": axis}`` or ``{"strided": [axis, split_factor]}``."""

COPY = "replicate"


def shard(axis: int) -> Placement:
    """The placement that cuts an axis."""
    return {"shard": axis}


def strided(axis: int, factor: int) -> Placement:
    """The placement that cuts each of some ranges of an axis."""
    return {"strided": [axis, factor]}


def by_placements(
    shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Placement]
) -> list[Held]:
    """What each device holds, from placements as the vectors write them."""
    return meshes.by_placements(shape, mesh, [_plain(each) for each in placements])


def _plain(placement: Placement) -> meshes.Placement:
    if placement == COPY:
        return None
    if "shard" in placement:
        return int(placement["shard"])
    axis, factor = placement["strided"]
    return "strided", axis, factor


def told(held: Sequence[Held]) -> list[Held | None]:
    """The answer: null for a device that holds nothing."""
    return [axes if all(axes) else None for axes in held]


_PLACED: list[tuple[str, str, list[int], list[int], list[Placement], str]] = [
    ("rows", "V-MESH-1", [6, 4], [2], [shard(0)], "Another axis is cut."),
    ("columns", "V-MESH-1", [6, 4], [2], [shard(1)], "Only rows are cut."),
    ("last-axis", "V-MESH-1", [4, 6], [3], [shard(-1)], "A negative axis counts from the front."),
    ("copies", "V-MESH-1", [3, 2], [2], [COPY], "Copies are parts."),
    ("rows-and-copies", "V-MESH-1", [4, 3], [2, 2], [shard(0), COPY], "The first axis of the mesh varies fastest."),
    ("copies-and-rows", "V-MESH-1", [4, 3], [2, 2], [COPY, shard(0)], "The first axis of the mesh varies fastest."),
    ("grid", "V-MESH-1", [4, 6], [2, 3], [shard(0), shard(1)], "Placements are taken for axes of the tensor."),
    ("grid-turned", "V-MESH-1", [6, 4], [2, 3], [shard(1), shard(0)], "Placements are taken for axes of the tensor."),
    ("three-axes", "V-MESH-1", [2, 4, 2], [2, 1, 2], [shard(2), COPY, shard(1)], "An axis of one device is left out."),
    ("scalar", "V-MESH-1", [], [2], [COPY], "A scalar has no first axis."),
    ("no-rows", "V-MESH-1", [0, 3], [2], [shard(0)], "A division by zero, or a row that is made up."),
    ("twice", "V-MESH-2", [8], [2, 2], [shard(0), shard(0)], "The last mesh axis cuts first."),
    ("twice-uneven", "V-MESH-2", [5], [2, 2], [shard(0), shard(0)], "They are one cut by 4: 2 2 1 0, not 2 1 1 1."),
    ("twice-few", "V-MESH-2", [2], [2, 2], [shard(0), shard(0)], "Empty parts are taken to be the last ones."),
    ("three-times", "V-MESH-2", [11], [2, 2, 2], [shard(0), shard(0), shard(0)], "Only two cuts are known."),
    ("uneven", "V-MESH-3", [13, 2], [5], [shard(0)], "The div rule: 3 3 3 2 2, not 3 3 3 3 1."),
    ("few", "V-MESH-3", [6, 1], [4], [shard(0)], "The div rule: 2 2 1 1, not 2 2 2 0."),
    ("fewer", "V-MESH-3", [2], [5], [shard(0)], "A device without rows is left out."),
    ("uneven-grid", "V-MESH-3", [5, 7], [2, 3], [shard(0), shard(1)], "The last part is padded."),
    ("uneven-by-one", "V-MESH-3", [9], [8], [shard(0)], "All but the first get one: 2 2 2 2 1 0 0 0."),
    ("strided", "V-STRIDED-1", [8], [2], [strided(0, 2)], "A strided shard is one range."),
    ("strided-once", "V-STRIDED-1", [6], [3], [strided(0, 1)], "A factor of 1 is something else than a plain shard."),
    ("strided-uneven", "V-STRIDED-1", [5, 2], [2], [strided(0, 2)], "Ranges are rounded down: 0 1 is held, not 0 1 3."),
    ("strided-few", "V-STRIDED-1", [2], [2], [strided(0, 3)], "A range without rows ends the search."),
    ("strided-rows", "V-STRIDED-1", [8, 2], [2, 2], [strided(0, 2), shard(0)], "Both axes cut in the usual order."),
    ("strided-columns", "V-STRIDED-1", [2, 12], [3, 2], [strided(1, 2), shard(1)], "Only rows may be strided."),
    ("strided-between", "V-STRIDED-1", [12], [2, 3, 2], [shard(0), strided(0, 2), shard(0)], "Two axes are known."),
]  # fmt: skip

_REFUSED: list[tuple[str, list[int], list[int], list[Placement], str, str]] = [
    ("axis", [4, 2], [2], [shard(2)], "OutOfRange", "An axis that is missing is a copy."),
    (
        "negative-axis",
        [4, 2],
        [2],
        [shard(-3)],
        "OutOfRange",
        "A negative axis wraps around twice.",
    ),
    ("scalar", [], [2], [shard(0)], "OutOfRange", "A scalar is cut."),
    (
        "fewer-placements",
        [4],
        [2, 2],
        [shard(0)],
        "ArgumentError",
        "Placements that are missing are copies.",
    ),
    (
        "more-placements",
        [4, 4],
        [2],
        [shard(0), shard(1)],
        "ArgumentError",
        "Placements are one a tensor axis.",
    ),
    (
        "factor",
        [4],
        [2],
        [strided(0, 0)],
        "ArgumentError",
        "A division by zero, or nothing is held.",
    ),
]

_SPECS: list[tuple[str, list[int], dict[str, int], list[list[str]], list[int] | None, str]] = [
    (
        "rows",
        [4, 2],
        {"x": 2, "y": 2},
        [["x"]],
        None,
        "A spec that is shorter than the rank is refused.",
    ),
    ("columns", [4, 2], {"x": 2, "y": 2}, [[], ["y"]], None, "Entries are taken for mesh axes."),
    (
        "turned",
        [2, 4],
        {"x": 2, "y": 2},
        [["y"], ["x"]],
        None,
        "Names are taken in the order of the mesh.",
    ),
    ("both", [8], {"x": 2, "y": 2}, [["x", "y"]], None, "Two names on one axis are one."),
    ("both-turned", [8], {"x": 2, "y": 2}, [["y", "x"]], None, "The order of the names is lost."),
    (
        "both-of-several",
        [12, 2],
        {"x": 2, "y": 3, "z": 2},
        [["z", "x"], []],
        None,
        "A mesh axis between them counts.",
    ),
    (
        "devices",
        [4],
        {"x": 2, "y": 2},
        [["x", "y"]],
        [3, 1, 2, 0],
        "Devices are taken in the order of their numbers.",
    ),
    (
        "devices-and-copies",
        [4],
        {"x": 4, "y": 2},
        [["x"]],
        [5, 2, 7, 0, 3, 6, 1, 4],
        "Copies are of neighbours.",
    ),
    ("no-rows", [0, 2], {"x": 2}, [["x"]], None, "Zero rows do not divide."),
    ("no-names", [3, 2], {"x": 2}, [[], []], None, "A mesh must cut something."),
]

_BAD_SPECS: list[tuple[str, list[int], dict[str, int], list[list[str]], str, str]] = [
    (
        "uneven",
        [7, 2],
        {"x": 2},
        [["x"]],
        "LayoutError",
        "What does not divide is copied without an error.",
    ),
    (
        "uneven-together",
        [6],
        {"x": 2, "y": 2},
        [["x", "y"]],
        "LayoutError",
        "Each name alone divides.",
    ),
    (
        "twice",
        [4, 4],
        {"x": 2},
        [["x"], ["x"]],
        "ArgumentError",
        "A mesh axis cuts two axes, and elements are lost.",
    ),
    ("unknown", [4], {"x": 2}, [["w"]], "ArgumentError", "A name that is unknown is left out."),
    (
        "rank",
        [4],
        {"x": 2},
        [[], ["x"]],
        "OutOfRange",
        "Entries behind the last axis are left out.",
    ),
]

_FSDP: list[tuple[str, list[int], list[int], str]] = [
    ("even", [8, 2], [2, 2], "FSDP cuts first."),
    (
        "uneven",
        [7, 1],
        [3, 2],
        "The placements (strided, shard) are followed, and device 4 holds row 6, not device 5.",
    ),
    ("rows", [5, 1], [2, 2], "Both cuts are one by 4."),
    ("wide", [11, 1], [3, 3], "The placements are followed."),
]

_MOVES: list[tuple[str, list[int], list[int], list[Placement], list[Placement], str]] = [
    ("gather", [5, 2], [3], [shard(0)], [COPY], "A device receives what it holds already."),
    ("slice", [5, 2], [3], [COPY], [shard(0)], "Something moves, though each device has it."),
    ("rows-to-columns", [4, 4], [2], [shard(0)], [shard(1)], "The tensor is gathered first."),
    (
        "swap",
        [7, 5],
        [2, 2],
        [shard(0), shard(1)],
        [shard(1), shard(0)],
        "Devices 0 and 3 receive what they hold.",
    ),
    (
        "order",
        [8],
        [2, 2],
        [shard(0), shard(0)],
        [strided(0, 2), shard(0)],
        "Equal sizes are taken for equal layouts.",
    ),
    ("same", [6], [2, 2], [shard(0), COPY], [shard(0), COPY], "Equal layouts exchange something."),
    (
        "turn",
        [4],
        [2, 2],
        [shard(0), COPY],
        [COPY, shard(0)],
        "Copies of what it holds are sent to a device.",
    ),
    ("uneven", [5, 3], [2, 2], [shard(0), shard(0)], [COPY, shard(0)], "Padding is counted."),
    ("few", [1, 2], [3], [shard(0)], [shard(1)], "A device without rows sends some."),
]


def _layout(shape: list[int], mesh: list[int], placements: list[Placement]) -> dict[str, Any]:
    return {"shape": shape, "mesh": mesh, "placements": placements}


def _placed_cases() -> Iterator[Case]:
    for name, rule, shape, mesh, placements, bug in _PLACED:
        held = told(by_placements(shape, mesh, placements))
        case, inputs = maker("placements", rule, "placements-"), _layout(shape, mesh, placements)
        yield case(name, inputs, bug, held)
    case = maker("placements", "V-REFUSE-1", "placements-refused-")
    for name, shape, mesh, placements, error, bug in _REFUSED:
        yield case(name, _layout(shape, mesh, placements), bug, error=error)
    case = maker("fsdp", "V-FSDP-1", "fsdp-")
    for name, shape, mesh, bug in _FSDP:
        data, tensor = mesh
        held = told(meshes.fsdp(shape, (data, tensor), tp_axis=0))
        yield case(name, {"shape": shape, "mesh": mesh}, bug, held)


def _spec_cases() -> Iterator[Case]:
    case = maker("spec", "V-SPEC-1", "spec-")
    for name, shape, mesh, spec, devices, bug in _SPECS:
        order = devices or list(range(prod(mesh.values())))
        held = told(meshes.by_spec(shape, mesh, spec, order))
        yield case(name, _spec(shape, mesh, spec, order), bug, held)
    case = maker("spec", "V-REFUSE-1", "spec-refused-")
    for name, shape, mesh, spec, error, bug in _BAD_SPECS:
        inputs = _spec(shape, mesh, spec, list(range(prod(mesh.values()))))
        yield case(name, inputs, bug, error=error)


def _spec(
    shape: list[int], mesh: dict[str, int], spec: list[list[str]], devices: list[int]
) -> dict[str, Any]:
    names, extents = list(mesh), list(mesh.values())
    return {"shape": shape, "mesh": extents, "axis_names": names, "spec": spec, "devices": devices}


def _move_cases() -> Iterator[Case]:
    for name, shape, mesh, source, target, bug in _MOVES:
        before, after = (by_placements(shape, mesh, each) for each in (source, target))
        lacking = must_receive(shape, before, after)
        inputs = {"shape": shape, "mesh": mesh, "source": source, "target": target}
        yield Case(f"redistribute-{name}", "V-PLAN-1", "redistribute", inputs, bug, lacking)


GROUP = Group(
    "layouts",
    "Layouts of meshes: the indices that each device holds, and those that it must receive to "
    "hold others.",
    "Lists of indices, dealt out one mesh axis after the other; differences of sets.",
    numbered([*_placed_cases(), *_spec_cases(), *_move_cases()]),
)
