"""Drawings for notebooks: a tensor's shape cut into rectangles, meshes, and the flow of bytes
between slices.

A partition and a sharded variable draw their shape to scale, one rectangle a part; a layout draws
its mesh and its tensor, in which devices and their regions have one colour; a plan draws its
sources on the left, its targets on the right, and between them a band for each copy, as thick as
the bytes that move. All are SVG in the notebook's own colours. Callers pass plain numbers and
texts: this layer imports no other, so every layer may draw with it.

Tables for notebooks, in the notebook's own colours; the text of a cell never becomes markup.
"""

from collections.abc import Collection, Sequence
from html import escape

from shardvar.pictures.words import count, human_shape, one_line

LINE = "1px solid rgba(128,128,128,.28)"
QUIET = "opacity:.66"
BAD = "color:#d0453c"

_CELL = "padding:2px 14px 2px 0;background:none;vertical-align:top"
_MONO = "font-family:ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere;min-width:18ch"


class Markup(str):
    """HTML made by a module of this layer; it is not escaped again."""

    __slots__ = ()


def shown(text: object) -> str:
    """As HTML without tags, or characters that move a cursor or reverse letters."""
    return text if isinstance(text, Markup) else escape(one_line(str(text)))


def html_table(
    headers: Sequence[object],
    rows: Sequence[Sequence[object]],
    right: Collection[int] = (),
    more: int = 0,
) -> Markup:
    """Cells are texts or ``Markup``; columns in ``right`` are flush right; ``more`` rows are left out."""
    head = "".join(
        '<th scope="col" '
        f'style="{_CELL};{QUIET};font-weight:400;{_align(at, right)}">{shown(text)}</th>'
        for at, text in enumerate(headers)
    )
    body = "".join(f"<tr>{_cells(row, right)}</tr>" for row in rows)
    rest = f'<div style="{QUIET}">and {more:,} more</div>' if more else ""
    return Markup(
        '<table style="border-collapse:collapse;font-size:13px;margin:6px '
        f'0"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>{rest}"
    )


def html_block(title: object, about: Sequence[object], *parts: Markup) -> str:
    """Return a title, a line of facts, and parts below them."""
    facts = " · ".join(shown(each) for each in about)
    heading = f'<div><b>{shown(title)}</b></div><div style="{QUIET}">{facts}</div>'
    return f'<div style="font-size:13px;line-height:1.45">{heading}{"".join(parts)}</div>'


def bar(part: int, whole: int) -> Markup:
    # At least one pixel for a part above 0: 1 of 10^6 would be 0.0001 of the 96 pixels wide.
    width = max(round(96 * part / whole, 1), 1.0) if part and whole else 0.0
    return Markup(
        '<svg width="96" height="9" role="img" '
        f'aria-label="{100 * part / whole if whole else 0:.0f} %" '
        f'style="vertical-align:middle"><rect width="96" height="9" fill="rgba(128,128,128,.14)"/>'
        f'<rect width="{width}" height="9" fill="#4f86d9"/></svg>'
    )


def bad(text: object) -> Markup:
    return Markup(f'<span style="{BAD}">{shown(text)}</span>')


def _cells(row: Sequence[object], right: Collection[int]) -> str:
    # Names and messages stand at the ends of a row and may be wrapped; the cells between them are
    # short.
    between = range(1, len(row) - 1)
    return "".join(
        f'<td style="{_CELL};border-top:{LINE};{_align(at, right)};'
        f'{"" if at else _MONO}{"white-space:nowrap" if at in between else ""}">{shown(cell)}</td>'
        for at, cell in enumerate(row)
    )


def _align(column: int, right: Collection[int]) -> str:
    return (
        "text-align:right;font-variant-numeric:tabular-nums"
        if column in right
        else "text-align:left"
    )


Rectangle = tuple[Sequence[int], Sequence[int]]
"""An offset and a shape, in elements of the tensor."""

Named = tuple[int, str, int]
"""The row of a slice, its name, and its number of elements."""

HUES = (214, 36, 168, 330, 268, 56, 192, 12)
"""Hues that stay distinct under the common kinds of colour blindness, the most different first."""

MOST_RECTANGLES = 400
"""Rectangles that are drawn; more would be thinner than a line."""

MOST_MOVES = 60
"""Copies up to which a plan is drawn; more bands would hide each other."""

_MOST_ROWS = 16

_SHAPE_WIDTH = 320
_DEVICE_WIDTH, _DEVICE_HEIGHT = 40, 22
_FLOW_WIDTH, _COLUMN, _GAP = 460, 96, 3


