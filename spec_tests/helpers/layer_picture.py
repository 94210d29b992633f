"""Write docs/images/layers.svg, the layers and what they import: ``make layers``.

1. The arrows are those of the imports in the package, not of the table that allows them. The face,
   ``shardvar`` itself, through which the top layers may reach any public name, is no layer and has
   none.
2. An arrow that follows from others is left out: what a layer imports is what can be reached from
   it.
3. A layer stands one row above the highest that it imports, and as near as can be to those that its
   arrows lead to. An arrow that leads further down passes between the boxes of the rows in between,
   never behind one.

The same imports give the same bytes; ``test_architecture.py`` holds that the picture is of
today's.
"""

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from statistics import mean

from spec_tests.helpers import paths
from spec_tests.helpers.layers import ALLOWED, REFERENCE, TOOL
from spec_tests.helpers.source_code import MODULES, imports_of, layer_of, layer_of_module, reached

PICTURE = paths.DOCS / "images" / "layers.svg"

WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT, GAP, MARGIN = 900, 88, 124, 40, 26, 24

FACE = {"_version", "__main__", "layouts"}
"""What is no layer: the version, the way in, and a list of public names."""

Arrows = dict[str, set[str]]
Spot = tuple[str, str]
"""A layer and nothing, or the two ends of an arrow that passes by."""

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de; }
  .foundation { fill: #eef4fb; stroke: #2f6db3; stroke-width: 1.2; }
  .tool { fill: #fdf3e4; stroke: #b3702f; stroke-width: 1.2; }
  .reference { fill: #eaf6ec; stroke: #2f8a4a; stroke-width: 1.2; }
  .arrow { fill: none; stroke: #57606a; stroke-width: 1.3; marker-end: url(#head); }
  .head { fill: #57606a; }
  text { font: 600 15px ui-sans-serif, system-ui, sans-serif; fill: #1f2328; text-anchor: middle; }
"""


def imported() -> Arrows:
    """Return the imports of each layer, in the order of the table."""
    arrows: Arrows = {layer: set() for layer in ALLOWED if layer not in FACE}
    for path in MODULES:
        layer = layer_of(path)
        if layer in arrows:
            arrows[layer] |= {
                layer_of_module(target) for _, target in imports_of(path) if is_ours(target)
            }
    return {layer: (targets - {layer}) & arrows.keys() for layer, targets in arrows.items()}


def is_ours(target: str) -> bool:
    return f"{target}.".startswith("shardvar.")


def reduced(arrows: Arrows) -> Arrows:
    """The fewest arrows from which the others follow."""
    return {
        layer: {
            each for each in targets if not any(each in reached(other, arrows) for other in targets)
        }
        for layer, targets in arrows.items()
    }


def heights(arrows: Arrows) -> dict[str, int]:
    """The row of each layer: one above the highest that it imports."""
    height: dict[str, int] = {}
    for layer in arrows:  # in the table, what is imported stands first
        height[layer] = 1 + max((height[target] for target in arrows[layer]), default=-1)
    return height


def ways(arrows: Arrows) -> list[list[Spot]]:
    """Each arrow as the spots that it leads through, one a row, so that it passes between the
    boxes."""
    height = heights(arrows)
    return [
        [
            (layer, ""),
            *((layer, target) for _ in range(height[layer] - height[target] - 1)),
            (target, ""),
        ]
        for layer in arrows
        for target in sorted(arrows[layer])
    ]


def rows(arrows: Arrows) -> list[list[Spot]]:
    """The spots of each row from left to right, from the lowest row to the highest: layers, and
    arrows that pass by."""
    height = heights(arrows)
    found: list[list[Spot]] = [[] for _ in range(max(height.values()) + 1)]
    below: dict[tuple[int, Spot], list[tuple[int, Spot]]] = {}
    for layer in arrows:
        found[height[layer]].append((layer, ""))
    for way in ways(arrows):
        steps = [(height[way[0][0]] - number, spot) for number, spot in enumerate(way)]
        for step, after in pairwise(steps):
            below.setdefault(step, []).append(after)
        for row, spot in steps[1:-1]:
            found[row].append(spot)
    place: dict[tuple[int, Spot], float] = {}
    for row, spots in enumerate(found):
        if row > 1:  # the lowest rows stand as in the table, and pull the others after them
            spots.sort(key=lambda spot: mean(place[step] for step in below[row, spot]))
        place |= {(row, spot): x for spot, x in across(spots)}
    return found


def across(spots: list[Spot]) -> Iterator[tuple[Spot, int]]:
    """The middle of each spot of a row, the row being centred."""
    widths = [GAP if target else BOX_WIDTH + GAP for _, target in spots]
    left = (WIDTH - sum(widths)) // 2
    for spot, width in zip(spots, widths, strict=True):
        yield spot, left + width // 2
        left += width


def picture() -> str:
    arrows = reduced(imported())
    order, height = rows(arrows), heights(arrows)
    tall = 2 * MARGIN + ROW * (len(order) - 1) + BOX_HEIGHT
    at = {(row, spot): x for row, spots in enumerate(order) for spot, x in across(spots)}
    told = "; ".join(
        f"{layer} imports {', '.join(sorted(arrows[layer]))}" for layer in arrows if arrows[layer]
    )
    lines = []
    for way in ways(arrows):
        top = height[way[0][0]]
        lines.append(
            curve(
                [at[top - number, spot] for number, spot in enumerate(way)],
                tall - MARGIN - top * ROW,
            )
        )
    boxes = [
        box(layer, at[height[layer], (layer, "")], tall - MARGIN - height[layer] * ROW)
        for layer in arrows
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" '
            f'width="{WIDTH}" height="{tall}"'
            ' role="img" aria-labelledby="title desc">',
            '<title id="title">The layers of shardvar</title>',
            f'<desc id="desc">{escape(told)}.</desc>',
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8"'
            ' orient="auto"><path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{tall - 1}" rx="10"/>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def curve(xs: list[int], foot: int) -> str:
    """An arrow from the foot of a box, by some ways between others, to the head of the one that it
    leads to."""
    path = [f"M{xs[0]},{foot}"]
    bend = (ROW - BOX_HEIGHT) // 2
    for number, (x, to_x) in enumerate(pairwise(xs)):
        y = foot + number * ROW
        head = y + ROW - BOX_HEIGHT
        path.append(f"C{x},{y + bend} {to_x},{head - bend} {to_x},{head}")
        path.append("" if number == len(xs) - 2 else f"L{to_x},{head + BOX_HEIGHT}")
    return f'<path class="arrow" d="{" ".join(path).strip()}"/>'


def wing_of(layer: str) -> str:
    return "tool" if layer in TOOL else "reference" if layer in REFERENCE else "foundation"


def box(layer: str, x: int, foot: int) -> str:
    """A layer's box and its name."""
    y = foot - BOX_HEIGHT
    return (
        f'<rect class="{wing_of(layer)}" x="{x - BOX_WIDTH // 2}" y="{y}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="7"/>'
        f'<text x="{x}" '
        f'y="{y + BOX_HEIGHT // 2 + 5}">{escape(layer.removeprefix("reference."))}</text>'
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
