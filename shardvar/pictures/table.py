"""Tables for notebooks, in the notebook's own colours; the text of a cell never becomes markup."""

from collections.abc import Collection, Sequence
from html import escape

from shardvar.pictures.words import one_line

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