def colour(number: int) -> str:
    """Colours repeat, so the number is also written."""
    return f"hsl({HUES[number % len(HUES)]} 48% 58%)"


def drawn_axes(shape: Sequence[int], rectangles: Sequence[Rectangle]) -> tuple[int, ...]:
    """At most two: axes that are cut before axes that are not."""
    axes = range(len(shape))
    cut = [axis for axis in axes if any(extent[axis] != shape[axis] for _, extent in rectangles)]
    return tuple(sorted([*cut, *(axis for axis in axes if axis not in cut)][:2]))


def rectangles_svg(
    shape: Sequence[int],
    rectangles: Sequence[Rectangle],
    label: str,
    numbers: Sequence[int] | None = None,
) -> Markup:
    """Each axis has its own scale; without ``numbers``, the rectangles are counted."""
    axes = drawn_axes(shape, rectangles)
    down = shape[axes[0]] if len(axes) == 2 else 1
    across = shape[axes[-1]] if axes else 1
    # A table of 10^6 rows and 16 columns to scale would be a hairline, so the height is clamped.
    height = (
        44 if len(axes) < 2 else round(max(70.0, min(220.0, _SHAPE_WIDTH * down / max(across, 1))))
    )
    drawn = [
        _numbered(
            number,
            _span(each, axes[-1:], across, _SHAPE_WIDTH),
            _span(each, axes[:-1], down, height),
        )
        for number, each in zip(
            numbers or range(len(rectangles)), rectangles[:MOST_RECTANGLES], strict=False
        )
    ]
    words = [
        f"axis {axis} {'↓' if axis == axes[0] and len(axes) == 2 else '→'} {shape[axis]:,}"
        for axis in axes
    ]
    if len(rectangles) > MOST_RECTANGLES:
        words.append(f"{len(rectangles) - MOST_RECTANGLES:,} more are not drawn")
    caption = shown(" · ".join(words) or "a scalar")
    size = f'width="{_SHAPE_WIDTH}" height="{height}"'
    return Markup(
        f'<svg {size} viewBox="0 0 {_SHAPE_WIDTH} {height}" role="img" aria-label="{shown(label)}" '
        f'style="display:block;margin:6px 0 2px"><rect {size} fill="rgba(128,128,128,.14)"/>'
        f'{"".join(drawn)}</svg><div style="opacity:.66">{caption}</div>'
    )


def flow_svg(
    sources: Sequence[tuple[str, int]],
    targets: Sequence[tuple[str, int]],
    moves: Sequence[tuple[int, int, int]],
    noun: str = "slices",
) -> Markup:
    """Draw moves (source, target, size), in order, between columns of (label, size)."""
    most = max(sum(size for _, size in sources), sum(size for _, size in targets), 1)
    height = max(80, 22 * max(len(sources), len(targets)))
    # The gaps of the longer column come off first; the sizes share the rest.
    scale = (height - _GAP * max(len(sources), len(targets), 1)) / most
    left, right = _tops(sources, scale), _tops(targets, scale)
    # Each band begins where the previous one ended, on either side.
    bands, next_left, next_right = [], list(left), list(right)
    for source, target, size in moves:
        bands.append(_band(next_left[source], next_right[target], size * scale, source))
        next_left[source] += size * scale
        next_right[target] += size * scale
    columns = [
        *_column(sources, left, scale, 0, True),
        *_column(targets, right, scale, _FLOW_WIDTH - _COLUMN, False),
    ]
    label = f"{len(moves)} copies from {len(sources)} {noun} to {len(targets)}"
    return Markup(
        f'<svg width="{_FLOW_WIDTH}" height="{height}" viewBox="0 0 {_FLOW_WIDTH} {height}" '
        'role="img" '
        f'aria-label="{label}" style="display:block;margin:6px 0">'
        f"{''.join(bands)}{''.join(columns)}</svg>"
    )


def partition_html(shape: Sequence[int], parts: Sequence[Rectangle]) -> str:
    """Return a partition as HTML: its parts, as (offset, shape), in the order of the shards."""
    drawing = rectangles_svg(shape, parts, f"{human_shape(shape)} in {count(len(parts), 'part')}")
    rows = [
        (number, region_text(*part), human_shape(part[1]))
        for number, part in enumerate(parts[:_MOST_ROWS])
    ]
    table = html_table(("part", "region", "shape"), rows, more=len(parts) - len(rows))
    return html_block(
        f"Partition of {human_shape(shape)}", (count(len(parts), "part"),), drawing, table
    )


