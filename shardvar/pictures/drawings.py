"""A tensor's shape as a rectangle, cut into the boxes that it is stored or held as."""

from collections.abc import Sequence

from shardvar.pictures.table import Markup, html_block, html_table, shown
from shardvar.pictures.words import count, human_shape

Box = tuple[Sequence[int], Sequence[int]]

HUES = (214, 36, 168, 330, 268, 56, 192, 12)
"""Hues that the usual kinds of colour blindness keep apart, most different first."""

MOST_BOXES = 400
"""Boxes that are drawn; more would be thinner than a line."""

_WIDTH = 320


def colour(number: int) -> str:
    """The colour of the box, file or slice of a number; every box says its number too."""
    return f"hsl({HUES[number % len(HUES)]} 48% 58%)"


def drawn_axes(shape: Sequence[int], boxes: Sequence[Box]) -> tuple[int, ...]:
    """At most two axes to draw: those that are cut before those that are not.

    >>> drawn_axes((2, 3, 4), [((0, 0, 0), (2, 3, 2)), ((0, 0, 2), (2, 3, 2))])
    (0, 2)
    """
    axes = range(len(shape))
    cut = [axis for axis in axes if any(extent[axis] != shape[axis] for _, extent in boxes)]
    return tuple(sorted([*cut, *(axis for axis in axes if axis not in cut)][:2]))


def boxes_svg(shape: Sequence[int], boxes: Sequence[Box], label: str) -> Markup:
    """The boxes to scale along each axis, the two axes not to one scale; each with its number if it has the room."""
    axes = drawn_axes(shape, boxes)
    down = shape[axes[0]] if len(axes) == 2 else 1
    across = shape[axes[-1]] if axes else 1
    height = 44 if len(axes) < 2 else round(max(70.0, min(220.0, _WIDTH * down / max(across, 1))))
    drawn = [
        _rectangle(number, _span(box, axes[-1:], across, _WIDTH), _span(box, axes[:-1], down, height))
        for number, box in enumerate(boxes[:MOST_BOXES])
    ]
    words = [f"axis {axis} {'↓' if axis == axes[0] and len(axes) == 2 else '→'} {shape[axis]:,}" for axis in axes]
    if len(boxes) > MOST_BOXES:
        words.append(f"{len(boxes) - MOST_BOXES:,} more are not drawn")
    caption = shown(" · ".join(words) or "a scalar")
    size = f'width="{_WIDTH}" height="{height}"'
    return Markup(
        f'<svg {size} viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{shown(label)}" '
        f'style="display:block;margin:6px 0 2px"><rect {size} fill="rgba(128,128,128,.14)"/>'
        f'{"".join(drawn)}</svg><div style="opacity:.66">{caption}</div>'
    )


def _span(box: Box, axes: Sequence[int], whole: int, pixels: int) -> tuple[float, float]:
    """Where a box begins and how long it is, in pixels, along the axis that is drawn, if there is one."""
    if not axes:
        return 0.0, float(pixels)
    (axis,) = axes
    scale = pixels / max(whole, 1)
    return round(box[0][axis] * scale, 2), round(box[1][axis] * scale, 2)


def _rectangle(number: int, x: tuple[float, float], y: tuple[float, float]) -> str:
    if not x[1] or not y[1]:
        return ""
    drawn = (
        f'<rect x="{x[0]}" y="{y[0]}" width="{x[1]}" height="{y[1]}" fill="{colour(number)}" '
        f'stroke="#fff" stroke-width="{1 if min(x[1], y[1]) > 4 else 0}"/>'
    )
    if x[1] > 22 and y[1] > 13:
        drawn += f'<text x="{x[0] + 5}" y="{y[0] + 12.5}" font-size="11" fill="#fff">{number}</text>'
    return drawn


# What moves from where to where: slices on two sides, and bands between them as thick as the bytes that move.


_FLOW_WIDTH, _COLUMN, _GAP = 460, 96, 3


def flow_svg(
    sources: Sequence[tuple[str, int]], targets: Sequence[tuple[str, int]], moves: Sequence[tuple[int, int, int]]
) -> Markup:
    """(label, size) of each source and target; (source, target, size) of each move. All sizes in one unit.

    Moves leave a source, and reach a target, in the order in which they are given.
    """
    most = max(sum(size for _, size in sources), sum(size for _, size in targets), 1)
    height = max(80, 22 * max(len(sources), len(targets)))
    scale = (height - _GAP * max(len(sources), len(targets), 1)) / most
    left, right = _tops(sources, scale), _tops(targets, scale)
    bands, gone, come = [], list(left), list(right)
    for source, target, size in moves:
        bands.append(_band(gone[source], come[target], size * scale, source))
        gone[source] += size * scale
        come[target] += size * scale
    boxes = [*_column(sources, left, scale, 0, True), *_column(targets, right, scale, _FLOW_WIDTH - _COLUMN, False)]
    label = f"{len(moves)} copies from {len(sources)} slices to {len(targets)}"
    return Markup(
        f'<svg width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{label}" style="display:block;margin:6px 0">'
        f"{''.join(bands)}{''.join(boxes)}</svg>"
    )


