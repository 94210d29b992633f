"""Drawings and tables, and what values show of themselves in a notebook, whole: their HTML is the
recorded one.

``python -m spec_tests.view.test_drawings`` records it again, after a change of the look.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.layout import Partition
from shardvar.layout.meshes import (
    DTensorPlacement,
    Layout,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    dtensor,
    plan_redistribution,
)
from shardvar.pictures import drawings
from shardvar.pictures.drawings import Markup, Rectangle
from shardvar.planning.plan import plan_copies
from shardvar.planning.slices import TensorTable
from spec_tests.helpers.hypothesis_strategies import table_of
from spec_tests.helpers.paths import GOLDEN

RECORD = GOLDEN / "pictures" / "drawings.json"
"""The HTML of each drawing by its name."""


def _rows(count: int, width: int = 2) -> list[Rectangle]:
    return [((row, 0), (1, width)) for row in range(count)]


def _regions(*shapes: Sequence[int]) -> list[Rectangle]:
    """Rectangles of these shapes, each of which begins at (1, 2, 3, ...)."""
    return [(tuple(range(1, len(shape) + 1)), shape) for shape in shapes]


# A name, a function, and its arguments.
_DRAWN: list[tuple[str, str, list[object]]] = [
    ("bars", "bar", []),
    ("text", "bad", ["<b>\u202e"]),
    ("markup", "shown", [Markup("<b>")]),
    ("table", "html_table", [("a", "<b>"), [("x", 1), (Markup("<i></i>"), "\n")]]),
    ("table of numbers", "html_table", ["abcd", [range(4), "wxyz"], (1, 3), 1234]),
    ("block", "html_block", ["<t>", ["1", "<2>"], Markup("<p></p>"), Markup("<q></q>")]),
    ("scalar", "rectangles_svg", [(), [((), ())], "<label>"]),
    ("vector", "rectangles_svg", [(7,), [((0,), (3,)), ((3,), (4,))], "", [9, 8]]),
    ("no rows", "rectangles_svg", [(0, 4), [((0, 0), (0, 4))], ""]),
    ("no columns", "rectangles_svg", [(3, 0), [], ""]),
    ("tall", "rectangles_svg", [(1_000_000, 2), [((0, 0), (250_000, 2))], ""]),
    ("wide", "rectangles_svg", [(2, 1_000_000), [((1, 70_000), (1, 12_500))], ""]),
    ("to scale", "rectangles_svg", [(13, 32), [((3, 2), (5, 11)), ((8, 4), (5, 1))], "a"]),
    ("cut at the end", "rectangles_svg", [(2, 3, 4, 5), _regions((2, 3, 4, 2), (2, 3, 4, 3)), ""]),
    ("cut in between", "rectangles_svg", [(9, 9, 9, 9), _regions((9, 3, 2, 9), (9, 1, 9, 9)), ""]),
    ("room for numbers", "rectangles_svg", [(320, 320), [
        ((0, 0), (40, 22)), ((0, 100), (20, 50)), ((50, 0), (19, 23)), ((50, 100), (21, 24)),
        ((90, 0), (5, 6)), ((90, 100), (6, 4)), ((99, 0), (7, 5))], ""]),
    ("flow", "flow_svg", [[("a", 5), ("<b>", 3)], [("c" * 15, 2), ("d" * 16, 4), ("e", 0), ("f", 1)],
                          [(0, 0, 2), (0, 1, 3), (1, 1, 1), (1, 3, 1)]]),
    ("flow of devices", "flow_svg", [[("a", 1), ("b", 1000)], [("c", 700)], [(1, 0, 600)], "devices"]),
    ("nothing flows", "flow_svg", [[], [], []]),
    ("partition", "partition_html", [(17, 2), _rows(17)]),
    ("whole", "partition_html", [(16, 2), [((0, 0), (16, 2))]]),
    ("mesh", "mesh_svg", [(2, 3), (5, 4, 3, 2, 1, 0), (0, 0, 1, 1, 12, 12)]),
    ("long mesh", "mesh_svg", [(2, 2, 9), range(36), range(36)]),
    ("mesh of one", "mesh_svg", [(), (7,), (7,)]),
    ("layout", "layout_html", [(18, 2), ((3,), "(x=3)", (2, 0, 1)),
                               [((2, 0), _rows(17)), ((1,), [])], ("about", "<it>")]),
    ("layout of many", "layout_html", [(18, 2), ((18,), "(x=18)", range(18)),
                                       [((n,), _rows(n + 1)[n:]) for n in range(18)], ()]),
    ("plan", "plan_html", [3, 1, [((7, "g", 5), (4, "t", 9), "[0:5]", 1200),
                                  ((2, "f", 4), (4, "t", 9), "[5:9]", 4)], 2]),
    ("plan of nothing", "plan_html", [0, 0, [], 0]),
    ("redistribution", "redistribution_html", [(4, 2), "all_gather", [(1200, 3, 4), (2, 0, 1)],
                                               [(0, 0, 1200), (0, 1, 7), (1, 1, 2)]]),
    ("redistribution of many", "redistribution_html", [(4,), None, [(0, 0, 1)] * 18, [(0, 1, 2)]]),
    ("redistribution of nothing", "redistribution_html", [(), None, [], []]),
    ("variable", "variable_html", ["<v>", ("f4",), (17, 2), [(each, "ps:0") for each in _rows(17)]]),
    ("ledger", "ledger_html", [1234, 1, [("read", "ps:0", "ps:1", 1200 + n, n) for n in range(17)]]),
]  # fmt: skip


def _layout(*placements: DTensorPlacement) -> Layout:
    return dtensor((7, 4), sv.Mesh((3, 2), ("dp", "tp")), placements)


def _redistribution(placement: DTensorPlacement) -> object:
    source, target = (dtensor((6, 6), sv.Mesh((3,)), [each]) for each in (Shard(0), placement))
    return plan_redistribution(source, target)


def _variable() -> Any:
    with sv.ParameterServerStrategy(3, sv.FixedShardsPartitioner(3)).scope():
        return sv.Variable(np.zeros((13, 4), np.float32), name="<b>table")


def _ledger(*read: Any) -> object:
    with sv.track_transfers() as ledger:
        for variable in read:
            variable.read_value()
    return ledger


def _plan() -> object:
    tensors = TensorTable.of([("table", "float32", (13, 4))])
    parts = (Partition.from_counts((13, 4), (count, 1)).parts for count in (3, 5))
    return plan_copies(*(table_of(tensors, [(0, part) for part in some]) for some in parts))


# What is shown of itself.
_SHOWN: dict[str, Callable[[], Any]] = {
    "a partition": lambda: Partition.from_counts((13, 4), (5, 1)),
    "a layout of shards": lambda: _layout(Shard(0), Shard(1)),
    "a layout of copies": lambda: _layout(Shard(0), Replicate()),
    "a layout of terms": lambda: _layout(StridedShard(0, 3), Partial()),
    "an order of devices": lambda: dtensor(
        (4,), sv.Mesh((2, 2), devices=(3, 1, 2, 0)), [Shard(0), Replicate()]
    ),
    "an exchange": lambda: _redistribution(Shard(1)),
    "a gather": lambda: _redistribution(Replicate()),
    "nothing to move": lambda: _redistribution(Shard(0)),
    "a sharded variable": _variable,
    "a ledger": lambda: _ledger(_variable()),
    "an empty ledger": _ledger,
    "a plan of copies": _plan,
}


def _drawn(function: str, arguments: Sequence[object]) -> str:
    if function == "bar":
        pairs = ((0, 0), (0, 5), (1, 10**6), (1, 3), (2, 3), (3, 3))
        return "".join(drawings.bar(*pair) for pair in pairs)
    return str(getattr(drawings, function)(*arguments))


@pytest.mark.parametrize(
    ("name", "function", "arguments"), _DRAWN, ids=[each[0] for each in _DRAWN]
)
def test_a_drawing_is_the_recorded_one(name: str, function: str, arguments: list[object]) -> None:
    assert _drawn(function, arguments) == json.loads(RECORD.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("name", _SHOWN)
def test_a_value_shows_itself_as_recorded(name: str) -> None:
    """Devices that hold the same have one colour; what a device keeps is a band, too."""
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    assert str(_SHOWN[name]()._repr_html_()) == recorded


@pytest.mark.parametrize(("count", "drawn"), [(400, 400), (401, 400), (1_635, 400)])
def test_many_parts_are_counted_and_many_devices_are_not_drawn(count: int, drawn: int) -> None:
    svg = drawings.rectangles_svg((count, 2), _rows(count), "")
    assert svg.count("<rect") == 1 + drawn
    assert svg.endswith(f" · {count - drawn:,} more are not drawn</div>") == (count > drawn)
    mesh = drawings.mesh_svg((count,), range(count), range(count))
    assert mesh.count("<rect") == (count if count == drawn else 0)
    assert isinstance(mesh, Markup)


@pytest.mark.parametrize("count", [0, 1, 59, 60, 61])
def test_a_flow_of_more_than_sixty_copies_is_a_table_alone(count: int) -> None:
    moves = [((0, "g", 99), (0, "t", 99), "[0:1]", 1)] * count
    paths = count if count <= 60 else 0
    html = drawings.plan_html(1, 1, moves, count)
    assert (html.count("<path"), html.count("<svg"), html.count("<tr>")) == (
        paths,
        bool(paths),
        1 + min(count, 16),
    )
    assert (f"and {count - 16} more" in html) == (count > 16)
    html = drawings.redistribution_html((4,), None, [(count, 0, 1)] * 2, [(0, 1, 1)] * count)
    assert (html.count("<path"), html.count("<svg")) == (paths, bool(paths))


if __name__ == "__main__":
    found = {name: _drawn(function, arguments) for name, function, arguments in _DRAWN}
    found |= {name: str(make()._repr_html_()) for name, make in _SHOWN.items()}
    RECORD.write_text(json.dumps(found, indent=0, ensure_ascii=True) + "\n", encoding="utf-8")