def mesh_svg(mesh: Sequence[int], devices: Sequence[int], numbers: Sequence[int]) -> Markup:
    """Devices in C order, a row for each index of all axes but the last, coloured by ``numbers``."""
    if len(devices) > MOST_RECTANGLES:
        return Markup("")
    columns = mesh[-1] if mesh else 1
    wide = min(_DEVICE_WIDTH, _SHAPE_WIDTH / columns)
    drawn = [
        _numbered(
            number,
            (round(place % columns * wide, 2), round(wide, 2)),
            (place // columns * _DEVICE_HEIGHT, _DEVICE_HEIGHT),
            device,
        )
        for place, (device, number) in enumerate(zip(devices, numbers, strict=True))
    ]
    width, height = round(columns * wide), len(devices) // columns * _DEVICE_HEIGHT
    return Markup(
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{count(len(devices), "device")}" style="display:block;margin:6px 0 '
        f'2px">{"".join(drawn)}</svg>'
    )


def layout_html(
    shape: Sequence[int],
    mesh: tuple[Sequence[int], str, Sequence[int]],
    groups: Sequence[tuple[Sequence[int], Sequence[Rectangle]]],
    about: Sequence[str],
) -> str:
    """``mesh`` is shape, name and devices; ``groups`` are devices that hold the same, with regions."""
    first_of = {device: devices[0] for devices, _ in groups for device in devices}
    held = [(devices[0], region) for devices, regions in groups for region in regions]
    label = f"{human_shape(shape)} on {count(len(mesh[2]), 'device')}"
    tensor = rectangles_svg(
        shape, [region for _, region in held], label, [number for number, _ in held]
    )
    rows = [
        (
            ", ".join(map(str, devices)),
            ", ".join(region_text(*each) for each in regions[:_MOST_ROWS]) or "nothing",
        )
        for devices, regions in groups[:_MOST_ROWS]
    ]
    return html_block(
        f"Layout of {human_shape(shape)} on the mesh {mesh[1]}",
        about,
        mesh_svg(mesh[0], mesh[2], [first_of[device] for device in mesh[2]]),
        tensor,
        html_table(("devices", "regions"), rows, more=len(groups) - len(rows)),
    )


def plan_html(
    num_sources: int,
    num_targets: int,
    moves: Sequence[tuple[Named, Named, str, int]],
    num_moves: int,
) -> str:
    """``moves`` holds the first copies: (source, target, region, elements)."""
    about = (
        count(num_sources, "source slice"),
        count(num_targets, "target slice"),
        count(num_moves, "region") + " moved",
    )
    rows = [
        (source[1], target[1], region, f"{size:,}")
        for source, target, region, size in moves[:_MOST_ROWS]
    ]
    table = html_table(("from", "to", "region", "elements"), rows, (3,), num_moves - len(rows))
    drawing = Markup("")
    if 0 < num_moves <= MOST_MOVES:
        # Rows count all slices of the plan; only slices that a copy touches are drawn, in the order
        # of their rows.
        sources = dict(sorted((source[0], source[1:]) for source, _, _, _ in moves))
        targets = dict(sorted((target[0], target[1:]) for _, target, _, _ in moves))
        left, right = [*sources], [*targets]
        bands = [(left.index(a[0]), right.index(b[0]), size) for a, b, _, size in moves]
        drawing = flow_svg([*sources.values()], [*targets.values()], bands)
    return html_block("Plan", about, drawing, table)


def redistribution_html(
    shape: Sequence[int],
    collective: str | None,
    totals: Sequence[tuple[int, int, int]],
    moves: Sequence[tuple[int, int, int]],
) -> str:
    """In elements. ``totals`` has (sent, received, peak) of each device."""
    crossing = sum(sent for sent, _, _ in totals)
    about = (collective or "no single collective", f"{crossing:,} elements cross")
    drawing = Markup("")
    if 0 < len(moves) <= MOST_MOVES:
        # The bars are what leaves and what arrives, so that no band begins beyond its bar.
        leaves, arrives = [0] * len(totals), [0] * len(totals)
        for sender, receiver, size in moves:
            leaves[sender] += size
            arrives[receiver] += size
        names = [f"device {device}" for device in range(len(totals))]
        left, right = (list(zip(names, sizes, strict=True)) for sizes in (leaves, arrives))
        drawing = flow_svg(left, right, moves, "devices")
    rows = [
        (device, *(f"{size:,}" for size in sizes))
        for device, sizes in enumerate(totals[:_MOST_ROWS])
    ]
    table = html_table(
        ("device", "sends", "receives", "peak"), rows, (1, 2, 3), len(totals) - len(rows)
    )
    return html_block(f"Redistribution of {human_shape(shape)}", about, drawing, table)


def variable_html(
    title: str, about: Sequence[str], shape: Sequence[int], shards: Sequence[tuple[Rectangle, str]]
) -> str:
    """Return a variable as HTML; ``shards`` has the region of each shard and its device."""
    regions = [region for region, _ in shards]
    drawing = rectangles_svg(shape, regions, f"{title} in {count(len(shards), 'shard')}")
    rows = [
        (number, region_text(*region), device)
        for number, (region, device) in enumerate(shards[:_MOST_ROWS])
    ]
    return html_block(
        title,
        about,
        drawing,
        html_table(("shard", "region", "device"), rows, more=len(shards) - len(rows)),
    )


def ledger_html(
    nbytes: int, messages: int, routes: Sequence[tuple[str, str, str, int, int]]
) -> str:
    rows = [(*names, f"{size:,}", number) for *names, size, number in routes[:_MOST_ROWS]]
    table = html_table(
        ("operation", "from", "to", "bytes", "messages"), rows, (3, 4), len(routes) - len(rows)
    )
    return html_block(
        "Transfers between devices", (f"{nbytes:,} bytes", count(messages, "message")), table
    )


def region_text(offset: Sequence[int], shape: Sequence[int]) -> str:
    """As NumPy writes an index: ``[5:9, 0:4]``."""
    return f"[{', '.join(f'{start}:{start + extent}' for start, extent in zip(offset, shape, strict=True))}]"


def _span(
    rectangle: Rectangle, axes: Sequence[int], whole: int, pixels: int
) -> tuple[float, float]:
    """Return the first pixel and the pixels of a rectangle along the axis in ``axes``, if any."""
    if not axes:
        return 0.0, float(pixels)
    (axis,) = axes
    # A shape without rows is drawn as one with a row, since its extent divides.
    scale = pixels / max(whole, 1)
    return round(rectangle[0][axis] * scale, 2), round(rectangle[1][axis] * scale, 2)


def _numbered(
    number: int, x: tuple[float, float], y: tuple[float, float], text: int | None = None
) -> str:
    """Draw a rectangle in the colour of a number, with a text if there is room."""
    if not x[1] or not y[1]:
        return ""  # a part without elements
    # A white edge would cover a rectangle that is hardly wider than the edge.
    drawn = (
        f'<rect x="{x[0]}" y="{y[0]}" width="{x[1]}" height="{y[1]}" fill="{colour(number)}" '
        f'stroke="#fff" stroke-width="{1 if min(x[1], y[1]) > 4 else 0}"/>'
    )
    # Room for three digits of 11 pixels; in less, the number would run into the next rectangle.
    if x[1] > 22 and y[1] > 13:
        text = number if text is None else text
        drawn += f'<text x="{x[0] + 5}" y="{y[0] + 12.5}" font-size="11" fill="#fff">{text}</text>'
    return drawn


def _tops(column: Sequence[tuple[str, int]], scale: float) -> list[float]:
    tops, top = [], 0.0
    for _, size in column:
        tops.append(top)
        top += size * scale + _GAP
    return tops


def _band(start: float, stop: float, thickness: float, number: int) -> str:
    # Two cubic curves whose control points lie halfway across, so that a band leaves and arrives
    # level.
    a, b = _COLUMN, _FLOW_WIDTH - _COLUMN
    middle = (a + b) / 2
    points = [round(y, 2) for y in (start, stop, stop + thickness, start + thickness)]
    path = f"M{a} {points[0]}C{middle} {points[0]} {middle} {points[1]} {b} {points[1]}"
    path += f"L{b} {points[2]}C{middle} {points[2]} {middle} {points[3]} {a} {points[3]}Z"
    return f'<path d="{path}" fill="{colour(number)}" fill-opacity=".45"/>'


def _column(
    slices: Sequence[tuple[str, int]], tops: Sequence[float], scale: float, x: int, is_source: bool
) -> list[str]:
    drawn = []
    for number, ((label, size), top) in enumerate(zip(slices, tops, strict=True)):
        # Half a pixel, so that a slice of few bytes next to large ones does not vanish.
        height = max(size * scale, 0.5)
        fill = colour(number) if is_source else "rgba(128,128,128,.34)"
        drawn.append(
            f'<rect x="{x}" y="{top:.2f}" width="{_COLUMN}" height="{height:.2f}" fill="{fill}"/>'
        )
        if height > 11:
            text = label if len(label) < 16 else f"{label[:14]}…"
            ink = "#fff" if is_source else "currentColor"
            drawn.append(
                f'<text x="{x + 5}" y="{top + 11.5:.2f}" font-size="10.5" '
                f'fill="{ink}">{shown(text)}</text>'
            )
    return drawn