def _tops(boxes: Sequence[tuple[str, int]], scale: float) -> list[float]:
    tops, top = [], 0.0
    for _, size in boxes:
        tops.append(top)
        top += size * scale + _GAP
    return tops


def _band(start: float, stop: float, thickness: float, number: int) -> str:
    a, b = _COLUMN, _FLOW_WIDTH - _COLUMN
    middle = (a + b) / 2
    points = [round(y, 2) for y in (start, stop, stop + thickness, start + thickness)]
    path = f"M{a} {points[0]}C{middle} {points[0]} {middle} {points[1]} {b} {points[1]}"
    path += f"L{b} {points[2]}C{middle} {points[2]} {middle} {points[3]} {a} {points[3]}Z"
    return f'<path d="{path}" fill="{colour(number)}" fill-opacity=".45"/>'


def _column(
    boxes: Sequence[tuple[str, int]], tops: Sequence[float], scale: float, x: int, is_source: bool
) -> list[str]:
    drawn = []
    for number, ((label, size), top) in enumerate(zip(boxes, tops, strict=True)):
        height = max(size * scale, 0.5)
        fill = colour(number) if is_source else "rgba(128,128,128,.34)"
        drawn.append(f'<rect x="{x}" y="{top:.2f}" width="{_COLUMN}" height="{height:.2f}" fill="{fill}"/>')
        if height > 11:
            text = label if len(label) < 16 else f"{label[:14]}…"
            ink = "#fff" if is_source else "currentColor"
            drawn.append(f'<text x="{x + 5}" y="{top + 11.5:.2f}" font-size="10.5" fill="{ink}">{shown(text)}</text>')
    return drawn


# How partitions and plans show themselves in a notebook, told in plain numbers and texts.


MOST_MOVES = 60
"""Copies up to which a plan is drawn: more bands are no picture of anything."""

_MOST_ROWS = 16

Named = tuple[int, str, int]


def partition_html(shape: Sequence[int], boxes: Sequence[Box]) -> str:
    """The parts of a partition, as (offset, shape), in the order of the shards."""
    parts = count(len(boxes), "part")
    drawing = boxes_svg(shape, boxes, f"{human_shape(shape)} in {parts}")
    rows = [(number, region_text(*box), human_shape(box[1])) for number, box in enumerate(boxes[:_MOST_ROWS])]
    table = html_table(("part", "region", "shape"), rows, more=len(boxes) - len(rows))
    return html_block(f"Partition of {human_shape(shape)}", (parts,), drawing, table)


def plan_html(
    num_sources: int, num_targets: int, moves: Sequence[tuple[Named, Named, str, int]], num_moves: int
) -> str:
    """A plan, of whose copies ``moves`` are the first: (source, target, region, elements).

    Sources and targets come as (row, name, elements), so that slices that nothing moves from need not be told.
    """
    about = (
        count(num_sources, "source slice"),
        count(num_targets, "target slice"),
        count(num_moves, "region") + " moved",
    )
    rows = [(source[1], target[1], region, f"{size:,}") for source, target, region, size in moves[:_MOST_ROWS]]
    table = html_table(("from", "to", "region", "elements"), rows, (3,), num_moves - len(rows))
    drawing = _drawing(moves) if 0 < num_moves <= MOST_MOVES else Markup("")
    return html_block("Plan", about, drawing, table)


def region_text(offset: Sequence[int], shape: Sequence[int]) -> str:
    """A region as NumPy writes an index.

    >>> region_text((5, 0), (4, 4))
    '[5:9, 0:4]'
    """
    return f"[{', '.join(f'{start}:{start + extent}' for start, extent in zip(offset, shape, strict=True))}]"


def _drawing(moves: Sequence[tuple[Named, Named, str, int]]) -> Markup:
    sources = dict(sorted((source[0], source[1:]) for source, _, _, _ in moves))
    targets = dict(sorted((target[0], target[1:]) for _, target, _, _ in moves))
    place_s = {row: place for place, row in enumerate(sources)}
    place_t = {row: place for place, row in enumerate(targets)}
    bands = [(place_s[source[0]], place_t[target[0]], size) for source, target, _, size in moves]
    return flow_svg(list(sources.values()), list(targets.values()), bands)
