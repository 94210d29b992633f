"""What moves from where to where: slices on two sides, and bands between them as thick as the bytes that move."""

from collections.abc import Sequence

from shardvar.pictures.boxes import colour
from shardvar.pictures.table import Markup, shown

_WIDTH, _COLUMN, _GAP = 460, 96, 3


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
    boxes = [*_column(sources, left, scale, 0, True), *_column(targets, right, scale, _WIDTH - _COLUMN, False)]
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
    a, b = _COLUMN, _WIDTH - _COLUMN
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
