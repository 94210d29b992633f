"""docs/images/layers.svg shows the layers of docs/design.md as the imports are today."""

from xml.etree import ElementTree

from spec_tests.helpers.layer_picture import (
    BOX_WIDTH,
    FACE,
    PICTURE,
    across,
    imported,
    picture,
    reached,
    reduced,
    rows,
)
from spec_tests.helpers.layers import ALLOWED


def test_the_picture_is_current() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), (
        "docs/images/layers.svg is old: run `make layers`."
    )


def test_what_is_drawn_leads_exactly_where_the_imports_lead() -> None:
    """An arrow may be left out only where others say the same."""
    arrows = imported()
    drawn = reduced(arrows)
    assert all(reached(layer, drawn) == reached(layer, arrows) for layer in arrows)
    for layer, targets in drawn.items():
        for target in targets:
            fewer = {**drawn, layer: targets - {target}}
            assert target not in reached(layer, fewer), f"{layer} -> {target} follows from others"


def test_every_layer_is_drawn_once_and_above_what_it_imports() -> None:
    names = [
        each.text
        for each in ElementTree.fromstring(picture()).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert sorted(map(str, names)) == sorted(
        layer.removeprefix("reference.") for layer in ALLOWED if layer not in FACE
    )
    arrows = reduced(imported())
    height = {
        layer: number
        for number, row in enumerate(rows(arrows))
        for layer, passing in row
        if not passing
    }
    assert all(
        height[layer] > height[target] for layer, targets in arrows.items() for target in targets
    )


def test_no_arrow_passes_behind_a_box() -> None:
    """An arrow that goes in at the top of a box and out below would seem to begin there."""
    for row in rows(reduced(imported())):
        middles = dict(across(row))
        boxes = [x for (_, passing), x in middles.items() if not passing]
        passing_by = [x for (_, passing), x in middles.items() if passing]
        assert all(abs(x - middle) > BOX_WIDTH // 2 for x in passing_by for middle in boxes)
