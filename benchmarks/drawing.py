"""Curves as SVG: a panel for each verb, both axes logarithmic, a dotted line in proportion to the
size or its inverse.

The picture brings its own light ground, so that it reads alike on light and dark pages. The same
curves give the same bytes.
"""

from html import escape
from math import ceil, floor, log10

from benchmarks.curves import Curve

PANEL, HEIGHT, LEFT, TOP, BOTTOM, GAP, LEGEND = 290, 230, 56, 54, 46, 66, 24
"""Pixels: the inside of a panel, and what is around it."""

OURS = "shardvar"
INKS = (
    "#c2410c",
    "#15803d",
    "#9333ea",
    "#a16207",
    "#0e7490",
    "#be185d",
    "#4d7c0f",
    "#57606a",
    "#7c2d12",
)

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de; }
  .grid { stroke: #e4e8ec; stroke-width: 1; }
  .guide { stroke: #8c959f; stroke-width: 1; stroke-dasharray: 2 4; }
  .curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
  .ours { stroke-width: 3; }
  text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; font-size: 14px; }
  .middle { text-anchor: middle; }
  .end { text-anchor: end; }
"""


def picture(title: str, curves: list[Curve]) -> str:
    """The curves of a family as SVG."""
    verbs = list(dict.fromkeys(curve.verb for curve in curves))
    programs = sorted(
        dict.fromkeys(curve.program for curve in curves), key=lambda name: name != OURS
    )
    inks = {
        name: "#1d4ed8" if name == OURS else INKS[number % len(INKS)]
        for number, name in enumerate(programs)
    }
    per_row = max(1, (len(verbs) * (PANEL + GAP)) // 165)
    rows = -(-len(programs) // per_row)
    width, height = GAP // 2 + len(verbs) * (PANEL + GAP), TOP + HEIGHT + BOTTOM + rows * LEGEND + 8
    told = "; ".join(
        f"{curve.verb}, {curve.program}: exponent {curve.exponent_text()}" for curve in curves
    )
    panels = [
        _panel(
            verb,
            [curve for curve in curves if curve.verb == verb],
            inks,
            LEFT + number * (PANEL + GAP),
        )
        for number, verb in enumerate(verbs)
    ]
    legend = [
        _legend(
            name,
            ink,
            LEFT + number % per_row * 165,
            TOP + HEIGHT + BOTTOM + 8 + number // per_row * LEGEND,
        )
        for number, (name, ink) in enumerate(inks.items())
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}"'
            ' role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(told)}.</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" '
            'rx="10"/>',
            *panels,
            *legend,
            "</svg>\n",
        ]
    )


def _panel(verb: str, curves: list[Curve], inks: dict[str, str], left: int) -> str:
    """One verb: grid, guide and curves."""
    sizes = sorted({size for curve in curves for size in curve.points})
    times = [seconds for curve in curves for seconds in curve.points.values()]
    low, high = floor(log10(min(times))), max(ceil(log10(max(times))), floor(log10(min(times))) + 1)
    first, last = log10(sizes[0]), max(log10(sizes[-1]), log10(sizes[0]) + 0.1)

    def at(size: float, seconds: float) -> tuple[float, float]:
        x = left + (log10(size) - first) / (last - first) * PANEL
        return round(x, 1), round(TOP + (high - log10(seconds)) / (high - low) * HEIGHT, 1)

    lines = [f'<text class="title" x="{left}" y="{TOP - 20}">{escape(verb)}</text>']
    for power in range(low, high + 1):
        _, y = at(sizes[0], 10.0**power)
        lines.append(f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{y}" y2="{y}"/>')
        lines.append(f'<text class="end" x="{left - 8}" y="{y + 4}">{_power(power)}</text>')
    for number, size in enumerate(sizes):
        x, _ = at(size, 1.0)
        lines.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{TOP + HEIGHT}"/>')
        if number % (len(sizes) // 6 + 1) == 0:
            label = escape(curves[0].axis.label(size))
            lines.append(f'<text class="middle" x="{x}" y="{TOP + HEIGHT + 18}">{label}</text>')
    lines.append(
        f'<text class="middle" x="{left + PANEL // 2}" '
        f'y="{TOP + HEIGHT + 36}">{curves[0].axis.title}</text>'
    )
    start, end = _guide(sizes, low, high, curves[0].axis.slope)
    (x1, y1), (x2, y2) = at(*start), at(*end)
    lines.append(f'<line class="guide" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')
    for curve in sorted(curves, key=lambda curve: curve.program == OURS):
        path = " ".join(
            f"{x:g},{y:g}" for x, y in (at(*point) for point in sorted(curve.points.items()))
        )
        style = "curve ours" if curve.program == OURS else "curve"
        lines.append(f'<polyline class="{style}" stroke="{inks[curve.program]}" points="{path}"/>')
    return "\n".join(lines)


def _guide(
    sizes: list[int], low: int, high: int, slope: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The ends of a line in an upper corner of a panel and where it leaves the panel: at the bottom
    or at a side."""
    most, span = 10.0**high, min(sizes[-1] / sizes[0], 10.0 ** (high - low))
    if slope < 0:
        return (sizes[0], most), (sizes[0] * span, most / span)
    return (sizes[-1] / span, most / span), (sizes[-1], most)


def _legend(name: str, ink: str, x: int, y: int) -> str:
    style = "curve ours" if name == OURS else "curve"
    return (
        f'<line class="{style}" stroke="{ink}" x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}"/>'
        f'<text x="{x + 30}" y="{y + 4}">{escape(name)}</text>'
    )


def _power(power: int) -> str:
    """A power of ten seconds."""
    for unit, least in (("s", 0), ("ms", -3)):
        if power >= least:
            return f"{10 ** (power - least):,} {unit}"
    return f"{10.0 ** (power + 6):g} us"
