"""Write docs/images/layers.svg, the layers and what they import: ``python spec_tests/write_layers.py``.

1. The arrows are those of the imports in the package, not of the table that allows them. The face, ``shardvar``
   itself, through which the top layers may reach any public name, is no layer and has none.
2. An arrow that follows from others is left out: what a layer imports is what can be reached from it.
3. A layer stands one row above the highest that it imports, and as near as can be to those that its arrows lead to.

The same imports give the same bytes; ``test_layer_picture.py`` holds that the picture is of today's.
"""

import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(path) for path in (HERE, HERE.parent) if str(path) not in sys.path]

from test_architecture import ALLOWED, MODULES, imports_of, layer_of  # noqa: E402 - found by the line above

PICTURE = HERE.parent / "docs" / "images" / "layers.svg"

WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT, MARGIN = 860, 84, 132, 40, 24

Arrows = dict[str, set[str]]

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de; }
  .box { fill: #eef4fb; stroke: #2f6db3; stroke-width: 1.2; }
  .arrow { fill: none; stroke: #57606a; stroke-width: 1.3; marker-end: url(#head); }
  .head { fill: #57606a; }
  text { font: 600 15px ui-sans-serif, system-ui, sans-serif; fill: #1f2328; text-anchor: middle; }
"""


def imported() -> Arrows:
    """What each layer imports, in the order of the table."""
    arrows: Arrows = {layer: set() for layer in ALLOWED if not layer.startswith("__")}
    for path in MODULES:
        layer = layer_of(path)
        if layer in arrows:
            arrows[layer] |= {f"{target}..".split(".")[1] for _, target in imports_of(path) if is_ours(target)}
    return {layer: (targets - {layer}) & arrows.keys() for layer, targets in arrows.items()}


def is_ours(target: str) -> bool:
    return f"{target}.".startswith("shardvar.")


def reached(layer: str, arrows: Arrows) -> set[str]:
    """What can be reached from a layer by one arrow or more."""
    return arrows[layer].union(*(reached(target, arrows) for target in arrows[layer]))


def reduced(arrows: Arrows) -> Arrows:
    """The fewest arrows from which the others follow."""
    return {
        layer: {each for each in targets if not any(each in reached(other, arrows) for other in targets)}
        for layer, targets in arrows.items()
    }


def rows(arrows: Arrows) -> list[list[str]]:
    """The layers from the lowest row to the highest, each row from left to right."""
    height: dict[str, int] = {}
    for layer in arrows:  # in the table, what is imported stands above
        height[layer] = 1 + max((height[target] for target in arrows[layer]), default=-1)
    found: list[list[str]] = [[] for _ in range(max(height.values()) + 1)]
    place: dict[str, float] = {}
    for row, layers in enumerate(found):
        layers += [layer for layer in arrows if height[layer] == row]
        if row > 1:  # the first rows stand as in the table, and pull the others after them
            layers.sort(key=lambda layer: sum(place[target] for target in arrows[layer]) / len(arrows[layer]))
        place |= {layer: (number + 1) / (len(layers) + 1) for number, layer in enumerate(layers)}
    return found


def picture() -> str:
    """The picture as SVG."""
    arrows = reduced(imported())
    order = rows(arrows)
    tall = 2 * MARGIN + ROW * (len(order) - 1) + BOX_HEIGHT
    at = {
        layer: (round(WIDTH * (number + 1) / (len(layers) + 1)), MARGIN + ROW * (len(order) - 1 - row))
        for row, layers in enumerate(order)
        for number, layer in enumerate(layers)
    }
    told = "; ".join(f"{layer} imports {', '.join(sorted(arrows[layer]))}" for layer in arrows if arrows[layer])
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" width="{WIDTH}" height="{tall}"'
            ' role="img" aria-labelledby="title desc">',
            '<title id="title">The layers of shardvar</title>',
            f'<desc id="desc">{escape(told)}.</desc>',
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
            ' orient="auto"><path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{tall - 1}" rx="10"/>',
            *(curve(at[layer], at[target]) for layer in arrows for target in sorted(arrows[layer])),
            *(box(layer, *at[layer]) for layer in arrows),
            "</svg>\n",
        ]
    )


def curve(above: tuple[int, int], below: tuple[int, int]) -> str:
    """An arrow from the foot of one box to the head of another."""
    (x, y), (to_x, to_y) = (above[0], above[1] + BOX_HEIGHT), (below[0], below[1] - 2)
    bend = ROW // 2
    return f'<path class="arrow" d="M{x},{y} C{x},{y + bend} {to_x},{to_y - bend} {to_x},{to_y}"/>'


def box(layer: str, x: int, y: int) -> str:
    """A layer's box and its name."""
    return (
        f'<rect class="box" x="{x - BOX_WIDTH // 2}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="7"/>'
        f'<text x="{x}" y="{y + BOX_HEIGHT // 2 + 5}">{escape(layer)}</text>'
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
