"""Output: lines and JSON on standard output, notes and progress on standard error.

Every text passes through here, where control characters are escaped: a text of a file cannot reach
a terminal in another way.

At a terminal long lines are folded between words, and some have colours. A pipe gets whole lines.
At a terminal rich draws tables. If one is too wide, the columns that the caller can do without go
first, then the middle of long names; a table whose columns are all needed becomes a block of lines
a row. A pipe gets plain columns, one whole line a row. Cells must be ``printable`` already.
"""

import errno
import io
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from operator import itemgetter
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

from shardvar.errors import AmbiguousPath, CheckpointError, MissingExtra, ShardvarError
from shardvar.pictures.words import (
    all_tensors,
    count,
    human_age,
    human_count,
    human_shape,
    human_size,
    human_tensors,
    human_time,
    message,
    one_line,
    printable,
    short_name,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.text import Text

    from shardvar.verbs.reader import Reader


__all__ = [
    "all_tensors",
    "count",
    "human_age",
    "human_count",
    "human_shape",
    "human_size",
    "human_tensors",
    "human_time",
    "one_line",
    "path_on_a_line",
    "printable",
    "short_name",
    "short_path",
]  # fmt: skip

NARROWEST = 20
"""The fewest cells for names in the first column; below that, rows become blocks."""

_LINE = 120

_UNBROKEN = r"[0-9] [kMGTP]?B\b|`[^`]*`"
"""Texts that no line breaks: a number with its unit, and a command, which is copied and pasted."""


def print_json(value: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Print one JSON object, or a list, in ASCII, so that keys survive any terminal and pipe."""
    import json  # a listing for people needs no JSON

    print(json.dumps(value, indent=2, allow_nan=False))


def print_csv(rows: Iterable[dict[str, Any]]) -> None:
    """Print rows as RFC 4180 has them, lists and objects in JSON."""
    for number, row in enumerate(rows):
        for cells in [row.values()] if number else [row, row.values()]:
            put(",".join(map(_csv_cell, cells)))


def _csv_cell(cell: Any) -> str:
    import json

    text = json.dumps(cell) if isinstance(cell, list | dict) else "" if cell is None else str(cell)
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if any(mark in text for mark in ',"\r\n') else text


_ASCII = str.maketrans("├└│─…→×", "|`|-~>x")
"""The characters for the symbols of tables where the encoding of a terminal lacks these."""


def encodable(text: str) -> str:
    """Return a text without cells or characters that the terminal cannot print."""
    if can_print(text):
        return text
    encoding = sys.stdout.encoding or "ascii"
    return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)


asked = Namespace(color="auto", tree=False)
"""The choices of ``--color``, and of ``--tree``, which asks for the layout of a terminal."""


def at_terminal() -> bool:
    return asked.tree or sys.stdout.isatty()


def is_styled(stream: TextIO | None = None) -> bool:
    """Return True if texts have colours: as asked, as the environment says, or at a terminal."""
    if asked.color != "auto" or os.environ.get("NO_COLOR"):
        return bool(asked.color == "always")
    if {os.environ.get(name, "") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")} - {"", "0"}:
        return True
    return (stream or sys.stdout).isatty() and not _is_dumb()


def terminal_size() -> os.terminal_size:
    """Return the columns and lines of the terminal; the environment may set them."""
    from shutil import get_terminal_size  # a pipe needs neither it nor the codecs that it imports

    return get_terminal_size()


def line_width() -> int:
    """Return the longest line of values: the terminal's width, at most 120; 120 for a pipe."""
    return min(terminal_size().columns, _LINE) if at_terminal() else _LINE


Styles = Mapping[int | tuple[int, int], str]
"""The styles of a table, by column or by (row, column)."""

Mark = Literal["good", "bad", "attention", "different"]
"""The meaning of an answer: as it should be, broken, not known, different."""

_SYMBOLS = MappingProxyType(
    {
        "good": ("✓", "green"),
        "bad": ("✗", "red"),
        "attention": ("!", "yellow"),
        "different": ("≠", "cyan"),
    }
)


def answer(mark: Mark, text: str, verdict: str = "") -> None:
    """The symbol and colour are for terminals only, so no line needs them to be understood."""
    symbol, style = _SYMBOLS[mark]
    text = one_line(text)
    has_symbol = at_terminal() and can_print(symbol)
    if not (has_symbol or is_styled()):
        say(text)
        return
    from rich.text import Text

    text = seen_from_here(text)
    if has_symbol:  # it stands for this word
        text = f"{symbol} {text.removeprefix('ok: ')}"
    first, *others = _lines_of(text)
    line = Text(first)
    line.stylize(style, 0, len(symbol) if has_symbol else 0)
    if verdict and (place := first.find(verdict)) >= 0:
        line.stylize(f"bold {style}", place, place + len(verdict))
    _print_texts([line, *map(Text, others)])


def can_print(symbol: str) -> bool:
    """Return True if the encoding of standard output has a symbol, or all characters of a text."""
    try:
        symbol.encode(sys.stdout.encoding or "ascii")
    except UnicodeError:
        return False
    return True


def say(text: str, bold: Sequence[str] = ()) -> None:
    """Print a line of a report, with paths as seen from here and the words of ``bold`` in bold."""
    lines = _lines_of(seen_from_here(one_line(text)))
    _print_styled(lines, (lambda line: line.highlight_words(bold, "bold")) if bold else None)


def _lines_of(text: str) -> list[str]:
    """Return the lines of a text: folded at a terminal, one in a pipe."""
    return folded(encodable(text)) if at_terminal() else [text]


def seen_from_here(text: str) -> str:
    """Return a text in which paths below the working directory are relative to it."""
    inside = _here()
    if inside != os.sep:
        # Only where a path begins, since /data/m is inside / and not inside /m.
        text = re.sub(rf"(?<![^\s'\"(]){re.escape(inside)}(?=[^\s/])", "", text)
    return text


def paths_as_typed(text: str, words: Sequence[str]) -> str:
    return text if any(_here() in word for word in words) else seen_from_here(text)


def _here() -> str:
    """Return the working directory, with a separator at its end: /data/ab is not inside /data/a."""
    try:
        return os.path.join(os.getcwd(), "")
    except FileNotFoundError:  # it was removed, so nothing is inside it
        return os.sep


def folded(text: str, stream: TextIO | None = None) -> list[str]:
    """Return a line as lines that fit a terminal, unless a word does not; later ones are indented."""
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    width = max(_columns(stream), NARROWEST)
    # ``wrap`` breaks lines at spaces, for which a NUL stands where no line may end.
    text = re.sub(_UNBROKEN, lambda found: found[0].replace(" ", "\0"), text)
    lines = wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def _columns(stream: TextIO | None) -> int:
    with suppress(OSError, ValueError):
        if stream is not None and "COLUMNS" not in os.environ:
            return os.get_terminal_size(stream.fileno()).columns
    return terminal_size().columns


def warn(text: str) -> None:
    """Print a line that asks for attention: with an exclamation mark, yellow at a terminal."""
    _print_styled(_lines_of(one_line(text)), lambda line: line.stylize("yellow"))


def put(*lines: str) -> None:
    for line in lines:
        print(one_line(line))


def print_bold(line: str, word: str) -> None:
    line = one_line(line)
    place = line.find(word)
    style = None if place < 0 else lambda text: text.stylize("bold", place, place + len(word))
    _print_styled([line], style)


def _print_styled(lines: Sequence[str], style: "Callable[[Text], object] | None") -> None:
    if style is None or not is_styled():
        print("\n".join(lines))
        return
    from rich.text import Text

    texts = [*map(Text, lines)]
    for text in texts:
        style(text)
    _print_texts(texts)


def _print_texts(texts: Sequence["Text"]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, **_forced())
    for text in texts:
        console.print(text, soft_wrap=True)


def _forced() -> dict[str, Any]:
    """Return the options of a console of rich that colours a pipe if that is asked for."""
    is_forced = is_styled() and not sys.stdout.isatty()
    return {"force_terminal": True, "color_system": "standard"} if is_forced else {}


_COLOURS = MappingProxyType({"error": "1;31", "hint": "36"})
"""The codes of a terminal for the first word of a note: bold red, cyan. Rich is too slow to import
for an error."""


def note(text: str) -> None:
    """Print a line for people on standard error; if that is closed or full, it is lost."""
    text = one_line(text)
    with suppress(OSError):
        if sys.stderr.isatty():
            text = "\n".join(folded(text, sys.stderr))
        if is_styled(sys.stderr) and text.partition(":")[0] in _COLOURS:
            word, colon, rest = text.partition(":")
            text = f"\x1b[{_COLOURS[word]}m{word}{colon}\x1b[0m{rest}"
        print(text, file=sys.stderr)


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


class _ClosedOutput(io.TextIOBase):
    """Standard output that the caller has closed: writing fails, as it does on a full disk."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed")


class _ClosedNotes(io.TextIOBase):
    """Standard error that the caller has closed, which drops all text."""

    def write(self, text: str) -> int:
        return len(text)


def replace_closed_streams() -> None:
    """Cron jobs have none: printing a result must then fail, and a note may be lost."""
    if sys.stdout is None or sys.stderr is None:
        # A file that is opened gets the lowest free number. If it were 1 or 2, what libraries print
        # would go into it.
        for descriptor in range(3):
            try:
                os.fstat(descriptor)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
        sys.stdout = sys.stdout or _ClosedOutput()
        sys.stderr = sys.stderr or _ClosedNotes()


def drop_output() -> None:
    """Python flushes it once more when it exits, and would then print another error."""
    _drop(sys.stdout)


def drop_notes() -> None:
    """Lead standard error to the null device if what was written to it cannot be stored."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    with suppress(OSError, ValueError):  # the stream may not be a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_NARROW = 60
"""Columns below which a progress bar has no bar: it and its figures need some 56."""


@contextmanager
def progress(what: str, total: Callable[[], int]) -> Iterator[Callable[[int], object]]:
    """``total`` may read an index, so it is called only where there is a bar."""
    if not sys.stderr.isatty() or _is_dumb():
        yield lambda _nbytes: None
        return
    # Rich is imported where it draws: pipes and scripts do without its start-up time.
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    name = bars.TextColumn("{task.description}", markup=False)
    columns: list[bars.ProgressColumn] = [name, bars.TaskProgressColumn()]
    if console.width >= _NARROW:  # all of them would wrap into two lines elsewhere
        columns = [name, bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn()]
    columns.append(bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=console, transient=True) as bar:
        whole = total()
        task = bar.add_task(what, total=whole)

        def advance(nbytes: int) -> None:
            bar.advance(task, nbytes)
            # What lies between payloads may be read with them, and is counted.
            if bar.tasks[0].completed > whole:
                bar.update(task, completed=whole)

        yield advance


def _cut(text: str, width: int) -> str:
    """Return a text of at most so many cells, with an ellipsis for its middle."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    tail = text
    while cell_len(tail) > (width - 1) // 3:
        tail = tail[1:]
    return set_cell_size(text, width - 1 - cell_len(tail)) + encodable("…") + tail


def shortened(text: str, width: int) -> str:
    return _cut(encodable(text), width)


def ellipsis() -> str:
    """Return what stands for the rest of a text: ``…``, or three dots if the terminal lacks it."""
    return "…" if can_print("…") else "..."


def short_path(path: str) -> str:
    """Return a path as a person in the working directory would type it."""
    return printable(path.removeprefix(_here()))


def path_on_a_line(path: str) -> str:
    """Return ``short_path``; at a terminal without the middle of one that is longer than a line."""
    shown = short_path(path)
    if not at_terminal():
        return shown
    width = max(_columns(None), NARROWEST) - 1  # for the colon after it
    return _cut(shown, width) if len(shown) > width else shown


_MOST_PRETTY = 2000
"""Rows beyond which a table is plain even at a terminal; rich would take seconds to lay out
more."""

_BETWEEN = 2

_PORTION = 256
"""Rows of a piped table that are measured and printed together."""

_SEPARATOR = "\0"
"""A letter that no cell has: cells are safe to print."""

_WIDEST_NAME, _WIDEST = 255, 120
"""The widths up to which columns are padded, of names and others; longer cells shift their rows."""

_GUIDE = r"[│├└─|`\- ]*(?=[^ ])"
"""The branches of a tree before a name."""

_LEFT_TO_RIGHT = "\u200e"
"""An invisible letter after which a terminal goes on from the left."""


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[int] = (),
    drop: Sequence[int] | None = None,
    styles: Styles = MappingProxyType({}),
    bold: Collection[int] = (),
    hidden: Collection[int] = (),
) -> None:
    """At a narrow terminal, columns in ``drop`` go in order, then names are cut; not without ``drop``.
    ``styles`` are by column or (row, column); columns in ``hidden`` are left out anywhere.
    """
    kept = [column for column in range(len(headers)) if column not in hidden]
    if at_terminal():
        rows = [[one_line(encodable(cell)) for cell in row] for row in rows]
        if len(rows) <= _MOST_PRETTY:
            if not is_styled():
                styles, bold = {}, ()
            _print_rich(headers, rows, kept, right, drop, styles, bold)
            return
    # Each row is kept as one text until the widths are known: millions of cells take far more.
    # Portions of rows are measured and printed by columns, and a row by row takes twice as long.
    widths, texts, shown = [0] * len(kept), list[str](), itemgetter(*kept)
    for some in _portions(map(shown, chain([headers], rows))):
        for column, cells in enumerate(zip(*some, strict=True)):
            widest = _WIDEST if column else _WIDEST_NAME
            fitting = (length for length in map(len, cells) if length <= widest)
            widths[column] = max(widths[column], *fitting, 0)
        texts += [_SEPARATOR.join(row) for row in some]
    for lines in _portions(texts):
        columns = zip(*(line.split(_SEPARATOR) for line in lines), strict=True)
        padded = [
            [cell.rjust(width) if kept[column] in right else cell.ljust(width) for cell in cells]
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
    shown: Sequence[int],
    right: Sequence[int],
    drop: Sequence[int] | None,
    styles: Styles,
    bold: Collection[int],
) -> None:
    from unicodedata import bidirectional

    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Rich takes a terminal without control codes (TERM=dumb) for 80 columns wide unless both
    # extents are given.
    width, height = terminal_size()
    console = Console(
        width=width, height=height, highlight=False, markup=False, emoji=False, **_forced()
    )
    widths = [
        max(cell_len(line[column]) for line in [headers, *rows]) for column in range(len(headers))
    ]
    gone = _dropped(widths, shown, [column for column in drop or () if column in shown], width)
    kept = [column for column in shown if column not in gone]
    # Cells left for the names.
    left = width - sum(widths[column] + _BETWEEN for column in kept[1:])
    if left < (widths[0] if drop is None else min(widths[0], NARROWEST)):
        _print_stacked(headers, rows, shown[1:], width)
        return
    table = Table.grid(padding=(0, _BETWEEN, 0, 0))
    for column in kept:
        side: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(justify=side, no_wrap=True)
    dim = "dim" if is_styled() else ""
    table.add_row(*(Text(headers[column], style=dim) for column in kept))
    for number, row in enumerate(rows):
        name, *others = row[0], *(row[column] for column in kept[1:])
        # Right-to-left letters would take the numbers after them along.
        if others and any(bidirectional(each) in ("R", "AL") for each in name):
            others[0] = _LEFT_TO_RIGHT + others[0]
        label = Text(shortened(name, left), style="bold" if number in bold else "")
        if is_styled() and (found := re.match(_GUIDE, name)):
            label.stylize("not bold dim", 0, found.end())
        cells = zip(kept[1:], others, strict=True)
        styled = [(text, styles.get((number, c), styles.get(c, ""))) for c, text in cells]
        table.add_row(label, *(Text(text, style) for text, style in styled))
    console.print(table)
    # Of other names that are cut, a wider terminal shows the whole.
    if any(cell_len(row[0]) > width for row in rows):
        text = "A pipe has names whole that no terminal of this width can show."
        console.print(Text(text, style=dim))


def _dropped(
    widths: Sequence[int], shown: Sequence[int], drop: Sequence[int], width: int
) -> set[int]:
    """Return the first columns of ``drop`` that must go so that a table fits."""
    gone: set[int] = set()
    for column in drop:
        rest = sum(widths[each] + _BETWEEN for each in shown[1:] if each not in gone)
        # Before the last one goes, names are cut to the fewest cells.
        fewest = NARROWEST if column == drop[-1] else 2 * NARROWEST
        if min(widths[0], fewest) + rest <= width:
            break
        gone.add(column)
    return gone


def _print_stacked(
    headers: Sequence[str], rows: Sequence[Sequence[str]], others: Sequence[int], width: int
) -> None:
    """Print the first cell of each row, and below it other cells with their headers."""
    for row in rows:
        if row[0].strip("│| "):  # not only branches
            put(row[0])
        cells = [f"{headers[each]} {row[each]}".strip() for each in others if row[each]]
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
    """A bar for 0 to 1 in eighths of a cell; at least one eighth for any part."""
    eighths = max(round(8 * _BAR * part), 1) if part else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


_MOST_SEARCHED = 100
"""The folders that are searched for a note, which must not take longer than the command."""
_MOST_NAMED = 3
"""The names in a note; it counts the others."""


def notes_about(arguments: Namespace) -> list[str]:
    """Return a note for each folder among the arguments that holds other checkpoints than its path means."""
    notes = []
    paths = dict.fromkeys(_paths(arguments, "path", "a", "b", "source"))
    # ``verify`` is about all that is in a folder, and so is ``diff`` of two.
    is_whole = getattr(arguments, "latest", False) or arguments.command == "verify"
    if arguments.command == "diff":
        keyed = arguments.filter, arguments.exclude, arguments.rename, arguments.map
        is_whole = all(map(os.path.isdir, paths)) and not any(keyed)
    for folder in [] if is_whole else filter(os.path.isdir, paths):
        with suppress(ShardvarError):  # the command reports the error
            if text := _text(folder, arguments.command == "inspect"):
                notes.append(f"note: {text}")
    for path in dict.fromkeys(_paths(arguments, "path", "a", "b")):  # ``reshard`` refuses parts
        with suppress(ShardvarError):
            # Not above: `--help` does without them.
            from shardvar.formats.sets import split_numbers
            from shardvar.verbs.locate import find_checkpoints

            whole = path if "://" in path else os.path.abspath(path)
            if not split_numbers(whole)[1] or len(found := find_checkpoints(path)) != 1:
                continue
            if found[0].members:
                continue
            from shardvar.formats.parts import find_part

            kind, others = find_part(found[0].format, found[0].storage, found[0].name)
            if kind is not None:
                parts = f"one of {len(others) + 1:,} parts" if others else "one part"
                notes.append(f"note: {short_path(path)} is {parts} of a larger save: {kind.what}")
    return notes


def num_lines(notes: Sequence[str]) -> int:
    return sum(len(folded(each)) for each in notes)


def _paths(arguments: Namespace, *names: str) -> Iterator[str]:
    for name in names:
        given = getattr(arguments, name, [])
        yield from [given] if isinstance(given, str) else given


def _text(folder: str, lists_several: bool) -> str:
    """Return the sentence about a folder; empty if its path means all in it, or all is listed."""
    # Not above: paths of files do without it.
    from shardvar.formats.parts import PartsFormat
    from shardvar.formats.table import is_companion
    from shardvar.verbs.locate import find_below, look_at
    from shardvar.verbs.newest import contents_of

    place = look_at(folder)
    meant = find_below(place)
    if any(isinstance(each.format, PartsFormat) for each in meant):
        return ""
    if sets := [each.about_members for each in meant if each.members]:
        return sets[0]
    is_listed = lists_several and len(meant) > 1
    found = contents_of(place, meant, 0 if is_listed else _MOST_SEARCHED)
    here = [each for each in found.others if each.storage == place.storage]
    below = [each.path for each in found.others if each not in here and not is_companion(each.name)]
    if all(each.storage != place.storage for each in meant):
        below = []  # the place means the folders
    if is_listed:
        here, below = [], []
    files, paths = [each.name for each in here], [os.path.relpath(path, folder) for path in below]
    parts = [_named(files)] * bool(files)
    if paths:
        parts.append(f"{count(len(paths), 'checkpoint')} in folders ({_named(paths)})")
    if found.links:
        parts.append(f"links out of it that are not followed ({_named(found.links)})")
    if not parts:
        return ""
    first = [*files, *paths, *found.links][0]
    shown = short_path(os.path.normpath(os.path.join(folder, first)))
    whole = "; ".join(parts)
    return f"{short_path(folder)} also contains {whole}. See one: `shardvar inspect {shown}`"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(printable, names[:_MOST_NAMED])) + more


_WITHIN = "gguf"
"""The format whose blocks have their scales within them, so that no key changes."""


def note_numbers(reader: "Reader", dequantize: bool | str) -> None:
    """Print which tensors became numbers and which scales are left out, or that nothing changed."""
    if dequantize is False:
        return
    # Imported on use: a command without the option does not pay for it.
    from shardvar.verbs.dequantization import notes_of

    notes = notes_of(reader.source)
    if not notes and reader.format != _WITHIN:
        notes = [f"nothing to dequantize: no tensor of {reader.path} is quantised"]
    for each in notes:
        note(f"note: {message(each)}")


def note_dequantized(paths: Iterable[str], dequantize: bool | str) -> None:
    """As ``note_numbers``, of the checkpoints at some paths."""
    from shardvar.verbs.load import open_checkpoint

    for path in paths if dequantize is not False else ():
        with open_checkpoint(path, dequantize=dequantize) as reader:
            note_numbers(reader, dequantize)


@contextmanager
def executor_of(arguments: Namespace) -> Iterator["Executor | None"]:
    """Start the workers that the options ask for, and end them; None if they ask for none."""
    if arguments.workers is None and arguments.dask is None:
        yield None
        return
    from shardvar.cli.workers import started

    with started(arguments.workers, arguments.dask, note) as executor:
        yield executor


_MOST_UNREAD = 5
"""The files that a note names."""


def note_unread(what: str, names: Sequence[str], everything: bool) -> None:
    most = len(names) if everything else _MOST_UNREAD
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    note(f"note: {what}: {', '.join(map(printable, names[:most]))}{more}")


def payload_nbytes(path: str) -> int:
    """Return the payload bytes of a checkpoint, for a progress bar; 0 if unreadable."""
    from shardvar.verbs.load import open_checkpoint

    return nbytes_of(lambda: open_checkpoint(path))


def nbytes_of(opened: Callable[[], "Reader"]) -> int:
    try:
        with opened() as reader:
            return int(reader.entries().slices.nbytes.sum())
    except (AmbiguousPath, CheckpointError, MissingExtra):
        return 0
