"""A tensor's shape as a rectangle, cut into the boxes that it is stored or held as."""

from collections.abc import Sequence

from shardvar.pictures.table import Markup, shown

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
