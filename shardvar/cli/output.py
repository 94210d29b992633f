"""Output: lines and JSON on standard output, notes and progress on standard error.

Every text passes through here or through ``tables``, which escape control characters: a text of a file
cannot reach a terminal in another way.

At a terminal long lines are folded between words, and some have colours. A pipe gets whole lines.
"""

import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from shutil import get_terminal_size
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from shardvar.pictures.words import (
    count,
    human_age,
    human_count,
    human_shape,
    human_size,
    human_tensors,
    human_time,
    one_line,
    printable,
    short_name,
)

if TYPE_CHECKING:
    from rich.text import Text

NARROWEST = 20
"""The fewest cells for names in the first column; below that, rows become blocks."""

_LINE = 120
"""The longest line of values."""

_UNBROKEN = re.compile(r"[0-9] [kMGTP]?B\b|`[^`]*`")
"""Texts that no line breaks: a number with its unit, and a command, which is copied and pasted."""


def print_json(value: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Print one JSON object, or a list, in ASCII, so that keys survive any terminal and pipe."""
    print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))


_ASCII = str.maketrans("├└│─…→×", "|`|-~>x")
"""The characters for the symbols of tables where the encoding of a terminal lacks these."""


def encodable(text: str) -> str:
    """Return a text without cells or characters that the terminal cannot print."""
    if can_print(text):
        return text
    encoding = sys.stdout.encoding or "ascii"
    return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)


def is_styled() -> bool:
    """Return True if standard output is a terminal that shows colours, and the user has not turned
    them off."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and not _is_dumb()


def line_width() -> int:
    """Return the longest line of values: the terminal's width, at most 120; 120 for a pipe."""
    return min(get_terminal_size().columns, _LINE) if sys.stdout.isatty() else _LINE


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
    """Print the line that answers a command; at a terminal it begins with the symbol of its
    meaning, in its colour.

    The words of the ``verdict`` in it have that colour too, and are bold. A pipe, and a terminal
    that lacks the symbol, get only the words, so no line needs the symbol to be understood.
    """
    symbol, style = _SYMBOLS[mark]
    text = one_line(text)
    if not sys.stdout.isatty() or not can_print(symbol):
        say(text)
        return
    from rich.text import Text

    # The symbol stands for this word.
    first, *others = folded(f"{symbol} {seen_from_here(text).removeprefix('ok: ')}")
    line = Text(first)
    line.stylize(style, 0, len(symbol))
    if verdict and (place := first.find(verdict, len(symbol))) >= 0:
        line.stylize(f"bold {style}", place, place + len(verdict))
    _print_styled([line, *map(Text, others)])


def can_print(symbol: str) -> bool:
    """Return True if the encoding of standard output has a symbol, or all characters of a text."""
    try:
        symbol.encode(sys.stdout.encoding or "ascii")
    except UnicodeError:
        return False
    return True


def say(text: str, bold: Sequence[str] = ()) -> None:
    """Print a line of a report, with files as seen from the working directory; a terminal's is
    folded between words.

    A terminal with colours shows the words of ``bold`` so.
    """
    text = seen_from_here(one_line(text))
    if not sys.stdout.isatty():
        print(text)
        return
    lines = folded(encodable(text))
    if not (bold and is_styled()):
        print("\n".join(lines))
        return
    from rich.text import Text

    styled = [Text(line) for line in lines]
    for line in styled:
        line.highlight_words(bold, "bold")
    _print_styled(styled)


def seen_from_here(text: str) -> str:
    """Return a text in which paths below the working directory are relative to it."""
    inside = _here()
    if inside != os.sep:
        # Only where a path begins, since /data/m is inside / and not inside /m.
        text = re.sub(rf"(?<![^\s'\"(]){re.escape(inside)}(?=[^\s/])", "", text)
    return text


def paths_as_typed(text: str, words: Sequence[str]) -> str:
    """Return a text with paths as typed: from the working directory."""
    return text if any(_here() in word for word in words) else seen_from_here(text)


def _here() -> str:
    """Return the working directory, with a separator at its end: /data/ab is not inside /data/a."""
    try:
        return os.path.join(os.getcwd(), "")
    except FileNotFoundError:  # it was removed, so nothing is inside it
        return os.sep


def folded(text: str, stream: TextIO | None = None) -> list[str]:
    """Return a line for a terminal as lines that fit it, unless a word does not; they are indented
    by two more."""
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    width = max(_columns(stream), NARROWEST)
    # ``wrap`` breaks lines at spaces, for which a NUL stands where no line may end.
    text = _UNBROKEN.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def _columns(stream: TextIO | None) -> int:
    """Return the width of a terminal: standard output or another stream."""
    with suppress(OSError, ValueError):
        if stream is not None and "COLUMNS" not in os.environ:
            return os.get_terminal_size(stream.fileno()).columns
    return get_terminal_size().columns


def warn(text: str) -> None:
    """Print a line that asks for attention: with an exclamation mark, yellow at a terminal."""
    text = one_line(text)
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.text import Text

    _print_styled([Text(line, style="yellow") for line in folded(text)])


def put(*lines: str) -> None:
    """Print lines as they are, also long ones."""
    for line in lines:
        print(one_line(line))


def print_bold(line: str, word: str) -> None:
    """Print a line of a terminal in which the first place of a word is bold."""
    line = one_line(line)
    if not is_styled():
        print(line)
        return
    from rich.text import Text

    text, place = Text(line), line.find(word)
    if word and place >= 0:
        text.stylize("bold", place, place + len(word))
    _print_styled([text])


def _print_styled(lines: Sequence["Text"]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(line, soft_wrap=True)


_COLOURS = MappingProxyType({"error": "1;31", "hint": "36"})
"""The codes of a terminal for the first word of a note: bold red, cyan. Rich is too slow to import
for an error."""


def note(text: str) -> None:
    """Print a line for people on standard error, folded at a terminal; where that is closed or
    full, it is lost."""
    text = one_line(text)
    with suppress(OSError):
        if sys.stderr.isatty():
            text = "\n".join(folded(text, sys.stderr))
            word, colon, rest = text.partition(":")
            if word in _COLOURS and not os.environ.get("NO_COLOR") and not _is_dumb():
                text = f"\x1b[{_COLOURS[word]}m{word}{colon}\x1b[0m{rest}"
        print(text, file=sys.stderr)


def _is_dumb() -> bool:
    """Return True for a terminal that has no control codes."""
    return os.environ.get("TERM") == "dumb"


class _ClosedOutput(io.TextIOBase):
    """Standard output that the caller has closed: writing fails, as it does on a full disk."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed")


class _ClosedNotes(io.TextIOBase):
    """Standard error that the caller has closed: what is written is dropped."""

    def write(self, text: str) -> int:
        return len(text)


def replace_closed_streams() -> None:
    """Put something in the place of standard streams that the caller has closed, as cron jobs and
    daemons do.

    Python makes them None then. A result that cannot be printed must be an error, and a note may be
    lost.
    """
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
    """Lead standard output to the null device after an error in writing it."""
    _drop(sys.stdout)


def drop_notes() -> None:
    """Lead standard error to the null device if what was written to it cannot be stored."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Lead a stream to the null device.

    Python flushes it once more when it exits, and would then print an error or leave with another
    code.
    """
    with suppress(OSError, ValueError):  # the stream may not be a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_NARROW = 60
"""Columns below which a progress bar has no bar: it and its figures need some 56."""


@contextmanager
def progress(what: str, total: Callable[[], int]) -> Iterator[Callable[[int], object]]:
    """Show a progress bar at a terminal with control codes; yield the function that advances it by
    some bytes.

    ``total`` computes the number of all bytes. It may read an index, so it is called only where
    there is a bar.
    """
    if not sys.stderr.isatty() or _is_dumb():
        yield lambda _nbytes: None
        return
    # Rich is imported where it draws: pipes and scripts do without its start-up time.
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    name = bars.TextColumn("{task.description}", markup=False)
    columns: list[bars.ProgressColumn] = [
        name,
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    ]
    if console.width < _NARROW:  # all of them would wrap into two lines
        columns = [name, bars.TaskProgressColumn(), bars.TimeRemainingColumn()]
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
    """Return a text that fits some columns; the middle of a longer one is left out."""
    return _cut(encodable(text), width)


def ellipsis() -> str:
    """Return what stands for the rest of a text: ``…``, or three dots if the terminal lacks it."""
    return "…" if can_print("…") else "..."


__all__ = [
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


def short_path(path: str) -> str:
    """Return a path as a person in the working directory would type it."""
    return printable(path.removeprefix(_here()))


def path_on_a_line(path: str) -> str:
    """Return ``short_path``; at a terminal without the middle of one that is longer than a line."""
    shown = short_path(path)
    width = max(_columns(None), NARROWEST) - 1  # for the colon after it
    return _cut(shown, width) if sys.stdout.isatty() and len(shown) > width else shown
