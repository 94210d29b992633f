"""Tables: rows of cells under headers, on standard output.

At a terminal rich draws them. If a table is too wide, the columns that the caller can do without go
first, then the middle of long names; a table whose columns are all needed becomes a block of lines
a row. A pipe gets plain columns, one whole line a row. Cells must be ``printable`` already; rich
interprets no markup.
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from shutil import get_terminal_size
from textwrap import wrap
from types import MappingProxyType
from typing import Literal, TypeVar
from unicodedata import bidirectional

from shardvar.cli.output import NARROWEST, encodable, is_styled, one_line, put, shortened

_MOST_PRETTY = 2000
"""Rows beyond which a table is plain even at a terminal; rich would take seconds to lay out
more."""

_BETWEEN = 2
"""Cells between two columns of a table."""

_PORTION = 256
"""Rows of a piped table that are measured and printed together."""

_SEPARATOR = "\0"
"""A letter that no cell has: cells are safe to print."""

_WIDEST = 60
"""The width up to which plain columns are padded, unless a caller says another."""

_GUIDE = re.compile(r"[│├└─|`\- ]*(?=[^ ])")
"""The branches of a tree before a name."""

_LEFT_TO_RIGHT = "\u200e"
"""An invisible letter after which a terminal goes on from the left."""


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[int] = (),
    drop: Sequence[int] | None = None,
    styles: Mapping[int | tuple[int, int], str] = MappingProxyType({}),
    bold: Collection[int] = (),
    widest: int = _WIDEST,
) -> None:
    """Print rows of cells under headers; columns whose number is in ``right`` are set flush right.

    In a pipe, columns are padded up to ``widest``; a longer cell shifts its row.

    If a terminal is too narrow, the columns in ``drop`` go, the first of them first, and then names
    in the first column are cut in their middle. Without ``drop`` nothing goes and nothing is cut.
    At a terminal with colours, columns and cells (row, column) have the ``styles``, the names of
    the rows ``bold`` are so, and the branches of a tree are dim.
    """
    if sys.stdout.isatty():
        rows = [[one_line(encodable(cell)) for cell in row] for row in rows]
        if len(rows) <= _MOST_PRETTY:
            _print_rich(
                headers,
                rows,
                right,
                drop,
                styles if is_styled() else {},
                bold if is_styled() else (),
            )
            return
    _print_plain(headers, rows, right, widest)


def _print_plain(
    headers: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int], widest: int
) -> None:
    # Each row is kept as one text until the widths are known: millions of cells take far more.
    # Portions of rows are measured and printed by columns, and a row by row takes twice as long.
    widths, texts = [0] * len(headers), list[str]()
    for some in _portions(chain[Sequence[str]]([headers], rows)):
        for column, cells in enumerate(zip(*some, strict=True)):
            widths[column] = max(widths[column], min(max(map(len, cells)), widest))
        texts += [_SEPARATOR.join(row) for row in some]
    for lines in _portions(texts):
        columns = zip(*(line.split(_SEPARATOR) for line in lines), strict=True)
        padded = [
            [cell.rjust(width) if column in right else cell.ljust(width) for cell in cells]
            for column, (cells, width) in enumerate(zip(columns, widths, strict=True))
        ]
        put(*("  ".join(row).rstrip() for row in zip(*padded, strict=True)))


_Item = TypeVar("_Item")


def _portions(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    items = iter(items)
    while some := list(islice(items, _PORTION)):
        yield some


def _print_rich(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int],
    drop: Sequence[int] | None,
    styles: Mapping[int | tuple[int, int], str],
    bold: Collection[int],
) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Rich takes a terminal without control codes (TERM=dumb) for 80 columns wide unless both
    # extents are given.
    width, height = get_terminal_size()
    console = Console(width=width, height=height, highlight=False, markup=False, emoji=False)
    widths = [
        max(cell_len(line[column]) for line in [headers, *rows]) for column in range(len(headers))
    ]
    gone = _dropped(widths, drop or (), width)
    kept = [column for column in range(len(headers)) if column not in gone]
    # Cells left for the names.
    left = width - sum(widths[column] + _BETWEEN for column in kept[1:])
    if left < (widths[0] if drop is None else min(widths[0], NARROWEST)):
        _print_stacked(headers, rows, width)
        return
    table = Table.grid(padding=(0, _BETWEEN, 0, 0))
    for column in kept:
        side: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(justify=side, no_wrap=True)
    table.add_row(*(Text(headers[column], style="dim" if is_styled() else "") for column in kept))
    for number, row in enumerate(rows):
        name, *others = row[0], *(row[column] for column in kept[1:])
        if others and _is_right_to_left(name):
            others[0] = _LEFT_TO_RIGHT + others[0]
        label = Text(shortened(name, left), style="bold" if number in bold else "")
        if is_styled() and (found := _GUIDE.match(name)):
            label.stylize("not bold dim", 0, found.end())
        table.add_row(
            label,
            *(
                Text(text, styles.get((number, column), styles.get(column, "")))
                for column, text in zip(kept[1:], others, strict=True)
            ),
        )
    console.print(table)
    # Of other names that are cut, a wider terminal shows the whole.
    if any(cell_len(row[0]) > width for row in rows):
        console.print(
            Text(
                "A pipe has names whole that no terminal of this width can show.",
                style="dim" if is_styled() else "",
            )
        )


def _is_right_to_left(text: str) -> bool:
    """Return True if a text has letters of a right-to-left script, which would take the numbers
    after it along."""
    return not text.isascii() and any(bidirectional(each) in ("R", "AL") for each in text)


def _dropped(widths: Sequence[int], drop: Sequence[int], width: int) -> set[int]:
    """Return the first columns of ``drop`` that must go so that a table fits."""
    gone: set[int] = set()
    for column in drop:
        rest = sum(
            each + _BETWEEN for number, each in enumerate(widths) if number and number not in gone
        )
        # Before the last one goes, names are cut to the fewest cells.
        fewest = NARROWEST if column == drop[-1] else 2 * NARROWEST
        if min(widths[0], fewest) + rest <= width:
            break
        gone.add(column)
    return gone


def _print_stacked(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> None:
    """Print the first cell of each row, and below it the other cells with their headers."""
    for first, *others in rows:
        if first.strip("│| "):  # not only branches
            put(first)
        named = zip(headers[1:], others, strict=True)
        cells = [f"{header} {cell}".strip() for header, cell in named if cell]
        # NULs stand for the spaces inside a cell, so that a cell stays on one line if a line can
        # hold it.
        cells = [cell.replace(" ", "\0") if len(cell) <= width - 4 else cell for cell in cells]
        for line in wrap(
            "  ".join(cells), max(width - 4, 1), break_long_words=False, break_on_hyphens=False
        ):
            put("    " + line.replace("\0", " "))


_BAR = 10
"""The cells of a bar that stands for all."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


def share_bar(part: float) -> str:
    """Return a bar for a part of the whole, from 0 to 1, in eighths of a cell; at least one eighth
    for any part.

    >>> share_bar(0.5), share_bar(0.01), share_bar(0.0)
    ('█████', '▏', '')
    """
    eighths = max(round(8 * _BAR * part), 1) if part else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
